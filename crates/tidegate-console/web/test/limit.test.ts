import assert from "node:assert/strict";
import { test } from "node:test";
import { type DemoState, sharedRange, verdict } from "../src/demo_state";
import { type Change, describe, draftOf, fieldOf, isInForce, read, redoOf, shadowCount, undoOf } from "../src/limit";
import type { Limit } from "../src/model";
import { row } from "./rows";

const limit: Limit = { rate_per_s: 11_000, burst: 26, unit: "messages", discipline: "wait", mode: "enforce", source: "file", tokens: 3 };

test("a draft shows the limit in force and reads back to it", () => {
  const wanted = read(draftOf(limit, 0), "enforce");
  assert.deepEqual(wanted, { rate: 11_000, burst: 26, unit: "messages", discipline: "wait", mode: "enforce" });
  const slow = { ...limit, rate_per_s: 0.0125 };
  assert.deepEqual(read(draftOf(slow, 0), "shadow"), { ...(wanted as object), rate: 0.0125, mode: "shadow" });
});

test("without a limit the draft would just pass what comes", () => {
  assert.equal(draftOf(null, 8_000).rate, "10,000");
  assert.equal(draftOf(null, 0).rate, "10");
});

test("what cannot be read is said beside its field", () => {
  const draft = draftOf(limit, 0);
  assert.equal((read({ ...draft, rate: "fast" }, "enforce") as { field: string }).field, "rate");
  assert.equal((read({ ...draft, burst: "0" }, "enforce") as { field: string }).field, "burst");
  assert.equal(fieldOf("limits.orders.burst: 0 is not above zero, at a rate of 5"), "burst");
  assert.equal(fieldOf("rate: 1e12 exceeds the largest"), "rate");
  assert.equal(fieldOf("the console's token was separate"), "form", "not inside another word");
});

test("a limit is in force when the figures show all that the broker accepted", () => {
  const { tokens: _, ...accepted } = { ...limit, rate: "11k/s" };
  assert.ok(isInForce({ ...limit, tokens: 26 }, accepted));
  assert.ok(isInForce({ ...limit, rate_per_s: 0.30000000000000004 }, { ...accepted, rate_per_s: 0.3 }));
  const others: Partial<Limit>[] =
    [{ rate_per_s: 11_001 }, { burst: 27 }, { mode: "shadow" }, { discipline: "refuse" }, { unit: "bytes" }, { source: "admin" }];
  for (const other of others) assert.ok(!isInForce({ ...limit, ...other }, accepted), JSON.stringify(other));
  assert.ok(!isInForce(null, accepted));
  assert.ok(isInForce(null, null), "removed");
  assert.ok(!isInForce(limit, null));
});

test("undo takes back the newest change of this limit that stands, redo makes it again", () => {
  const admin = { ...limit, source: "admin", rate: "1/3s" };
  const change = (revision: number, target: string, before: Limit | null, more: Partial<Change> = {}): Change =>
    ({ revision, at_ms: 0, target, before, after: limit, cause: "set", undone_by: null, ...more });
  assert.equal(undoOf([], "a"), null);
  assert.equal(undoOf([change(1, "b", null)], "a"), null);
  assert.deepEqual(undoOf([change(1, "a", null), change(2, "a", admin)], "a"), { to: admin });
  assert.deepEqual(undoOf([change(3, "a/c", null), change(2, "a", admin)], "a"), { to: admin }, "in any order");
  const undone = [change(1, "a", null), change(2, "a", admin, { undone_by: 3 }), change(3, "a", limit, { cause: "undo" })];
  assert.deepEqual(undoOf(undone, "a"), { to: null }, "an undo is not undone");
  assert.deepEqual(redoOf(undone, "a"), { to: limit });
  assert.equal(redoOf(undone, "b"), null);
  assert.equal(redoOf([...undone, change(4, "b", null)], "a"), null, "something was set since");
});

test("a trial counts from where it was first seen", () => {
  const from = row("a", null, { shadow_total: 100, offered_total: 1_000 });
  assert.deepEqual(shadowCount(from, row("a", null, { shadow_total: 150, offered_total: 1_200 })), { hit: 50, of: 200, percent: 25 });
  assert.deepEqual(shadowCount(from, from), { hit: 0, of: 0, percent: 0 });
  assert.deepEqual(shadowCount(from, row("a", null, { shadow_total: 1, offered_total: 10 })), { hit: 1, of: 10, percent: 10 }, "restarted");
  assert.equal(shadowCount(row("a", "c"), row("a", "c")), null);
});

test("limits in words", () => {
  assert.equal(describe(limit), "11,000 messages/s, burst 26");
  assert.equal(describe({ ...limit, unit: "bytes", rate_per_s: 2.5e6, burst: 64_000 }), "2.50 MB/s, burst 64.0 kB");
});

function demo(without_ms: number, with_ms: number, loss: number): DemoState {
  const side = (name: string, p99_ms: number, loss_percent: number) => {
    const good = { offered_per_s: 400, delivered_per_s: 400, p50_ms: 1, p99_ms, loss_percent };
    return { name, title: name, good, noisy: good };
  };
  const point = { t_ms: 0, without_p99_ms: without_ms, with_p99_ms: with_ms, without_loss_percent: loss, with_loss_percent: 0 };
  return { load: 2, capacity_per_s: 2_000, slo_ms: 10, spike: false, sides: [side("without", without_ms, loss), side("with", with_ms, 0)], history: [point] };
}

test("the demo's verdict says what the eye sees", () => {
  assert.match(verdict(demo(4, 4, 0)), /^Below capacity both sides are fine/);
  assert.equal(verdict(demo(2_000, 4, 12)), "The well-behaved topic waits 2.00 s and loses 12.0 % without the limit, 4.00 ms with it, 500 times less.");
  assert.equal(verdict({ ...demo(1, 1, 0), sides: [] }), "");
});

test("both charts of the demo share their axis, which holds the goal", () => {
  assert.deepEqual(sharedRange(demo(2_000, 4, 0)), [1_000, 1e7]);
  assert.deepEqual(sharedRange({ ...demo(1, 1, 0), history: [] }), [1_000, 100_000]);
});
