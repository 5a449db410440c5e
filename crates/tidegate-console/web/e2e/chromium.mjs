// Drives a headless Chromium over its DevTools pipe: no package, no port, no WebSocket.
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
];

/** Starts a browser with an empty profile and one page. `close` ends it and deletes the profile. */
export async function launch({ width = 1280, height = 900, dark = false } = {}) {
  const profile = await mkdtemp(join(tmpdir(), "tidegate-chromium-"));
  const program = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const child = spawn(program, [...FLAGS, `--user-data-dir=${profile}`, "about:blank"], {
    // Descriptors 3 and 4 are the pipe: commands in, answers and events out, each ended by a zero byte.
    stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
  });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const waiting = new Map();
  const events = [];
  let last = 0;
  let rest = "";
  const fail = (error) => {
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  child.once("error", (error) => fail(new Error(`${program}: ${error.message}`)));
  ended.then(() => fail(new Error(`${program} ended`)));
  child.stdio[4].setEncoding("utf8").on("data", (text) => {
    const messages = (rest + text).split("\0");
    rest = messages.pop();
    for (const message of messages.map((each) => JSON.parse(each))) {
      const call = waiting.get(message.id);
      if (call === undefined) {
        events.push(message);
        continue;
      }
      waiting.delete(message.id);
      if (message.error) call.reject(new Error(`${call.method}: ${message.error.message}`));
      else call.resolve(message.result);
    }
  });
  child.stdio[3].on("error", () => undefined); // Its end is reported by `exit`.

  const send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve, reject) => {
      if (child.exitCode !== null) return reject(new Error(`${program} ended with ${child.exitCode}`));
      waiting.set(++last, { resolve, reject, method });
      child.stdio[3].write(`${JSON.stringify({ id: last, method, params, sessionId })}\0`);
    });

  const close = async () => {
    child.kill();
    await ended;
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  };

  try {
    const { targetInfos } = await send("Target.getTargets");
    const { targetId } = targetInfos.find(({ type }) => type === "page") ?? (await send("Target.createTarget", { url: "about:blank" }));
    const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
    const page = (method, params) => send(method, params, sessionId);
    await page("Page.enable");
    await page("Runtime.enable");
    await page("Log.enable");
    await page("Network.enable");
    await page("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 });
    await page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
    return { close, page, events, ...verbs(page, events) };
  } catch (error) {
    await close();
    throw error;
  }
}

function verbs(page, events) {
  /** Runs an expression in the page and returns its JSON value. */
  const evaluate = async (expression) => {
    const { result, exceptionDetails } = await page("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(`in the page: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  };
  /** Waits until an expression is true in the page, looking with every frame that it draws. */
  const until = async (what, expression, timeout_ms = 10_000) => {
    const found = await evaluate(`new Promise((resolve) => {
      const end = performance.now() + ${timeout_ms};
      const look = () => {
        let value = null;
        try { value = (${expression}); } catch {}
        if (value || performance.now() > end) resolve(value ?? null);
        else setTimeout(look, 20);
      };
      look();
    })`);
    if (!found) throw new Error(`not seen within ${timeout_ms} ms: ${what}`);
    return found;
  };
  const centre = (selector) => evaluate(`(() => {
    const element = document.querySelector(${JSON.stringify(selector)});
    if (element === null) return null;
    element.scrollIntoView({ block: "center" });
    const { x, y, width, height } = element.getBoundingClientRect();
    return { x: x + width / 2, y: y + height / 2, left: x, width };
  })()`);
  const mouse = (type, x, y) => page("Input.dispatchMouseEvent", { type, x, y, button: "left", buttons: type === "mouseReleased" ? 0 : 1, clickCount: 1 });
  return {
    evaluate,
    until,
    open: async (url) => {
      await page("Page.navigate", { url });
    },
    /** Clicks the middle of an element, with a real mouse event. */
    click: async (selector) => {
      const spot = await centre(selector);
      if (spot === null) throw new Error(`nothing matches ${selector}`);
      await mouse("mousePressed", spot.x, spot.y);
      await mouse("mouseReleased", spot.x, spot.y);
    },
    /** Drags a slider's thumb from where it is to a share (0 to 1) of its width. */
    dragSlider: async (selector, share) => {
      const { y, left, width } = await centre(selector);
      const at = await evaluate(`(({ value, min, max }) => (value - min) / (max - min))(document.querySelector(${JSON.stringify(selector)}))`);
      const x = (portion) => left + 8 + portion * (width - 16);
      await mouse("mousePressed", x(at), y);
      await mouse("mouseMoved", x((at + share) / 2), y);
      await mouse("mouseMoved", x(share), y);
      await mouse("mouseReleased", x(share), y);
    },
    /** Presses a key that is no character, such as `ArrowRight` or `Tab`. */
    press: async (key) => {
      const codes = { Tab: 9, Enter: 13, ArrowLeft: 37, ArrowUp: 38, ArrowRight: 39, ArrowDown: 40 };
      for (const type of ["keyDown", "keyUp"]) {
        await page("Input.dispatchKeyEvent", { type, key, code: key, windowsVirtualKeyCode: codes[key] });
      }
    },
    /** Replaces a field's text as typing would. */
    fill: async (selector, text) => {
      await evaluate(`document.querySelector(${JSON.stringify(selector)}).select()`);
      await page("Input.insertText", { text });
    },
    /** What the page complained about: exceptions, console errors, requests that failed or left the console. */
    complaints: (origin) => events.flatMap(({ method, params }) => {
      if (method === "Runtime.exceptionThrown") return [params.exceptionDetails.exception?.description ?? params.exceptionDetails.text];
      if (method === "Log.entryAdded" && params.entry.level === "error") return [`${params.entry.text} ${params.entry.url ?? ""}`];
      if (method === "Network.requestWillBeSent" && !params.request.url.startsWith(origin) && /^(http|ws)/.test(params.request.url)) {
        return [`a request to ${params.request.url}`];
      }
      return [];
    }),
  };
}
