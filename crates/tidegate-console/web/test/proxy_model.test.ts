import assert from "node:assert/strict";
import { test } from "node:test";
import { ordered, refusals, remember, sayCell, type SharePoint, spanOf, stack, stagesOf, STACKED, tightest, warmthOf, wordsOf } from "../src/proxy_model";
import { cell, down, proxy, resource, tenant } from "./proxies";

test("a cell says in words what its colour says", () => {
  const requests = resource("requests");
  const warmth = (more: Parameters<typeof cell>[1]) => warmthOf(cell("requests", more), requests);
  assert.deepEqual(warmthOf(undefined, requests), { heat: "idle", text: "–" });
  assert.deepEqual(warmth({}), { heat: "idle", text: "0" });
  assert.deepEqual(warmth({ used: 0.3 }), { heat: "low", text: "<1" });
  assert.deepEqual(warmth({ used: 49 }), { heat: "low", text: "49" });
  assert.deepEqual(warmth({ used: 50 }), { heat: "busy", text: "50" });
  assert.deepEqual(warmth({ used: 100 }), { heat: "full", text: "100" });
  assert.deepEqual(warmth({ used: 150, overflow: 50 }), { heat: "over", text: "150" });
  assert.deepEqual(warmth({ used: 20, refused_full_per_s: 1 }), { heat: "refused", text: "20" });
  assert.deepEqual(warmth({ used: 3_200 }), { heat: "over", text: "32×" });
  assert.deepEqual(warmth({ used: 500, share: 0 }), { heat: "busy", text: "50" }, "without a share it is held against the capacity");
  assert.deepEqual(warmthOf(cell("requests", { used: 5, share: 0 }), resource("requests", { capacity: null })), { heat: "unlimited", text: "5" });
  assert.deepEqual(warmthOf(cell("memory", { used: 474_768, overflow: 474_768, share: 0 }), resource("memory", { capacity: null })), { heat: "unlimited", text: "475k" }, "nothing to go beyond");
  assert.equal(sayCell("b", cell("requests", { used: 150, overflow: 50, refused_share_per_s: 2 }), requests),
    "b, Requests: 150/s used, 150 % of its share of 100/s, 50.0/s of it from the overflow, 2.0 refused a second");
});

test("amounts have the unit of their resource, and unknown resources their own name", () => {
  assert.equal(wordsOf("network_bytes").amount(2_500_000), "2.50 MB/s");
  assert.equal(wordsOf("event_time").amount(250e6), "250 ms/s");
  assert.equal(wordsOf("memory").amount(1_500), "1.50 kB");
  assert.deepEqual([wordsOf("gpu").title, wordsOf("gpu").amount(3)], ["gpu", "3.0"]);
});

test("the busiest come first when asked for", () => {
  const all = proxy({
    resources: [resource("requests"), resource("memory", { capacity: 10 })],
    tenants: [tenant("a", [cell("requests", { used: 100 })]), tenant("b", [cell("memory", { used: 5 })]), tenant("c")],
  });
  assert.deepEqual(ordered(all, "name").map(({ name }) => name), ["a", "b", "c"]);
  assert.deepEqual(ordered(all, "busy").map(({ name }) => name), ["b", "a", "c"]);
});

test("a refusal says where and why, what happens now before what was", () => {
  const at = (hello: number, request: number) => ({ hello, request, queue: 0 });
  const rows = refusals(proxy({
    tenants: [
      tenant("calm"),
      tenant("was", [cell("memory", { refused_full: 9 })], { refused: at(0, 9) }),
      tenant("is", [cell("requests", { refused_share: 5, refused_share_per_s: 2 }), cell("memory", { refused_share: 50 })], { refused: at(5, 50), refused_per_s: at(2, 0) }),
    ],
  }));
  assert.deepEqual(stagesOf(rows).map(([stage]) => stage), ["hello", "request"]);
  assert.deepEqual(stagesOf([]).map(([stage]) => stage), ["request"]);
  assert.deepEqual(rows.map(({ tenant, why }) => [tenant, why]), [["is", "over its share of requests"], ["was", "no memory left for anyone"]]);
});

test("history keeps a point a second, its span, and starts anew with the proxy", () => {
  let history: SharePoint[] = [];
  const at = (at_ms: number) => (history = remember(history, proxy({ at_ms })));
  for (const ms of [0, 250, 999, 1_000, 1_250, 2_000]) at(ms);
  assert.deepEqual(history.map(({ at_ms }) => at_ms), [0, 1_000, 2_000]);
  assert.equal(spanOf(history), 60_000);
  at(301_500);
  assert.deepEqual(history.map(({ at_ms }) => at_ms), [2_000, 301_500]);
  assert.equal(spanOf(history), 300_000);
  assert.equal(remember(history, down("p", "is down")), history);
  at(5);
  assert.deepEqual(history.map(({ at_ms }) => at_ms), [5]);
});

test("layers lie one on the other and end at the capacity", () => {
  const tenants = Array.from({ length: STACKED + 2 }, (_, i) => tenant(`t${i}`, [cell("requests", { share: 10 * (i + 1) })]));
  const crowd = proxy({ resources: [resource("requests", { global: 450 })], tenants, rest: { tenants: 3, resources: [cell("requests", { share: 0.5 })], refused: { hello: 0, request: 0, queue: 0 } } });
  const layers = stack(remember([], crowd), "requests");
  assert.deepEqual(layers.map(({ label }) => label), ["t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "other tenants", "for whoever needs it"]);
  assert.equal(layers[8]?.newest, 30.5, "the two smallest, and those without a row");
  assert.equal(layers[9]?.tops[0], 1_000.5);
  assert.deepEqual(stack([], "requests").map(({ tops }) => tops), [[]]);
});

test("what is looked at stays while it matters", () => {
  const state = (refusing: string) => proxy({
    resources: [resource("requests", { used: 10 }), resource("memory", { used: 900 })],
    tenants: [tenant("a", [cell(refusing, { refused_share_per_s: 1 })])],
  });
  assert.equal(tightest(state(""), ""), "memory", "the fullest, while nobody is refused");
  assert.equal(tightest(state(""), "requests"), "requests");
  assert.equal(tightest(state("requests"), "memory"), "requests");
  assert.equal(tightest(state("memory"), "memory"), "memory");
  assert.equal(tightest(proxy(), "memory"), "");
});
