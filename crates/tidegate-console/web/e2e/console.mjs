// The console in a real browser, in front of a real broker under load.
//
//   TIDEGATE=path/to/tidegate node e2e/console.mjs        starts and stops broker, console and load itself
//   node e2e/console.mjs CONSOLE_URL WRITE_TOKEN TOPIC    someone else does: TOPIC must get some hundred messages a second
//                                                         from publishers that go on while it is limited
//
// Exits with 0 when everything was seen; else says what was not and leaves a picture. CHROMIUM names the browser,
// /usr/bin/chromium otherwise.
import { launch } from "./chromium.mjs";
import { expect, travel } from "./journey.mjs";
import { startLoad, startStack } from "./stack.mjs";

const [address, givenToken, givenTopic] = process.argv.slice(2);
if (address === undefined ? process.env.TIDEGATE === undefined : givenTopic === undefined) {
  console.error("usage: TIDEGATE=PROGRAM node e2e/console.mjs | node e2e/console.mjs CONSOLE_URL WRITE_TOKEN TOPIC");
  process.exit(2);
}
const browser = await launch();
const stack = address === undefined ? await startStack(process.env.TIDEGATE).catch(giveUp) : null;
const { origin, token } = stack ?? { origin: new URL(address).origin, token: givenToken };
const topic = givenTopic ?? "browser-test";
const stopLoad = stack && startLoad({ nsq: stack.nsq, topic, rate: 1_000 });
const inForce = `document.querySelector('[data-testid="in-force"]')`;
const figure = (name) => `[...document.querySelectorAll(".figures div")].find((each) => each.querySelector("dt").textContent === "${name}").querySelector(".value").textContent`;
const number = (text) => Number(text.replace(/[,/s]/g, "").replace("M", "e6"));

const { click, dragSlider, evaluate, fill, open, page, press, until } = browser;

/** Everything is one journey: each step begins where the one before ended. */
const steps = {
  "the address loses the token, the page becomes live": async () => {
    await open(`${origin}/#token=${encodeURIComponent(token)}`);
    await until("the mark `Live`", `document.querySelector(".connection.live")`);
    await until("`Writes on`", `document.querySelector(".token.held")`);
    expect("the address without its token", await evaluate("location.href"), `${origin}/`);
  },
  "the topic's figures move": async () => {
    const row = `[...document.querySelectorAll("tr.topic")].find((row) => row.querySelector(".name a").textContent === ${JSON.stringify(topic)})`;
    await until(`a row for ${topic}`, row);
    await evaluate(`window.seen = new Set()`);
    await until("three different offered rates", `(seen.add(${row}.querySelector("td.offered").textContent), seen.size >= 3)`, 20_000);
    await evaluate(`(${row}).querySelector(".name a").click()`);
    await until("the topic's own view", `document.querySelector("h1").textContent.trim() === ${JSON.stringify(topic)}`);
    expect("focus on the heading", await evaluate(`new Promise((seen) => setTimeout(() => seen(document.activeElement.tagName), 100))`), "H1");
    await until("a chart", `document.querySelectorAll(".plot canvas").length === 3`);
  },
  "the limit can be dragged": async () => {
    const before = await evaluate(`document.querySelector("#rate").value`);
    await dragSlider("#rate ~ input[type=range]", 0.2);
    await until("another rate in the field", `document.querySelector("#rate").value !== ${JSON.stringify(before)}`);
    const dragged = await evaluate(`document.querySelector("#rate").value`);
    await press("ArrowRight");
    await until("an arrow key moving it", `document.querySelector("#rate").value !== ${JSON.stringify(dragged)}`);
  },
  "nonsense is refused beside its field": async () => {
    await fill("#rate", "fast");
    await click('[data-testid="apply"]');
    await until("a message beside the rate", `document.querySelector("#rate-error").textContent !== ""`);
  },
  "a limit is in force within a second": async () => {
    await until("traffic", `parseFloat(${figure("Admitted")}) > 0`);
    rate = Math.max(2, Math.round(number(await evaluate(figure("Admitted"))) / 2));
    await fill("#rate", String(rate));
    await fill("#burst", "10");
    await evaluate(`(window.began = performance.now(), null)`);
    await click('[data-testid="apply"]');
    const took = await until("the new limit in force", `(({ rate, burst, mode }) => rate === "${rate}" && burst === "10" && mode === "enforce" && performance.now() - began)(${inForce}.dataset)`);
    expect("less than 1000 ms until it is in force", took < 1_000 || took, true);
    await until("the page saying so", `document.querySelector('[data-testid="said"]').textContent.startsWith("In force after")`);
    console.log(`  ${rate}/s in force after ${Math.round(took)} ms`);
  },
  "real traffic obeys it": async () => {
    // The rate shown is a mean over one second, so it settles soon after the edit.
    await until(`an admitted rate near ${rate}/s`, `((shown) => shown > ${0.8 * rate} && shown < ${1.1 * rate + 10})(Number(${figure("Admitted")}.replace(/[,/s]/g, "").replace("M", "e6")))`, 20_000);
  },
  "a trial in shadow lets everything pass and counts": async () => {
    await click('[data-testid="shadow"]');
    await until("the shadow mode", `${inForce}.dataset.mode === "shadow"`);
    await until("a count of what would have been held back", `/[1-9][\\d,]* of [1-9]/.test(document.querySelector('[data-testid="trial"]').textContent)`, 20_000);
  },
  "undo goes back": async () => {
    await until("an undo to the limit before", `!document.querySelector('[data-testid="undo"]').disabled`);
    await click('[data-testid="undo"]');
    await until("the limit before the trial", `${inForce}.dataset.mode === "enforce" && ${inForce}.dataset.rate === "${rate}"`);
  },
  "the limit is still there after a reload": async () => {
    await page("Page.reload");
    await until("the limit", `${inForce}.dataset.rate === "${rate}"`);
  },
  ...(stack && {
    "the limit survives a restart of the broker": async () => {
      await stack.restart();
      // The page comes back by itself.
      await until("the connection again", `document.querySelector(".connection.live") && ${figure("Admitted")} !== "0/s"`, 30_000);
      await until("the limit", `${inForce}.dataset.rate === "${rate}" && ${inForce}.dataset.mode === "enforce"`);
      expect("its source", await evaluate(`${inForce}.textContent.includes("survives a restart")`), true);
    },
  }),
  "a phone shows it without scrolling sideways": async () => {
    await page("Emulation.setDeviceMetricsOverride", { width: 390, height: 844, deviceScaleFactor: 1, mobile: true });
    for (const path of ["/", await evaluate("location.pathname + location.search")]) {
      await open(origin + path);
      await until("figures", `document.querySelector(".figures, tr.topic")`);
      expect(`${path} at most 390 pixels wide`, await evaluate("document.documentElement.scrollWidth") <= 390, true);
    }
    await page("Emulation.clearDeviceMetricsOverride");
  },
  "the limit can be removed": async () => {
    await until("a limit", `${inForce}.dataset.mode === "enforce"`);
    await click('[data-testid="remove"]');
    await until("no limit", `${inForce}.dataset.mode === "none"`);
  },
  "the browser had nothing to complain about": async () => {
    // A restart cuts the event stream off, which the browser reports as it should.
    const expected = (complaint) => stack !== null && /ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING)|\/api\/v1\/events/.test(complaint);
    expect("no errors and no foreign requests", browser.complaints(origin).filter((each) => !expected(each)).join("\n"), "");
  },
};

let rate = 0;

async function giveUp(error) {
  await browser.close();
  console.error(error.message);
  process.exit(1);
}

try {
  await travel(steps, browser, origin);
} finally {
  await browser.close();
  stopLoad?.();
  await stack?.stop();
}
