// The pages of neighbours in a real browser: the demo of one noisy neighbour, and both of its proxies.
import { expect, travel } from "./journey.mjs";
import { browser, noComplaints, onPhone, playWith } from "./real.mjs";

const { click, dragSlider, evaluate, open, press, until } = browser;
/** Everything is real here: a machine with other work takes longer for the same picture. */
const PATIENCE_MS = 60_000;
const answered = (side) => `Number(document.querySelector('[data-side="${side}"]').dataset.answered)`;
const state = (side) => `document.querySelector('[data-side="${side}"] .state').textContent`;
const cell = (tenant, resource) => `document.querySelector('tr[data-tenant="${tenant}"] td[data-resource="${resource}"]')`;

async function journey([, origin, token]) {
  await travel({
    "the demo shows two sides": async () => {
      await open(`${origin}/demo#token=${encodeURIComponent(token)}`);
      await until("two sides", `document.querySelectorAll("[data-side]").length === 2`);
      await until("`Writes on`", `document.querySelector(".token.held")`);
      await until("what is scarce", `document.querySelector(".how").textContent.includes("The scarce thing")`);
    },
    "without noise both sides answer A": async () => {
      await dragSlider("#load", 0);
      await until("the least noise", `document.querySelector("output").textContent === "100/s"`);
      await until("all of A's answers on both sides", `${answered("left")} >= 99 && ${answered("right")} >= 99`, PATIENCE_MS);
    },
    "an arrow key moves the slider": async () => {
      await press("ArrowRight");
      await until("the next noise", `document.querySelector("output").textContent === "200/s"`);
    },
    "with noise A loses its answers on the left alone": async () => {
      await dragSlider("#load", 1);
      await until("the most noise", `document.querySelector("output").textContent === "3,200/s"`);
      await until("half of A's answers gone on the left, none on the right", `${answered("left")} < 60 && ${answered("right")} >= 99`, PATIENCE_MS);
      await until("it in words", `${state("left")}.includes("✕ harmed")`);
      await until("what it says of Tidegate", `document.querySelector(".verdict").textContent.includes("with Tidegate")`, PATIENCE_MS);
    },
    "the right proxy says who was refused, where and why": async () => {
      await open(`${origin}/neighbours`);
      await until("both proxies", `document.querySelectorAll('[aria-label="Proxy"] button').length === 2`);
      await evaluate(`[...document.querySelectorAll('[aria-label="Proxy"] button')].find((each) => each.textContent === "right").click()`);
      await until("its mode", `document.querySelector('[data-testid="mode"]').dataset.mode === "restrict"`);
      await until("B refused", `document.querySelector('[data-refused="b.example"] .why').textContent.includes("over its share of requests")`, PATIENCE_MS);
      // On a machine that is short of processor A may be over its share of that, but never of what the demo makes scarce.
      expect("A over its share of requests", await evaluate(`(document.querySelector('[data-refused="a.example"] .why')?.textContent ?? "").includes("requests")`), false);
    },
    "the heat map says it in colour, figure and sign": async () => {
      await until("B's requests refused", `${cell("b.example", "requests")}.classList.contains("refused") && ${cell("b.example", "requests")}.textContent.includes("✕")`, PATIENCE_MS);
      await until("A's requests within its share", `/^[0-9<]+$/.test(${cell("a.example", "requests")}.textContent)`, PATIENCE_MS);
    },
    "arrow keys walk the heat map": async () => {
      await evaluate(`(${cell("a.example", "requests")}.focus(), null)`);
      await until("A's figures", `document.querySelector('[data-testid="heat-detail"]').textContent.startsWith("a.example, Requests")`);
      await press("ArrowUp");
      await until("B's figures", `document.querySelector('[data-testid="heat-detail"]').textContent.startsWith("b.example, Requests")`);
      await press("ArrowRight");
      await until("the next resource", `document.activeElement.dataset.resource === "network_bytes"`);
      await press("Enter");
      await until("its chart", `document.querySelector(".shares").dataset.resource === "network_bytes"`);
    },
    "shares are stacked over time": async () => {
      await evaluate(`(${cell("a.example", "requests")}.click(), null)`);
      await until("a chart of both tenants", `(text => text.includes("a.example") && text.includes("b.example"))(document.querySelector(".shares .keys").textContent)`);
      expect("one canvas", await evaluate(`document.querySelectorAll(".shares canvas").length`), 1);
    },
    "the mode is switched, and B passes": async () => {
      await click('[data-testid="mode-stats"]');
      await until("the mode in force", `document.querySelector('[data-testid="mode"]').dataset.mode === "stats"`);
      await until("the page saying so", `document.querySelector(".mode .said").textContent.startsWith("In force after")`);
      await click('[data-testid="mode-restrict"]');
      await until("the mode before", `document.querySelector('[data-testid="mode"]').dataset.mode === "restrict"`);
    },
    "a spike comes and goes": async () => {
      await open(`${origin}/demo`);
      await until("the button", `document.querySelector(".spike:not(:disabled)")`);
      await click(".spike");
      await until("the spike", `document.querySelector(".spike").disabled`);
      await until("its end", `!document.querySelector(".spike").disabled`, PATIENCE_MS);
    },
    "a phone shows the demo without scrolling sideways": onPhone(() => `${origin}/demo`, "two sides", `document.querySelectorAll("[data-side]").length === 2`),
    "a phone shows the neighbours without scrolling sideways": onPhone(() => `${origin}/neighbours`, "the heat map", cell("b.example", "requests")),
    "the browser had nothing to complain about": noComplaints(origin),
  }, browser, origin);
}

await playWith(["demo", "neighbours", "--address", "127.0.0.1:0"], /^(http:\S+)\/demo#token=(\S+)\n/m, journey);
