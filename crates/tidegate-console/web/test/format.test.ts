import assert from "node:assert/strict";
import { test } from "node:test";
import { formatBytes, formatCount, formatDelay, formatPercent, formatRate, formatSpan, parseBurst, parseRate } from "../src/format";

test("rates keep one decimal while it matters, then three groups of digits", () => {
  assert.deepEqual([0, 0.4, 99.94, 99.96, 1_234, 999_499, 999_500, 12_345_678, 2e9].map(formatRate),
    ["0", "0.4", "99.9", "100", "1,234", "999,499", "1.00M", "12.35M", "2.00G"]);
  assert.equal(formatCount(26), "26");
});

test("delays have three digits and never show 1000 of a unit", () => {
  assert.deepEqual([0.04, 9.94, 312.4, 999.4, 999.6, 1_240, 12_340, 124_000, 999_400, 999_600, 65e6].map(formatDelay),
    ["0.0 µs", "9.9 µs", "312 µs", "999 µs", "1.00 ms", "1.24 ms", "12.3 ms", "124 ms", "999 ms", "1.00 s", "65.0 s"]);
});

test("bytes, percents and spans", () => {
  assert.deepEqual([0, 999, 1_000, 48e6, 3.2e9].map(formatBytes), ["0 B", "999 B", "1.00 kB", "48.0 MB", "3.20 GB"]);
  assert.deepEqual([0, 0.01, 12.34, 100].map(formatPercent), ["0.0 %", "<0.1 %", "12.3 %", "100 %"]);
  assert.deepEqual([5, 65, 3_700, 93_600].map(formatSpan), ["5 s", "1 min", "1 h 1 min", "1 d 2 h"]);
});

test("rates are read as people write them", () => {
  const good: [string, number][] = [["11000", 11_000], ["11,000", 11_000], ["11k", 11_000], ["11 k/s", 11_000], ["2.5M/s", 2.5e6],
    ["1 MB/s", 1e6], ["600/min", 10], ["36 /h", 0.01], [" .5 ", 0.5], ["1_000 msg/s", 1_000]];
  for (const [text, rate] of good) assert.equal(parseRate(text), rate, text);
  for (const text of ["", "fast", "-5", "0", "1/day", "1..2", "k", "1e5x", "NaN"]) assert.equal(parseRate(text), null, text);
});

test("a burst is a whole number of tokens", () => {
  assert.deepEqual(["26", "5k", "1 MB", "1,024"].map(parseBurst), [26, 5_000, 1_000_000, 1_024]);
  for (const text of ["", "0", "2.5", "5k/s", "-1", "99999999999999999999"]) assert.equal(parseBurst(text), null, text);
});
