// A program that prints where it can be reached.
import { spawn } from "node:child_process";

const START_MS = 20_000;

/** Starts `program` with `args` and waits until its output matches `pattern`. `stop` ends it as a person would. */
export async function startPrinting(program, args, pattern, start_ms = START_MS) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  let text = "";
  child.stderr.setEncoding("utf8").on("data", (more) => (said = (said + more).slice(-4_000)));
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const ready = new Promise((resolve, reject) => {
    child.once("error", (error) => reject(new Error(`${program}: ${error.message}`)));
    ended.then((code) => reject(new Error(`${program} ${args.join(" ")} ended with ${code}\n${said}`)));
    setTimeout(() => reject(new Error(`${program} ${args.join(" ")} did not print ${pattern} within ${start_ms} ms\n${said}`)), start_ms).unref();
    child.stdout.setEncoding("utf8").on("data", (more) => {
      text += more;
      const found = pattern.exec(text);
      if (found !== null) resolve(found);
    });
  });
  const stop = async () => {
    child.kill("SIGINT");
    await ended;
  };
  try {
    return { found: await ready, stop };
  } catch (error) {
    child.kill("SIGKILL");
    throw error;
  }
}
