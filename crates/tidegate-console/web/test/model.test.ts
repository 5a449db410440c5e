import assert from "node:assert/strict";
import { test } from "node:test";
import { apply, keyOf, nothing, type Row, select, type Update, warningsOf } from "../src/model";
import { append, emptyColumns, prepend, pushSpark, SPAN_MS, SPARK_POINTS, sparkPath } from "../src/series";
import { addressOf, routeOf } from "../src/route";
import { down } from "./proxies";
import { row } from "./rows";

const update = (rows: Row[], gone: Row[] = []): Update => ({ brokers: [], rows, gone, left_out: 0, has_demo: false, has_rpc: false, has_placement: false, has_shaper: false });
const limit = { rate_per_s: 1, burst: 1, unit: "messages", discipline: "wait", mode: "enforce", source: "admin", tokens: 1 } as const;

test("a delta changes what it names and keeps the rest as the same objects", () => {
  const [a, b, c] = [row("a"), row("b"), row("c")];
  const before = apply(nothing, "full", update([a, b, c]));
  const newer = row("b", null, { depth: 7 });
  const after = apply(before, "delta", update([newer], [c]));
  assert.deepEqual([...after.rows.keys()], ["b/a", "b/b"]);
  assert.equal(after.rows.get(keyOf(a)), a);
  assert.equal(after.rows.get(keyOf(b))?.depth, 7);
  assert.equal(before.rows.get(keyOf(b))?.depth, 0, "the state before is untouched");
  assert.deepEqual([...apply(after, "full", update([c])).rows.keys()], ["b/c"]);
});

test("proxies stay as they were when an event says nothing of them", () => {
  const proxy = down("p", "is down");
  const before = apply(nothing, "full", { ...update([]), proxies: [proxy] });
  assert.deepEqual(apply(before, "delta", update([])).proxies, [proxy]);
  assert.deepEqual(apply(before, "delta", { ...update([]), proxies: [] }).proxies, []);
  assert.deepEqual(warningsOf(before), ["Proxy p is down"]);
});

test("rows are topics in order, each with its channels", () => {
  const rows = [row("b", "z"), row("a"), row("b"), row("b", "y"), row("c", null, { offered_per_s: 5 })];
  const names = (sort: "name" | "offered_per_s", descending: boolean, filter = "", limitedOnly = false) =>
    select(rows, { filter, limitedOnly, sort, descending }).map((r) => r.channel ?? r.topic).join(" ");
  assert.equal(names("name", false), "a b y z c");
  assert.equal(names("name", true), "c b y z a");
  assert.equal(names("offered_per_s", true), "c a b y z");
  assert.equal(names("name", false, "B y"), "y", "all words count, in any part of the name");
  rows.push(row("d", null, { limit }));
  assert.equal(names("name", false, "", true), "d");
});

test("warnings name the broker when there are several, and what is down comes first", () => {
  const broker = (name: string, error: string | null, warnings: string[]) =>
    ({ name, error, now_ms: 0, version: "", node: "", durability: "", uptime_s: 0, connections: 0, memory_bytes: 0, warnings });
  assert.deepEqual(warningsOf({ ...nothing, brokers: [broker("x", null, ["open"])] }), ["open"]);
  assert.deepEqual(warningsOf({ ...nothing, brokers: [broker("x", null, ["open"]), broker("y", "is down", [])], left_out: 3 }),
    ["Broker y is down", "x: open", "3 topics and channels are not shown: there are too many"]);
});

test("a series keeps its span, its order and its bound", () => {
  const columns = emptyColumns();
  for (let ms = 0; ms <= SPAN_MS + 10_000; ms += 250) append(columns, ms, row("a", null, { depth: ms }));
  append(columns, 5, row("a"));
  assert.equal(columns.at_ms[0], 10_000);
  assert.equal(columns.depth[0], 10_000);
  assert.equal(columns.at_ms.length, SPAN_MS / 250 + 1);
  for (let ms = 1; ms < 5_000; ms++) append(columns, 1e9 + ms, row("a"));
  assert.equal(columns.at_ms.length, 1_300);
});

test("what the console remembers comes before what the page saw, without overlap", () => {
  const [history, live] = [emptyColumns(), emptyColumns()];
  for (const ms of [0, 1_000, 2_000, 3_000]) append(history, ms, row("a", null, { depth: 1 }));
  for (const ms of [2_250, 2_500]) append(live, ms, row("a", null, { depth: 2 }));
  const joined = prepend(history, live);
  assert.deepEqual(joined.at_ms, [0, 1_000, 2_000, 2_250, 2_500]);
  assert.deepEqual(joined.depth, [1, 1, 1, 2, 2]);
});

test("a sparkline ends at its right edge and is bounded", () => {
  const spark = { offered: [] as number[], admitted: [] as number[] };
  for (let i = 0; i < 100; i++) pushSpark(spark, i, 0);
  assert.equal(spark.offered.length, SPARK_POINTS);
  assert.equal(spark.offered[0], 40);
  assert.equal(sparkPath([0, 10], 10, 59, 20), "M58.0 20.0L59.0 0.0");
  assert.equal(sparkPath([], 0, 59, 20), "");
  assert.equal(sparkPath([0], 0, 59, 20), "M59.0 20.0", "no traffic is the base line, not NaN");
});

test("addresses lead back to their view", () => {
  for (const id of [row("a#ephemeral"), row("a", "b&c")].map(({ broker, topic, channel }) => ({ broker, topic, channel }))) {
    const address = new URL(addressOf(id), "http://x");
    assert.equal(address.hash, "");
    assert.deepEqual(routeOf(address.pathname, address.search), { view: "row", id });
  }
  assert.deepEqual(routeOf("/demo", ""), { view: "demo" });
  assert.deepEqual(routeOf("/rpc", ""), { view: "rpc" });
  assert.deepEqual(routeOf("/neighbours", ""), { view: "neighbours" });
  assert.deepEqual(routeOf("/", "?broker=b"), { view: "live" });
});
