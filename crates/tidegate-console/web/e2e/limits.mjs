// A limit that two real proxies divide, on the page of placements: control, both proxies, and requests.
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer, get } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, travel } from "./journey.mjs";
import { startPrinting } from "./printed.mjs";
import { browser, noComplaints, onPhone, play, program } from "./real.mjs";

const { evaluate, open, until } = browser;
/** Everything is real here, and counted by the second. */
const PATIENCE_MS = 60_000;
const limit = `document.querySelector('[data-limit="route shop"]')`;
const cell = (proxy, column) => `${limit}.querySelector('[data-proxy="${proxy}"]').cells[${column}].textContent`;
const number = (proxy, column) => `parseFloat(${cell(proxy, column)})`;
const [PART, BURST, REQUESTS, TROUBLE] = [1, 3, 4, 6];

/** A proxy in front of `upstream`, whose route `shop` has a divided limit. */
async function startProxy(folder, name, upstream) {
  const file = join(folder, `${name}.toml`);
  await writeFile(file, `
    [admin]
    token_file = "${join(folder, "token")}"
    [proxy]
    threads = 1
    admin_address = "127.0.0.1:0"
    [[proxy.listen]]
    address = "127.0.0.1:0"
    [proxy.limits]
    mode = "off"
    [[proxy.upstream]]
    name = "service"
    servers = ["127.0.0.1:${upstream}"]
    [[proxy.route]]
    name = "shop"
    upstream = "service"
    rate_limit = { rate = "50/s", burst = 10, divided = true }
  `);
  const { found: [, address, admin], stop } = await startPrinting(program, ["proxy", "-c", file], /^proxy +(http:\S+)[^]*?^admin +(http:\S+)[^]*?\n/m);
  return { name, address, admin, stop };
}

async function startControl(folder, proxies) {
  const file = join(folder, "control.toml");
  await writeFile(file, `
    [admin]
    token_file = "${join(folder, "token")}"
    [control]
    listen = "127.0.0.1:0"
    store = "${join(folder, "placement.redb")}"
    lease = "3s"
    proxies = [ ${proxies.map(({ name, admin }) => `{ name = "${name}", admin = "${admin}" }`).join(", ")} ]
    [[control.limit]]
    route = "shop"
    rate = "50/s"
    burst = 10
    on_store_loss = "closed"
  `);
  return startPrinting(program, ["control", "-c", file, "--console", "127.0.0.1:0"], /^console +(http:\S+)\/placement.*\n/m);
}

/** Asks `address` every `every_ms`, whatever it answers. */
function startLoad(address, every_ms) {
  const timer = setInterval(() => get(address, (answer) => answer.resume()).on("error", () => undefined), every_ms);
  return () => clearInterval(timer);
}

async function journey(origin, second) {
  await travel({
    "the page shows the limit and its proxies": async () => {
      await open(`${origin}/placement`);
      await until("the limit", limit, PATIENCE_MS);
      await until("it in words", `${limit}.textContent.includes("50/s, burst 10, over 2 proxies")`);
      expect("no word of topics", await evaluate(`document.body.textContent.includes("No topic is declared")`), false);
    },
    "the parts are in force, and are the whole": async () => {
      await until("both in force", `${cell("p0", TROUBLE)} === "" && ${cell("p1", TROUBLE)} === ""`, PATIENCE_MS);
      await until("the whole rate", `Math.abs(${number("p0", PART)} + ${number("p1", PART)} - 50) < 0.2`, PATIENCE_MS);
      expect("the whole burst", await evaluate(`${number("p0", BURST)} + ${number("p1", BURST)}`), 10);
    },
    "the parts follow the requests": async () => {
      await until("the requests of both", `${number("p0", REQUESTS)} > ${number("p1", REQUESTS)} && ${number("p1", REQUESTS)} > 0`, PATIENCE_MS);
      await until("the larger part where most come", `${number("p0", PART)} > 1.5 * ${number("p1", PART)}`, PATIENCE_MS);
    },
    "a proxy that ended is told of, and the other gets its part": async () => {
      await second.stop();
      await until("its trouble", `${cell("p1", TROUBLE)} !== ""`, PATIENCE_MS);
      await until("the part of the other", `${number("p0", PART)} > 49`, PATIENCE_MS);
    },
    "a phone shows the limit without scrolling sideways": onPhone(() => `${origin}/placement`, "the limit", limit),
    "the browser had nothing to complain about": noComplaints(origin),
  }, browser, origin);
}

await play(async () => {
  const folder = await mkdtemp(join(tmpdir(), "tidegate-e2e-limits-"));
  const service = createServer((_, answer) => answer.end("answered\n"));
  await new Promise((resolve) => service.listen(0, "127.0.0.1", resolve));
  const ends = [() => rm(folder, { recursive: true, force: true }), () => service.close()];
  try {
    const proxies = [];
    for (const name of ["p0", "p1"]) {
      // One after the other: the first makes the token that all share.
      const proxy = await startProxy(folder, name, service.address().port);
      proxies.push(proxy);
      ends.push(proxy.stop);
    }
    const control = await startControl(folder, proxies);
    ends.push(control.stop, startLoad(proxies[0].address, 40), startLoad(proxies[1].address, 200));
    await journey(control.found[1], proxies[1]);
  } finally {
    for (const end of ends.reverse()) await end();
  }
});
