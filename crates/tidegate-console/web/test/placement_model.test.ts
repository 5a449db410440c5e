import assert from "node:assert/strict";
import { test } from "node:test";
import { agree, beside, burstAt, cellOf, dividedTrouble, dividedWords, type DividedPart, leaderWords, type Part, type Placement, positionOf, sayCell, storeWords, type Topic, whatIfWords } from "../src/placement_model";

const none = { messages: 0, over_slo: 0, share_over: 0, delay_us_p99: 0, access_us_p99: 0 };

const part = (node: string, more: Partial<Part> = {}): Part => ({
  node, state: "ready", publishers: 50, share: 0.5, rate_per_s: 5_000, limit_rate_per_s: 5_500, limit_burst: 13, in_force: true, lease_s: 9, measured: none,
  predicted: null, penalty_us_p99: null, backlog_max: 0, missing: [], error: null, ...more,
});

const topic = (more: Partial<Topic> = {}): Topic => ({
  name: "orders", limit: { rate: "11k/s", rate_per_s: 11_000, burst: 26, unit: "messages" }, slo: "p99 <= 1ms", slo_us: 1_000, planner: "model", principles: "srtm",
  on_store_loss: "local", phase: "stands", headline: "two brokers", words: [], events: [], publishers: 100, offered_per_s: 10_000, batch: 1, missing_per_s: 0,
  predicted: null, measured: none, parts: [], rounds: [], planned_in_s: null, ...more,
});

const seen = (delay_us_p99: number, access_us_p99: number) => ({ messages: 100, over_slo: 1, share_over: 0.01, delay_us_p99, access_us_p99 });
const access = (access_us_p99: number) => ({ access_us_p99, access_us_mean: 1, share_delayed: 0.1 });

test("a cell says in words what its colour says", () => {
  const orders = topic();
  assert.deepEqual(cellOf(orders, undefined, "share"), { heat: "idle", text: "–" });
  assert.deepEqual(cellOf(orders, part("a"), "share"), { heat: "busy", text: "50.0" });
  assert.deepEqual(cellOf(orders, part("a", { publishers: 0, share: 0 }), "share"), { heat: "idle", text: "0" });
  assert.deepEqual(cellOf(orders, part("a"), "rate"), { heat: "busy", text: "5,500" });
  assert.deepEqual(cellOf(orders, part("a", { limit_burst: 20 }), "burst"), { heat: "full", text: "20" });
  assert.deepEqual(cellOf(orders, part("a"), "p99"), { heat: "idle", text: "–" }, "nothing was measured");
  assert.deepEqual(cellOf(orders, part("a", { measured: seen(1_500, 10) }), "p99"), { heat: "over", text: "1.50 ms" });
  assert.deepEqual(cellOf(orders, part("a", { penalty_us_p99: 200 }), "penalty"), { heat: "low", text: "200 µs" });
  assert.deepEqual(cellOf(orders, part("a", { penalty_us_p99: -200 }), "penalty"), { heat: "idle", text: "−200 µs" });
  assert.equal(sayCell(orders, "a", part("a", { measured: seen(1_500, 700), penalty_us_p99: 700, in_force: false })),
    "orders on a: 50 publishers, 50.0 %; part 5,500/s, burst 13, not in force yet; p99 1.50 ms, of which 700 µs for tokens, penalty 700 µs");
});

test("a divided limit and its trouble are told in words", () => {
  const of = (more: Partial<DividedPart> = {}): DividedPart => ({
    node: "p0", state: "ready", error: null, limit_rate_per_s: 50, limit_burst: 5, in_force: true, lease_ms: 900, rate_per_s: 20, refused_per_s: 0, backlog_max: 0, ...more,
  });
  const limit = { name: "route shop", rate: "100/s", rate_per_s: 100, burst: 10, on_store_loss: "closed", offered_per_s: 40, refused_per_s: 0, parts: [of(), of({ node: "p1" })] };
  assert.equal(dividedWords(limit), "100/s, burst 10, over 2 proxies; 40.0 requests/s come.");
  assert.equal(dividedWords({ ...limit, refused_per_s: 2, parts: [of()] }), "100/s, burst 10, over one proxy; 40.0 requests/s come, 2.0/s of them refused.");
  assert.deepEqual([{}, { in_force: false }, { state: "gone" }, { state: "draining" }, { state: "gone", error: "it says no" }].map((more) => dividedTrouble(of(more))),
    ["", "not in force yet", "does not answer", "draining", "it says no"]);
});

test("a broker that consumers left is told of", () => {
  const left = part("a", { missing: ["billing"] });
  assert.ok(sayCell(topic(), "a", left).endsWith("nothing measured; no consumer of billing"), sayCell(topic(), "a", left));
});

test("prediction stands beside measurement", () => {
  const split = { split: access(2_200), single: access(0), penalty_us_p99: 2_200 };
  const rows = beside(topic({ predicted: split, measured: seen(3_000, 2_000), parts: [part("a", { predicted: access(2_200), measured: seen(3_000, 900) }), part("b")] }));
  assert.deepEqual(rows.map(({ title, agrees }) => [title, agrees]), [["all brokers", true], ["a", false], ["b", null]]);
  assert.deepEqual(rows[2], { title: "b", predicted: "no steady state", measured: "–", agrees: null });
  assert.ok(agree(10, 90) && !agree(10, 200), "short delays need not be alike");
});

test("the burst's slider reaches from a token for each broker to eight times the burst", () => {
  assert.equal(burstAt(0, 26, 3), 3);
  assert.equal(burstAt(100, 26, 3), 208);
  for (const b of [3, 10, 26, 100, 208]) assert.ok(Math.abs(burstAt(positionOf(b, 26, 3), 26, 3) - b) <= 0.03 * b + 1, String(b));
  assert.equal(positionOf(1, 26, 3), 0);
});

test("store, leader and what-if are told in a sentence", () => {
  const state = (more: Partial<Placement>): Placement => ({
    name: "c1", version: "0", uptime_s: 1, leader: { leads: true, name: "c1", admin: null, fence: 1, since_s: 1 },
    store: { healthy: true, error: null, silent_s: 0, latency_us: 450, failures_total: 0, nodes: [] }, nodes: [], topics: [], limits: [], warnings: [], ...more,
  });
  assert.equal(leaderWords(state({})), "c1 leads");
  assert.equal(leaderWords(state({ leader: { leads: false, name: "c2", admin: null, fence: null, since_s: null } })), "c2 leads, this is c1");
  assert.equal(storeWords(state({})), "answers within 450 µs");
  const store = state({}).store;
  assert.equal(storeWords(state({ store: { ...store, nodes: [{ name: "e3", state: "silent" }] } })), "answers within 450 µs; e3 is silent");
  assert.equal(storeWords(state({ store: { ...store, healthy: false, error: "it is gone" } })), "does not answer: it is gone");
  const answer = { k: 2, b: 26, predicted_p99_us: 2_400, meets_slo: false, exact: access(2_200), replay: { ...seen(2_400, 2_200) } };
  assert.equal(whatIfWords(answer, "p99 <= 1ms"), "On 2 brokers with a burst of 26 the p99 is 2.40 ms and misses p99 <= 1ms; the theory says 2.20 ms for tokens alone.");
});
