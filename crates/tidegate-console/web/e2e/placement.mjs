// The page of placements in a real browser: six real brokers, a control node and sixty producers, of `tidegate demo srtm`.
import { expect, travel } from "./journey.mjs";
import { browser, noComplaints, onPhone, playWith } from "./real.mjs";

const { click, dragSlider, evaluate, open, press, until } = browser;
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
      await until("the whole rate", `Math.abs(${texts}.reduce((sum, text) => sum + (parseFloat(text.replace(",", "")) || 0), 0) - 330) < 2`, PATIENCE_MS);
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
    "a small burst on six brokers would break the promise, and a large one keep it": async () => {
      await dragSlider("#what-if-k", 1);
      await until("six brokers asked about", `${whatIf}.dataset.k === "6"`, PATIENCE_MS);
      await dragSlider("#what-if-b", 0);
      await until("it in words", `/^On 6 brokers with a burst of 6 the p99 is .* and misses p99 <= 100ms/.test(${whatIf}.textContent)`, PATIENCE_MS);
      expect("the promise kept by six parts", await evaluate(`${whatIf}.dataset.meets`), "false");
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
    "a phone shows the page without scrolling sideways": onPhone(() => `${origin}/placement`, "the map", cell("f")),
    "the browser had nothing to complain about": noComplaints(origin),
  }, browser, origin);
}

await playWith(["demo", "srtm", "--seconds", "3", "--console", "127.0.0.1:0"], /^ *console +(http:\S+)\/placement#token=(\S+)\n/m, journey, PATIENCE_MS);
