import assert from "node:assert/strict";
import { test } from "node:test";
import { burstScale, decades, nextValue, powersOfTen, rateScale, STEPS, toPosition, toValue, withGaps } from "../src/scale";

const scales = [rateScale.messages, rateScale.bytes, burstScale.messages, burstScale.bytes];

test("a slider reaches both ends exactly", () => {
  for (const scale of scales) {
    assert.equal(toValue(scale, 0), scale.min);
    assert.equal(toValue(scale, STEPS), scale.max);
    assert.deepEqual([scale.min / 9, scale.min, scale.max, scale.max * 9].map((value) => toPosition(scale, value)), [0, 0, STEPS, STEPS]);
  }
});

test("every step right is no less, and whole, and a person would set it", () => {
  for (const scale of scales) {
    let before = 0;
    for (let position = 0; position <= STEPS; position++) {
      const value = toValue(scale, position);
      assert.ok(Number.isInteger(value) && value >= Math.max(1, before), `${value} after ${before}`);
      assert.ok(String(value).replace(/0+$/, "").length <= 3, `${value}`);
      before = value;
    }
  }
});

test("a value set in the field moves the slider to where it gives nearly that value", () => {
  for (const value of [1, 26, 300, 11_000, 450_000]) {
    const there = toValue(rateScale.messages, toPosition(rateScale.messages, value));
    assert.ok(Math.abs(there / value - 1) < 0.05, `${value} became ${there}`);
  }
});

test("an arrow key always moves, from one end to the other and back", () => {
  for (const scale of scales) {
    for (const [from, to, direction] of [[scale.min, scale.max, 1], [scale.max, scale.min, -1]] as const) {
      let value = from;
      for (let presses = 0; value !== to; presses++) {
        const next = nextValue(scale, value, direction);
        assert.ok(direction * (next - value) > 0 && presses < STEPS, `${value} to ${next}`);
        value = next;
      }
      assert.equal(nextValue(scale, value, direction), value, "the end");
    }
  }
  assert.equal(nextValue(rateScale.messages, 3e6, 1), 3e6, "a value beyond the end is not pulled back by a step up");
  assert.equal(nextValue(rateScale.messages, 3e6, -1), 1e6);
});

test("a delay axis ends at powers of ten, two or more apart", () => {
  assert.deepEqual(decades(300, 40_000), [100, 100_000]);
  assert.deepEqual(decades(5_000, 6_000), [100, 10_000]);
  assert.deepEqual(decades(1_000, 1_000), [10, 1_000]);
  assert.deepEqual(decades(0, 0), [1, 100]);
});

test("axis marks are thinned from the top", () => {
  assert.deepEqual(powersOfTen(100, 100_000, 6), [100, 1_000, 10_000, 100_000]);
  assert.deepEqual(powersOfTen(1, 1e8, 6), [1, 100, 1e4, 1e6, 1e8]);
  assert.ok(powersOfTen(1, 1e9, 6).length <= 6);
});

test("no line crosses a time in which nobody watched", () => {
  assert.deepEqual(withGaps([0, 1_000, 60_000], [[1, 2, 3]]), [[0, 1, 1.001, 60], [1, 2, null, 3]]);
  assert.deepEqual(withGaps([], [[]]), [[], []]);
});
