import assert from "node:assert/strict";
import { test } from "node:test";
import { type Class, classesOf, type Device, formatBits, isControlled, line, parseBits, queueUs, SPAN_MS, take, wordsOf, writeBits } from "../src/shaper_model";

const one = (more: Partial<Class> = {}): Class => ({ name: "a", classid: "71de:20", parent: null, rate: "1 Gbit/s", ceil: "1 Gbit/s", rate_bit_per_s: 1e9, ceil_bit_per_s: 1e9, ...more });
const device = (more: Partial<Device> = {}): Device => ({
  id: "eth0", name: "eth0", namespace: null, mode: "own", state: "shaped", problem: null, rate: null, control: "integral", isolation: false, delay_us: 100,
  programs: { hook: "tcx", occupancy: "direct" }, programs_problem: null, classes: [one()], ...more,
});

test("a queue is a time at the class's rate, and the debt of tokens counts where it is known", () => {
  assert.equal(queueUs(one({ backlog_bytes: 1_250_000 })), 10_000);
  assert.equal(queueUs(one({ backlog_bytes: 1_250_000, queue_bytes: 12_500 })), 100);
  assert.equal(queueUs(one({ queue_bytes: -5_000 })), 0, "idle");
  assert.equal(queueUs(one()), null, "the kernel has no such class");
  assert.equal(queueUs(one({ backlog_bytes: 5, rate_bit_per_s: 0 })), null);
});

test("what is wrong is said first, and nothing good beside it", () => {
  const kinds = (more: Partial<Device>) => wordsOf(device(more)).map(({ kind, text }) => [kind, text.slice(0, 24)]);
  assert.deepEqual(kinds({}), [["good", "Queues are kept near 100"]]);
  assert.deepEqual(kinds({ control: "off" }), [["warn", "The control is off: wind"]]);
  assert.deepEqual(kinds({ state: "absent", programs: null }), [["bad", "The device is absent. It"]]);
  assert.deepEqual(kinds({ state: "failed", problem: "busy", programs: null }), [["bad", "The device is not shaped"], ["warn", "There are no programs in"]]);
  const [refused] = wordsOf(device({ programs: null, programs_problem: "no BTF" }));
  assert.match(refused?.text ?? "", /^The programs were refused: no BTF\. The rates hold/);
});

test("while the control is off the kernel's own queue is told", () => {
  const [shown] = classesOf(device({ control: "off", classes: [one({ backlog_bytes: 500_000, queue_bytes: 7_000, window_bytes: 145_000, flows: 5, rtt: { p50_us: 4_000, p99_us: 5_000 } })] }));
  assert.equal(queueUs(shown as Class), 4_000);
  assert.deepEqual([shown?.window_bytes, shown?.flows, shown?.rtt?.p50_us], [undefined, undefined, 4_000]);
});

test("the control is on while one device has some", () => {
  assert.equal(isControlled({ version: "1", devices: [] }), null);
  assert.equal(isControlled({ version: "1", devices: [device({ control: "off" }), device()] }), true);
  assert.equal(isControlled({ version: "1", devices: [device({ control: "off" })] }), false);
});

test("lines are as long as their span, and an empty queue is on the axis", () => {
  let seen = null;
  for (let at_ms = 0; at_ms <= 2 * SPAN_MS; at_ms += 1_000) {
    seen = take(seen, { version: "1", devices: [device({ classes: [one({ queue_bytes: 0, rtt: at_ms === 0 ? null : { p50_us: 50, p99_us: 90 } })] })] }, at_ms);
  }
  const history = seen?.history ?? [];
  assert.equal(history.length, SPAN_MS / 1_000 + 1);
  assert.deepEqual(line(history, "eth0/a", "queue_us").slice(-1), [1]);
  assert.deepEqual(line(history, "eth0/a", "p99_us").slice(-1), [90]);
  assert.deepEqual(line(history, "eth0/gone", "p99_us").slice(-1), [null]);
});

test("rates are read and written as the shaper does", () => {
  assert.deepEqual(["1 Gbit/s", "2.5gbit", "100M", "8 kbit/s", "12345678 bit/s"].map(parseBits), [1e9, 2.5e9, 1e8, 8_000, 12_345_678]);
  assert.deepEqual(["", "fast", "-1 Gbit", "7 kbit", "2 Tbit/s", "1 GB/s"].map(parseBits), [null, null, null, null, null, null]);
  assert.deepEqual([1e9, 2.5e9, 8_000, 12_345_678].map(writeBits), ["1 Gbit/s", "2.5 Gbit/s", "8 kbit/s", "12345.678 kbit/s"]);
  assert.deepEqual([0, 956_400_000, 1.24e9, 1e11].map(formatBits), ["0 bit/s", "956 Mbit/s", "1.24 Gbit/s", "100 Gbit/s"]);
});
