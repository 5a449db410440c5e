import assert from "node:assert/strict";
import { test } from "node:test";
import { emptyHistory, formatCount, formatDelay, formatRate, formatShare, formatSpan, growth, perSecond, ratesOf, remember, roundUp, type Figures } from "../../../tidegate-rpc/src/telemetry/page/model.js";

const none = { count: 0, p50: 0, p99: 0, p999: 0 };
const snapshot = (now_ms: number, more: Partial<Figures> = {}): Figures => ({
  scheme: "tidegate", mode: "enforce", now_ms, uptime_s: 1, shards: 1, offered_total: 0, admitted_total: 0, served_total: 0, in_time_total: 0,
  shed_total: 0, good_total: 0, cancelled_total: 0, exempt_total: 0, sheds_by_reason: {}, would_have_shed_by_reason: {}, classes: [],
  tenants: [], queueing_delay_us: none, service_time_us: none, demand: 0, sessions: 0, in_server: 0, waiting: 0, control: null, short: null,
  clients: [], clients_left_out: 0, ...more,
});

test("rates come from two looks, by the server's own clock", () => {
  const rates = ratesOf(snapshot(1_000, { offered_total: 10, served_total: 5 }), snapshot(1_500, { offered_total: 110, served_total: 55, good_total: 50, shed_total: 50 }));
  assert.deepEqual(rates, { offered: 200, served: 100, good: 100, shed: 100 });
  assert.equal(perSecond(100, 7, 1), 0, "a server that was started anew");
  assert.equal(perSecond(undefined, 7, 1), 0);
  assert.equal(perSecond(1, 7, 0), 0);
});

test("rows grow by their key, and new ones begin at zero", () => {
  const row = (priority: number, offered_total: number) => ({ priority, offered_total, served_total: 0, shed_total: 0 });
  const rows = growth([row(0, 10)], [row(0, 30), row(128, 99)], 2, (each) => String(each.priority));
  assert.deepEqual(rows.map(({ key, offered }) => [key, offered]), [["0", 10], ["128", 0]]);
});

test("history is as long as its span", () => {
  const rates = { offered: 1, served: 1, good: 1, shed: 0 };
  let history = emptyHistory();
  for (let ms = 0; ms <= 10_000; ms += 1_000) history = remember(history, snapshot(ms), rates, 3_000);
  assert.deepEqual(history.at_ms, [7_000, 8_000, 9_000, 10_000]);
  assert.equal(history.good.length, 4);
});

test("figures have few digits and their unit", () => {
  assert.deepEqual([0, 9_999, 12_345, 12_345_678].map(formatCount), ["0", "9999", "12.3 k", "12.3 M"]);
  assert.deepEqual([0, 0.25, 1_234].map(formatRate), ["0", "0.3", "1234"]);
  assert.deepEqual([0, 812, 4_120, 2_500_000].map(formatDelay), ["0 µs", "812 µs", "4.12 ms", "2.5 s"]);
  assert.deepEqual([59.6, 180, 7_200].map(formatSpan), ["60 s", "3 min", "2 h"]);
  assert.deepEqual([0, 0.001, 0.5, 0.999, 1].map(formatShare), ["0 %", "<1 %", "50 %", ">99 %", "100 %"]);
  assert.deepEqual([0, 0.3, 1, 999, 2_001].map(roundUp), [1, 0.5, 1, 1_000, 5_000]);
});
