// A real broker with its console, and real traffic over TCP, for the journey through the pages.
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Long enough for a debug build on a busy machine. */
const START_MS = 30_000;

/** Starts `tidegate up` in an empty folder, on ports that the system picks. */
export async function startStack(program) {
  const folder = await mkdtemp(join(tmpdir(), "tidegate-e2e-"));
  const file = join(folder, "tidegate.toml");
  const any = { nsq: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0", console: "127.0.0.1:0" };
  const forget = () => rm(folder, { recursive: true, force: true });
  let run = await up(program, folder, file, any).catch(async (error) => {
    await forget();
    throw error;
  });
  const stop = async () => {
    await run.stop();
    await forget();
  };
  /** Ends the broker as a supervisor would and starts it on the same folder and ports. */
  const restart = async () => {
    const { addresses } = run;
    await run.stop();
    run = await up(program, folder, file, addresses);
  };
  const { origin, token, addresses } = run;
  return { origin, token, nsq: addresses.nsq, restart, stop };
}

async function up(program, folder, file, { nsq, http, admin, console }) {
  await writeFile(file, `
    [broker]
    data_path = "data"
    tcp_address = "${nsq}"
    http_address = "${http}"
    [admin]
    address = "${admin}"
    [console]
    address = "${console}"
  `);
  const child = spawn(program, ["up", "-c", file], { cwd: folder, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (said = (said + text).slice(-4_000)));
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const failed = new Promise((_, reject) => {
    child.once("error", (error) => reject(new Error(`${program}: ${error.message}`)));
    ended.then((code) => reject(new Error(`${program} up ended with ${code} before it was ready\n${said}`)));
    setTimeout(() => reject(new Error(`${program} up printed no address of its console within ${START_MS} ms\n${said}`)), START_MS).unref();
  });
  failed.catch(() => undefined); // After the start nobody waits for it.
  const addresses = {};
  const ready = new Promise((resolve) => {
    let text = "";
    child.stdout.setEncoding("utf8").on("data", (more) => {
      text += more;
      for (const [, name, where] of text.matchAll(/^(NSQ|HTTP|admin|console)\s+(\S+).*\n/gm)) addresses[name.toLowerCase()] = where.replace("http://", "");
      if (addresses.console) resolve();
    });
  });
  const stop = async () => {
    child.kill("SIGTERM");
    await ended;
  };
  try {
    await Promise.race([ready, failed]);
  } catch (error) {
    child.kill("SIGKILL");
    throw error;
  }
  // Standard output is no terminal: the token is in its file alone.
  const authority = addresses.console.replace(/\/$/, "");
  const token = (await readFile(join(folder, "data", "admin.token"), "utf8")).trim();
  return { origin: `http://${authority}`, token, addresses: { ...addresses, console: authority }, stop };
}

/** Publishes `rate` messages a second to `topic` and consumes them, through restarts, until it is stopped. */
export function startLoad({ nsq, topic, rate }) {
  const publisher = client(nsq, () => undefined, () => undefined);
  const begun = performance.now();
  let published = 0;
  const publish = setInterval(() => {
    // From intended times, not from the timer's: a late tick sends what it owes, but not what a lost connection owed.
    const due = Math.min(Math.floor(((performance.now() - begun) / 1_000) * rate), published + rate);
    for (; published < due; published++) publisher.send(`PUB ${topic}\n`, "a message of the browser's test");
  }, 10);
  const consumer = client(nsq, (send) => send(`SUB ${topic} browser-test\nRDY 500\n`), (message, send) => {
    // A timestamp of 8 bytes and the number of attempts in 2 come before the id.
    send(`FIN ${message.toString("latin1", 10, 26)}\n`);
  });
  return () => {
    clearInterval(publish);
    publisher.close();
    consumer.close();
  };
}

/** An NSQ connection that comes back. What cannot be sent now is dropped: the load is open-loop and must not pile up here. */
function client(address, onConnect, onMessage) {
  const [host, port] = [address.slice(0, address.lastIndexOf(":")), Number(address.slice(address.lastIndexOf(":") + 1))];
  let socket = null;
  let closed = false;
  const send = (command, body) => {
    if (socket === null || socket.connecting || socket.writableLength > 1 << 20) return;
    if (body === undefined) return socket.write(command);
    const size = Buffer.alloc(4);
    size.writeUInt32BE(Buffer.byteLength(body));
    socket.write(Buffer.concat([Buffer.from(command), size, Buffer.from(body)]));
  };
  const open = () => {
    if (closed) return;
    socket = connect({ host, port });
    let rest = Buffer.alloc(0);
    socket.on("connect", () => {
      socket.write("  V2");
      onConnect(send);
    });
    socket.on("data", (bytes) => {
      rest = Buffer.concat([rest, bytes]);
      // A frame: its size, its kind, its data.
      while (rest.length >= 4 && rest.length >= 4 + rest.readUInt32BE(0)) {
        const end = 4 + rest.readUInt32BE(0);
        const [kind, data] = [rest.readUInt32BE(4), rest.subarray(8, end)];
        if (kind === 0 && data.toString() === "_heartbeat_") send("NOP\n");
        if (kind === 2) onMessage(data, send);
        rest = rest.subarray(end);
      }
    });
    socket.on("error", () => undefined); // `close` follows.
    socket.on("close", () => setTimeout(open, 200));
  };
  open();
  return {
    send,
    close: () => {
      closed = true;
      socket.destroy();
    },
  };
}
