// The pages of overload control in a real browser: the demo of five schemes, then a running server.
import { spawn } from "node:child_process";
import { expect, travel } from "./journey.mjs";
import { startPrinting } from "./printed.mjs";
import { browser, noComplaints, onPhone, play, program } from "./real.mjs";

const { click, dragSlider, evaluate, open, press, until } = browser;
/** Virtual time is computed: a machine with other work takes longer for the same picture. */
const PATIENCE_MS = 60_000;
const goodput = (scheme) => `Number(document.querySelector('[data-scheme="${scheme}"]').dataset.goodput)`;

const figures = `document.querySelector(".scheme .value, .figures .value")`;

async function demo() {
  const { found, stop } = await startPrinting(program, ["demo", "rpc", "--address", "127.0.0.1:0"], /^(http:\S+)\/demo#token=(\S+)\n/m);
  const [, origin, token] = found;
  await travel({
    "the demo shows five schemes side by side": async () => {
      await open(`${origin}/demo#token=${encodeURIComponent(token)}`);
      await until("five schemes", `document.querySelectorAll("[data-scheme]").length === 5`);
      await until("`Writes on`", `document.querySelector(".token.held")`);
      await until("how much slower it is", `document.querySelector(".how").textContent.includes("Virtual time")`);
    },
    "its figures move": async () => {
      await evaluate(`(window.seen = new Set(), null)`);
      await until("five different figures", `(seen.add(document.querySelector('[data-scheme="tidegate"] dl').textContent), seen.size >= 5)`, PATIENCE_MS);
    },
    "below capacity everybody answers": async () => {
      await dragSlider("#load", 0.125);
      await until("a load of half the capacity", `document.querySelector("#load + *, output").textContent === "0.5×"`);
      for (const scheme of ["tidegate", "breakwater", "none"]) {
        await until(`${scheme} answering what is offered`, `(${goodput(scheme)} > 0.45 && ${goodput(scheme)} < 0.55)`, PATIENCE_MS);
      }
    },
    "an arrow key moves the slider": async () => {
      await press("ArrowRight");
      await until("the next load", `document.querySelector("output").textContent === "0.6×"`);
    },
    "at ten times the capacity only control answers": async () => {
      await dragSlider("#load", 1);
      await until("a load of ten times the capacity", `document.querySelector("output").textContent === "10.0×"`);
      await until("no control below 5 %, Tidegate above 90 %", `${goodput("none")} < 0.05 && ${goodput("tidegate")} > 0.9`, PATIENCE_MS);
      await until("it in words", `document.querySelector('[data-scheme="none"] .state').textContent.includes("collapsed")`);
      await until("credits and level", `document.querySelector(".inside").textContent.includes("Capacity learnt")`);
    },
    "a spike comes and goes": async () => {
      await click(".spike");
      await until("the spike", `document.querySelector(".spike").disabled`);
      await until("its end", `!document.querySelector(".spike").disabled`, PATIENCE_MS);
    },
    "a phone shows the demo without scrolling sideways": onPhone(() => `${origin}/demo`, "figures", figures),
    "the browser had nothing to complain about": noComplaints(origin),
  }, browser, origin);
  await stop();
}

async function server() {
  const { found, stop } = await startPrinting(program, ["rpc", "serve", "--address", "127.0.0.1:0", "--work-us", "200", "--console", "127.0.0.1:0"], /^(\{.*\})\n/m);
  const started = JSON.parse(found[1]);
  const origin = new URL(started.console).origin;
  // More than it can do: 200 us of work are 5,000 calls a second at most.
  const load = spawn(program, ["bench", "rpc", `address=${started.address}`, "pace.open.rate_per_s=20000", "duration_ms=120000"], { stdio: "ignore" });
  const ended = new Promise((resolve) => load.once("exit", resolve));
  await travel({
    "a running server's figures move": async () => {
      await open(started.console);
      await until("its scheme", `document.querySelector(".rpc-live").textContent.includes("Scheme tidegate")`);
      await until("goodput", `parseFloat([...document.querySelectorAll(".figures div")].find((each) => each.textContent.startsWith("Goodput")).querySelector(".value").textContent) > 0`, PATIENCE_MS);
    },
    "it says that its cores are short": async () => {
      await until("what is short", `document.querySelector(".short.cores, .short.both, .short.messages")`, PATIENCE_MS);
      await until("it in a sentence", `/ % of the /.test(document.querySelector(".short").textContent)`);
    },
    "sheds have a reason, calls a priority and clients a row": async () => {
      await until("a reason", `document.querySelector('[aria-label="Sheds by reason"] .number + .number')`, PATIENCE_MS);
      await until("a priority", `document.querySelector('[aria-label="By priority"]').textContent.includes("normal, 128")`);
      await until("a client", `document.querySelector('[aria-label="Clients"] tbody .number')`);
    },
    "a phone shows the server without scrolling sideways": onPhone(() => started.console, "figures", figures),
  }, browser, origin);
  load.kill();
  await ended;
  await stop();
}

await play(async () => {
  await demo();
  if (process.exitCode === undefined) await server();
});
