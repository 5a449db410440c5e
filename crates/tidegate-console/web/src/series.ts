// Points over time: what charts and sparklines draw.

import type { Row } from "./model";

/** Columns of equal length, oldest first, as the console serves them. */
export interface Columns {
  at_ms: number[];
  offered_per_s: number[];
  admitted_per_s: number[];
  access_p99_us: number[];
  end_to_end_p99_us: number[];
  depth: number[];
  in_flight: number[];
}

const names = ["offered_per_s", "admitted_per_s", "access_p99_us", "end_to_end_p99_us", "depth", "in_flight"] as const;

/** What charts reach back. */
export const SPAN_MS = 300_000;
/** A span at four points a second, and some. */
const MAX_POINTS = 1_300;

export const emptyColumns = (): Columns =>
  ({ at_ms: [], offered_per_s: [], admitted_per_s: [], access_p99_us: [], end_to_end_p99_us: [], depth: [], in_flight: [] });

/** Adds the row as it is at `at_ms`; times must increase, so an earlier point is left out, and old points go. */
export function append(columns: Columns, at_ms: number, row: Row): void {
  const newest = columns.at_ms[columns.at_ms.length - 1] ?? -Infinity;
  if (at_ms <= newest) return;
  columns.at_ms.push(at_ms);
  const values = [
    row.offered_per_s, row.admitted_per_s, row.access_delay_us.p99, row.end_to_end_us.p99, row.depth, row.in_flight,
  ];
  names.forEach((name, i) => columns[name].push(values[i] as number));
  let old = Math.max(0, columns.at_ms.length - MAX_POINTS);
  while ((columns.at_ms[old] as number) < at_ms - SPAN_MS) old++;
  if (old > 0) for (const name of ["at_ms", ...names] as const) columns[name].splice(0, old);
}

/** Puts what the console remembers before what the page has seen itself. */
export function prepend(history: Columns, columns: Columns): Columns {
  const first = columns.at_ms[0] ?? Infinity;
  const kept = history.at_ms.filter((at_ms) => at_ms < first).length;
  const join = (a: number[], b: number[]) => [...a.slice(0, kept), ...b];
  const joined = emptyColumns();
  for (const name of ["at_ms", ...names] as const) joined[name] = join(history[name], columns[name]);
  return joined;
}

/** A minute of two rates, one point a second. */
export interface Spark { offered: number[]; admitted: number[] }
export const SPARK_POINTS = 60;

export function pushSpark(spark: Spark, offered: number, admitted: number): void {
  for (const [points, value] of [[spark.offered, offered], [spark.admitted, admitted]] as const) {
    points.push(value);
    if (points.length > SPARK_POINTS) points.shift();
  }
}

/** An SVG path over a box, newest point at its right end. */
export function sparkPath(points: number[], max: number, width: number, height: number): string {
  const step = width / (SPARK_POINTS - 1);
  const left = width - (points.length - 1) * step;
  const y = (value: number) => height - (max > 0 ? value / max : 0) * height;
  return points.map((value, i) => `${i === 0 ? "M" : "L"}${(left + i * step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
}
