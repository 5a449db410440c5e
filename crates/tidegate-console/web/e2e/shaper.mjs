// The page of the shaper in a real browser: a real agent limits one end of a link between two namespaces.
//
// It needs root, `ip` and a program with the feature shaper; without them it says so and does nothing.
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, travel } from "./journey.mjs";
import { startPrinting } from "./printed.mjs";
import { browser, noComplaints, onPhone, play, program } from "./real.mjs";

const { click, evaluate, fill, open, until } = browser;
const namespace = `tg-e2e-${process.pid}`;
const ip = (...args) => execFileSync("ip", args, { stdio: ["ignore", "ignore", "pipe"] });
const device = `document.querySelector('[data-device="tg0"]')`;
const row = (name) => `document.querySelector('[data-class="${name}"]')`;

/** What is missing, in words. */
function missing(folder) {
  if (process.getuid() !== 0) return "root";
  if (spawnSync("ip", ["netns", "add", namespace]).status !== 0) return "`ip netns add`";
  const { stderr } = spawnSync(program, ["shaper", "clear", "-c", join(folder, "none.toml")], { encoding: "utf8", cwd: folder });
  return /without the feature/.test(stderr) ? "a program with the feature shaper" : null;
}

const journey = (origin, token) => travel({
  "the page says how the device is": async () => {
    await open(`${origin}/shaper#token=${encodeURIComponent(token)}`);
    await until("`Writes on`", `document.querySelector(".token.held")`);
    await until("a device with its tree", `${device}.dataset.state === "shaped"`);
    await until("how, in words", `document.querySelector(".device-word").textContent.length > 20`);
    await until("the tab", `[...document.querySelectorAll(".tab")].some((tab) => tab.textContent === "Shaper" && tab.ariaCurrent === "page")`);
  },
  "both classes have their figures": async () => {
    for (const name of ["web", "rest"]) {
      await until(`${name} with a queue and drops`, `((cells) => /[µm]s$/.test(cells[4].textContent) && cells[10].textContent === "0")(${row(name)}.cells)`);
    }
    expect("the rate", await evaluate(`${row("web")}.dataset.rate`), "200 Mbit/s");
    await until("two charts", `document.querySelectorAll(".plot canvas").length === 2`);
  },
  "the control is switched off and on": async () => {
    if (await evaluate(`${device}.dataset.programs`) === "none") {
      await until("the refusal in words", `/^(The programs were refused|There are no programs)/.test(document.querySelector(".device-word").textContent)`);
      return;
    }
    await click('[data-testid="control-off"]');
    await until("the control off", `${device}.dataset.control === "off" && document.querySelector(".device-word.warn").textContent.startsWith("The control is off")`);
    await click('[data-testid="control-on"]');
    await until("the control on", `${device}.dataset.control === "integral" && document.querySelector(".device-word.good") !== null`);
  },
  "another rate is in force": async () => {
    await evaluate(`(${row("web")}.querySelector("button").click(), null)`);
    await fill("#class-rate", "fast");
    await click('[data-testid="apply-class"]');
    await until("a message beside the rate", `document.querySelector("#class-rate-error").textContent !== ""`);
    await fill("#class-rate", "250M");
    await click('[data-testid="apply-class"]');
    await until("the new rate", `${row("web")}.dataset.rate === "250 Mbit/s"`);
    await until("the page saying so", `document.querySelector('[data-testid="said-class"]').textContent.startsWith("In force: rate 250 Mbit/s")`);
  },
  "a device that goes away is absent": async () => {
    ip("-n", namespace, "link", "del", "tg0");
    await until("so, in words", `${device}.dataset.state === "absent" && document.querySelector(".device-word.bad").textContent.startsWith("The device is absent")`);
  },
  "a phone shows the page without scrolling sideways": onPhone(() => `${origin}/shaper`, "the device", device),
  "the browser had nothing to complain about": noComplaints(origin),
}, browser, origin);

await play(async () => {
  const folder = await mkdtemp(join(tmpdir(), "tidegate-e2e-shaper-"));
  try {
    await writeFile(join(folder, "none.toml"), `[[shaper.device]]\nname = "tg9"\nnamespace = "/run/netns/none"\n[[shaper.device.class]]\nname = "a"\nrate = "1 Mbit/s"\n`);
    const what = missing(folder);
    if (what !== null) {
      console.log(`not run: the page of the shaper needs ${what}`);
      return;
    }
    ip("-n", namespace, "link", "add", "tg0", "type", "veth", "peer", "name", "tg1");
    for (const name of ["tg0", "tg1"]) ip("-n", namespace, "link", "set", name, "up");
    const file = join(folder, "tidegate.toml");
    const one = (name, rate) => `[[shaper.device.class]]\nname = "${name}"\nrate = "${rate}"\n`;
    await writeFile(file, `[admin]\ntoken_file = "${join(folder, "token")}"\n[shaper]\nadmin_address = "127.0.0.1:0"\n[[shaper.device]]\nname = "tg0"\n` +
      `namespace = "/run/netns/${namespace}"\ndefault_class = "rest"\n${one("web", "200 Mbit/s")}match = [{ port = 443 }]\n${one("rest", "100 Mbit/s")}`);
    const { found, stop } = await startPrinting(program, ["shaper", "-c", file, "--console", "127.0.0.1:0"], /^console +(http:\S+)\/shaper\b/m);
    await journey(found[1], (await readFile(join(folder, "token"), "utf8")).trim());
    await stop();
  } finally {
    spawnSync("ip", ["netns", "del", namespace]);
    await rm(folder, { recursive: true, force: true });
  }
});
