// The page of placements in a real browser: six real brokers, a control node and sixty producers, of `tidegate demo srtm`.
//
//   TIDEGATE=path/to/tidegate node e2e/placement.mjs
//
// Exits with 0 when everything was seen. CHROMIUM names the browser, /usr/bin/chromium otherwise.
import { launch } from "./chromium.mjs";
import { expect, travel } from "./journey.mjs";
import { startPrinting } from "./printed.mjs";

const program = process.env.TIDEGATE;
if (program === undefined) {
  console.error("usage: TIDEGATE=PROGRAM node e2e/placement.mjs");
  process.exit(2);
}
const browser = await launch();
const { click, dragSlider, evaluate, open, page, press, until } = browser;
/** Everything is real here, and a plan takes measurements of seconds. */
const PATIENCE_MS = 180_000;
const NODES = ["a", "b", "c", "d", "e", "f"];
const cell = (node) => `document.querySelector('tr[data-topic="orders"] td[data-node="${node}"]')`;
const texts = `[${NODES.map((node) => `${cell(node)}.firstChild.textContent`).join(", ")}]`;
const detail = `document.querySelector('[data-testid="heat-detail"]').textContent`;
const decision = `document.querySelector('[data-testid="decision"]')`;
const whatIf = `document.querySelector('[data-testid="what-if"]')`;
const stands = async () => until("a plan that stands", `${decision}.dataset.phase === "stands"`, PATIENCE_MS);
const show = async (figure) => evaluate(`((select) => {
  select.value = "${figure}";
  select.dispatchEvent(new Event("change", { bubbles: true }));
})(document.querySelector('[data-testid="figure"]'))`);

async function journey([, origin, token]) {
  await travel({
    "the page says who leads, how the store does and which brokers there are": async () => {
      await open(`${origin}/placement#token=${encodeURIComponent(token)}`);
      await until("`Writes on`", `document.querySelector(".token.held")`);
      await until("the leader", `document.querySelector('[data-testid="leader"]').textContent === "demo leads"`, PATIENCE_MS);
      await until("a healthy store", `(({ dataset, textContent }) => dataset.healthy === "true" && textContent.startsWith("answers within"))(document.querySelector('[data-testid="store"]'))`);
      await until("six brokers that are ready", `document.querySelectorAll("[data-broker]").length === 6 && document.body.textContent.includes("6 of 6 ready")`, PATIENCE_MS);
    },
    "the decision is told in words": async () => {
      await stands();
      await until("why so many", `/orders: (two|three|four|five|six) brokers, because/.test(${decision}.textContent)`);
      await until("how it came about", `${decision}.querySelectorAll(".because li").length > 0`);
    },
    "the map shows shares, parts, delays and penalties": async () => {
      const some = (what, test) => until(what, `${texts}.filter((text) => ${test}).length >= 2`, PATIENCE_MS);
      await some("shares of publishers", `parseFloat(text) > 0`);
      expect("all publishers", Math.round(await evaluate(`${texts}.reduce((sum, text) => sum + (parseFloat(text) || 0), 0)`)), 100);
      await show("rate");
      await until("the whole rate", `Math.abs(${texts}.reduce((sum, text) => sum + (parseFloat(text.replace(",", "")) || 0), 0) - 660) < 2`, PATIENCE_MS);
      await show("burst");
      await until("the whole burst", `${texts}.reduce((sum, text) => sum + (parseFloat(text) || 0), 0) === 84`, PATIENCE_MS);
      await show("p99");
      await some("delays", `/[µm]s$/.test(text)`);
      await show("penalty");
      await some("penalties", `/[µm]s$/.test(text)`);
      await show("share");
    },
    "arrow keys walk the map": async () => {
      await evaluate(`(${cell("a")}.focus(), null)`);
      await until("the first broker's figures", `${detail}.startsWith("orders on a")`);
      await press("ArrowRight");
      await until("the second broker's figures", `${detail}.startsWith("orders on b") && document.activeElement.dataset.node === "b"`);
      await press("Enter");
      await until("the topic", `document.querySelector('tr[data-topic="orders"] button').getAttribute("aria-pressed") === "true"`);
    },
    "the prediction stands beside the measurement": async () => {
      const row = `document.querySelector('[data-beside="all brokers"]').cells`;
      await until("both in figures", `/[µm]?s$/.test(${row}[1].textContent) && /[µm]?s$/.test(${row}[2].textContent)`, PATIENCE_MS);
      await until("what the split costs", `document.querySelector('[aria-label="Prediction beside measurement"]').textContent.includes("the split costs")`);
    },
    "more brokers would break the promise, and a larger burst would keep it": async () => {
      await dragSlider("#what-if-k", 1);
      await until("six brokers asked about", `${whatIf}.dataset.k === "6"`, PATIENCE_MS);
      expect("the promise kept by six parts", await evaluate(`${whatIf}.dataset.meets`), "false");
      await until("it in words", `/^On 6 brokers with a burst of 84 the p99 is .* and misses p99 <= 50ms/.test(${whatIf}.textContent)`);
      await dragSlider("#what-if-b", 1);
      await until("a burst eight times as large", `${whatIf}.textContent.includes("with a burst of 672")`, PATIENCE_MS);
      expect("the promise kept with that burst", await evaluate(`${whatIf}.dataset.meets`), "true");
    },
    "without lending the page says that each keeps its part": async () => {
      await until("so", `document.querySelector('[data-testid="lending"]').textContent.includes("each keeps its part")`);
    },
    "a person asks for a new plan": async () => {
      await click(".decision button");
      await until("the answer", `document.querySelector(".decision .said").textContent === "A new plan is being made."`);
      await until("the plan being made", `${decision}.dataset.phase === "plans"`, PATIENCE_MS);
      await stands();
    },
    "a phone shows the page without scrolling sideways": async () => {
      await page("Emulation.setDeviceMetricsOverride", { width: 390, height: 844, deviceScaleFactor: 1, mobile: true });
      await open(`${origin}/placement`);
      await until("the map", cell("f"));
      expect("at most 390 pixels wide", await evaluate("document.documentElement.scrollWidth") <= 390, true);
      await page("Emulation.clearDeviceMetricsOverride");
    },
    "the browser had nothing to complain about": async () => expect("no errors and no foreign requests", browser.complaints(origin).join("\n"), ""),
  }, browser, origin);
}

try {
  const demo = await startPrinting(program, ["demo", "srtm", "--seconds", "3", "--console", "127.0.0.1:0"], /^ *console +(http:\S+)\/placement#token=(\S+)\n/m, PATIENCE_MS);
  await journey(demo.found);
  await demo.stop();
} catch (error) {
  process.exitCode = 1;
  console.error(error.message);
} finally {
  await browser.close();
}
