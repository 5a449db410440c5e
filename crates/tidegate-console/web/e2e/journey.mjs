// Runs the steps of a journey one after the other: each begins where the one before ended.
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Runs `steps` by name. The first that fails ends the journey with exit code 1, its reason and a picture. */
export async function travel(steps, browser, origin) {
  let running = "";
  try {
    for (const [name, step] of Object.entries(steps)) {
      running = name;
      await step();
      console.log(`ok ${name}`);
    }
  } catch (error) {
    process.exitCode = 1;
    console.error(`not ok ${running}\n  ${error.message}`);
    const complaints = browser.complaints(origin);
    if (complaints.length > 0) console.error(`  the browser says: ${complaints.join("\n  ")}`);
    try {
      const { data } = await browser.page("Page.captureScreenshot", { format: "png" });
      const picture = join(tmpdir(), "tidegate-console-e2e.png");
      await writeFile(picture, Buffer.from(data, "base64"));
      console.error(`  what it looked like: ${picture}`);
    } catch {
      // The browser itself is gone; its end was reported above.
    }
  }
}

export function expect(what, found, wanted) {
  if (found !== wanted) throw new Error(`expected ${what}: found ${JSON.stringify(found)}, wanted ${JSON.stringify(wanted)}`);
}
