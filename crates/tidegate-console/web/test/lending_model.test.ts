import assert from "node:assert/strict";
import { test } from "node:test";
import { flowsOf, lendersOf, type Loans, next, type Told } from "../src/lending_model";

const loans = (more: Partial<Loans> = {}): Loans => ({ topic: "orders", state: "lends", why: null, circle: "5f", base: 5, lent: 2, borrowed: 0, withheld: 0, members: [], ...more });
const told = (broker: string, now_us: number, ...topics: Loans[]): Told => ({ broker, lending: { now_us, lends: true, topics }, error: null });
const gone = (broker: string): Told => ({ broker, lending: null, error: "cannot be reached" });

test("a flow's rate is the difference of two readings over the broker's own clock", () => {
  const reading = (now_us: number, gave: number, got: number) => [
    told("a", now_us, loans({ members: [{ node: "b", gave, got }] })), told("b", 7 * now_us, loans({ members: [{ node: "a", gave: got, got: gave }] })),
  ];
  const first = next(null, reading(1_000_000, 812, 0));
  assert.deepEqual(flowsOf(first, "orders"), [{ from: "a", to: "b", total: 812, per_s: null }], "one reading has no rate, and no tokens are no flow");
  const second = next(first, reading(3_000_000, 1_012, 40));
  assert.deepEqual(flowsOf(second, "orders").map(({ from, per_s, total }) => [from, per_s, total]), [["a", 100, 1_012], ["b", 40 / 14, 40]]);
  assert.deepEqual(flowsOf(second, "other"), []);
});

test("a new circle begins at zero, and a broker that is gone is told of by the others", () => {
  const a = (now_us: number, circle: string) => told("a", now_us, loans({ circle, members: [{ node: "b", gave: 5, got: 9 }] }));
  const readings = next(next(null, [a(1e6, "old"), gone("b")]), [a(2e6, "new"), gone("b")]);
  assert.deepEqual(flowsOf(readings, "orders"), [{ from: "b", to: "a", total: 9, per_s: null }, { from: "a", to: "b", total: 5, per_s: null }]);
  assert.deepEqual(lendersOf(readings, "orders").map(({ broker, words }) => [broker, words]), [["a", "lends"], ["b", "does not say"]]);
});

test("why a broker does not lend is said in words", () => {
  const words = (more: Partial<Loans>) => lendersOf(next(null, [told("a", 1, loans(more))]), "orders").map((each) => each.words);
  assert.deepEqual(words({ state: "split", why: "no_address" }), ["static part: it has no lend-address"]);
  assert.deepEqual(words({ state: "split", why: "of a later release" }), ["static part: of a later release"]);
  assert.deepEqual(words({ state: "leaves" }), ["leaves, and waits for what it lent"]);
  assert.deepEqual(lendersOf(next(null, [told("a", 1)]), "orders"), [], "a broker without the topic has nothing to say");
});
