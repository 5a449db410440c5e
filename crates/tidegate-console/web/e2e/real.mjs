// What a journey through pages of real programs begins and ends with: the program of TIDEGATE, and a browser.
//
//   TIDEGATE=path/to/tidegate node e2e/JOURNEY.mjs
//
// Exits with 0 when everything was seen. CHROMIUM names the browser, /usr/bin/chromium otherwise.
import { basename } from "node:path";
import { launch } from "./chromium.mjs";
import { expect } from "./journey.mjs";
import { startPrinting } from "./printed.mjs";

if (process.env.TIDEGATE === undefined) {
  console.error(`usage: TIDEGATE=PROGRAM node e2e/${basename(process.argv[1])}`);
  process.exit(2);
}
export const program = process.env.TIDEGATE;
export const browser = await launch();

/** Starts the program with `args`, plays `journey` with what it printed, and ends both it and the browser. */
export async function playWith(args, pattern, journey, start_ms) {
  await play(async () => {
    const { found, stop } = await startPrinting(program, args, pattern, start_ms);
    await journey(found);
    await stop();
  });
}

/** Plays `all`, and ends the browser. */
export async function play(all) {
  try {
    await all();
  } catch (error) {
    process.exitCode = 1;
    console.error(error.message);
  } finally {
    await browser.close();
  }
}

/** A step: a phone shows a page, on which `seen` becomes true, without scrolling sideways. `path` is asked for when it begins. */
export const onPhone = (path, what, seen) => async () => {
  const { evaluate, open, page, until } = browser;
  await page("Emulation.setDeviceMetricsOverride", { width: 390, height: 844, deviceScaleFactor: 1, mobile: true });
  await open(path());
  await until(what, seen);
  expect("at most 390 pixels wide", await evaluate("document.documentElement.scrollWidth") <= 390, true);
  await page("Emulation.clearDeviceMetricsOverride");
};

/** A step: nothing went wrong in the browser. */
export const noComplaints = (origin) => async () => expect("no errors and no foreign requests", browser.complaints(origin).join("\n"), "");
