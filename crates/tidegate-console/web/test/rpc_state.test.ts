import assert from "node:assert/strict";
import { test } from "node:test";
import { fateOf, formatLoad, formatShare, linePath, loadAt, LOADS, positionOf, type RpcState, type Scheme, verdict } from "../src/rpc_state";

const scheme = (name: string, more: Partial<Scheme> = {}): Scheme => ({
  name, offered: 2, goodput: 0.98, late: 0, refused_local: 1, refused_remote: 0.02, lost: 0, p50_us: 60, p99_us: 180, notice_p99_us: 20, under_way: 40, ...more,
});
const state = (schemes: Scheme[], load = 2): RpcState => ({
  kind: "rpc", capacity_per_s: 727_000, slo_us: 200, cores: 8, clients: 1_000, service_us: 10, round_trip_us: 10, virtual_ms_per_s: 10, load, spike: false,
  offered_load: load, schemes, tidegate: null, history: { t_ms: [], offered: [], goodput: [] },
});

test("the slider covers 0.2 to 10 times the capacity, and every position is another load", () => {
  const last = LOADS.length - 1;
  assert.deepEqual([loadAt(0), loadAt(last), loadAt(last + 5)], [0.2, 10, 10]);
  LOADS.forEach((load, position) => {
    assert.equal(positionOf(load), position);
    assert.ok(position === 0 || load > loadAt(position - 1));
  });
  assert.equal(loadAt(positionOf(5.2)), 5);
  assert.equal(loadAt(positionOf(1_000)), 10);
  assert.equal(formatLoad(10), "10.0×");
});

test("a scheme is held against what was possible", () => {
  assert.equal(fateOf(scheme("a"), 200), "holds");
  assert.equal(fateOf(scheme("a", { p99_us: 201 }), 200), "loses");
  assert.equal(fateOf(scheme("a", { goodput: 0.6 }), 200), "loses");
  assert.equal(fateOf(scheme("a", { goodput: 0.3 }), 200), "collapsed");
  assert.equal(fateOf(scheme("a", { goodput: 0.3, offered: 0.3 }), 200), "holds");
  assert.equal(fateOf(scheme("a", { goodput: 0, offered: 0 }), 200), "idle");
});

test("the sentence names what is kept, and says below capacity that nothing is lost", () => {
  const five = [scheme("tidegate"), scheme("none", { goodput: 0.003 })];
  assert.equal(verdict(state(five, 10)), "At 10.0× Tidegate keeps 98 % of the server's capacity useful, with a p99 of 180 µs; without control it is <1 %.");
  assert.match(verdict(state(five, 0.5)), /^At 0\.5× the server has room for all/);
  assert.equal(verdict(state([])), "");
  assert.equal(formatShare(0), "0 %");
});

test("a line ends at the right edge and stays in its box", () => {
  assert.equal(linePath([0, 5], [0, 30_000], 60_000, 1.1, 240, 64), "M120.0 64.0L240.0 0.0");
  assert.equal(linePath([], [], 60_000, 1.1, 240, 64), "");
});
