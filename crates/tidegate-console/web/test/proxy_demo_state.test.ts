import assert from "node:assert/strict";
import { test } from "node:test";
import { type Figures, formatAnswered, harmOf, type NeighboursState, sharedRange, verdict } from "../src/proxy_demo_state";

const figures = (more: Partial<Figures> = {}): Figures => ({ offered_per_s: 100, answered_per_s: 100, refused_per_s: 0, answered_percent: 100, p50_ms: 2, p99_ms: 5, ...more });
const state = (left: Partial<Figures>, right: Partial<Figures> = {}): NeighboursState => ({
  kind: "neighbours", load: 3_200, spike: false, offered_load: 3_200, load_min: 100, load_max: 3_200, quiet_per_s: 100, capacity_per_s: 1_000, admitted_per_s: 800,
  goal_ms: 50, deadline_ms: 1_000,
  sides: [
    { name: "left", title: "Without limits", quiet: figures(left), noisy: figures({ offered_per_s: 3_200 }) },
    { name: "right", title: "With Tidegate", quiet: figures(right), noisy: figures({ offered_per_s: 3_200 }) },
  ],
  history: { t_ms: [0], left_p99_ms: [200], right_p99_ms: [5] },
});

test("a side is harmed when A is slow or goes without answers", () => {
  const [left, right] = state({ p99_ms: 200, answered_percent: 30 }).sides;
  assert.deepEqual(harmOf(left!, state({})), { slow: true, lossy: true });
  assert.deepEqual(harmOf(right!, state({})), { slow: false, lossy: false });
});

test("no answer at all is no good delay", () => {
  const [left] = state({ p99_ms: 0, answered_percent: 0 }).sides;
  assert.deepEqual(harmOf(left!, state({})), { slow: true, lossy: true });
  assert.match(verdict(state({ p99_ms: 0, answered_percent: 0 })), /A gets 0 % of its answers, p99 – without limits/);
  assert.deepEqual(harmOf({ ...left!, quiet: figures({ offered_per_s: 0, p99_ms: 0, answered_percent: 0 }) }, state({})), { slow: false, lossy: false });
});

test("the sentence compares both sides, or says that there is nothing to compare", () => {
  assert.equal(verdict(state({ p99_ms: 204, answered_percent: 30.3 })),
    "While B sends 3,200/s, A gets 30 % of its answers, p99 204 ms without limits; 100 % of its answers, p99 5.00 ms with Tidegate.");
  assert.match(verdict(state({})), /^There is room for both/);
  assert.equal(verdict({ ...state({}), sides: [] }), "");
});

test("an answered share is never rounded to all or to nothing", () => {
  assert.deepEqual([0, 0.2, 30.3, 99.2, 99.7, 99.97, 100].map(formatAnswered), ["0 %", "<1 %", "30 %", "99 %", "99.7 %", "99.9 %", "100 %"]);
});

test("both charts share their axis", () => {
  assert.deepEqual(sharedRange(state({})), [1_000, 1_000_000]);
});
