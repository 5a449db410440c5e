// A uPlot chart in the page's colours.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { formatCount, formatDelay, formatRate } from "./format";
import { decades, powersOfTen, withGaps } from "./scale";

export interface Line {
  label: string;
  /** A CSS custom property, such as `--offered`. */
  color: string;
  values: (number | null)[];
  dashed?: boolean;
  /** Filled down to the axis. Lines that follow are drawn over it, so that the topmost layer of a stack comes first. */
  fill?: boolean;
}

export interface ChartProps {
  title: string;
  /** What the chart says, in words, for whoever cannot see it. */
  summary: string;
  at_ms: number[];
  lines: Line[];
  /** How far the chart reaches back. */
  span_ms: number;
  height: number;
  /** Delays spread over powers of ten; counts start at zero. */
  scale: "delay" | "count";
  /** Marks say how long ago, for times that are not of the wall clock. */
  ago?: boolean;
  /** The ends of a delay axis, where two charts are compared; else it follows the values. */
  range?: [number, number];
  /** How an amount is written at the axis of counts. */
  amount?: (value: number) => string;
}

const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Counts changes between light and dark: a canvas has no style sheet. */
function useTheme(): number {
  const [changes, setChanges] = useState(0);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setChanges((n) => n + 1);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  return changes;
}

function options(props: ChartProps, width: number): uPlot.Options {
  const isDelay = props.scale === "delay";
  const { range, amount = (value: number) => (Number.isInteger(value) ? formatCount(value) : formatRate(value)) } = props;
  const axis = { stroke: css("--muted"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width,
    height: props.height,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 28, 0, 0],
    scales: {
      x: { time: true },
      y: isDelay
        ? { distr: 3, range: (_, min, max) => range ?? decades(min ?? 100, max ?? 1_000) }
        : { range: (_, _min, max) => [0, Math.max(1, (max ?? 0) * 1.15)] },
    },
    axes: [
      { ...axis, size: 26, space: 80, ...(props.ago ? agoMarks : { values: (_, ticks) => ticks.map(clockTime) }) },
      {
        ...axis,
        size: props.amount === undefined ? 58 : 74,
        space: 28,
        // Only the powers of ten: the lines between them are more than the eye sorts out.
        ...(isDelay ? {
          splits: (_: uPlot, __: number, min: number, max: number) => powersOfTen(min, max, 8),
          filter: (_: uPlot, powers: number[]) => powers,
        } : {}),
        values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : isDelay ? axisDelay(tick) : amount(tick))),
      },
    ],
    series: [
      {},
      ...props.lines.map((line): uPlot.Series => ({
        stroke: css(line.color),
        width: line.dashed ? 1.5 : line.fill ? 1 : 2,
        ...(line.fill ? { fill: css(line.color), stroke: css("--surface") } : {}),
        ...(line.dashed ? { dash: [6, 5] } : {}),
        points: { show: false },
        spanGaps: !!line.dashed,
      })),
    ],
  };
}

const clockTime = (s: number) => new Date(s * 1_000).toTimeString().slice(0, 8);

/** Marks that stand still while the line moves: a third of the span apart, counted back from now. */
const agoMarks: Partial<uPlot.Axis> = {
  splits: (_, __, min, max) => [0, 1, 2, 3].map((third) => min + ((max - min) * third) / 3),
  values: (chart, ticks) => ticks.map((s) => {
    const ago = Math.round((chart.scales["x"]?.max ?? s) - s);
    return ago === 0 ? "now" : `−${ago} s`;
  }),
};

/** Axis marks are powers of ten: `100 µs`, `1 ms`. */
function axisDelay(us: number): string {
  return formatDelay(us).replace(/\.0+ /, " ");
}

function aligned({ at_ms, lines, scale }: ChartProps): uPlot.AlignedData {
  const usable = (value: number | null) => (value === null || (scale === "delay" && value <= 0) ? null : value);
  return withGaps(at_ms, lines.map((line) => line.values.map(usable))) as uPlot.AlignedData;
}

export function Chart(props: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = useTheme();
  const shape = props.lines.map((line) => `${line.label}${line.color}${line.dashed ?? ""}`).join();

  useEffect(() => {
    const element = box.current as HTMLDivElement;
    const chart = new uPlot(options(props, Math.max(120, element.clientWidth)), aligned(props), element);
    plot.current = chart;
    const sizes = new ResizeObserver(() => chart.setSize({ width: Math.max(120, element.clientWidth), height: props.height }));
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      chart.destroy();
    };
  }, [theme, shape, props.scale, props.height, props.range?.join()]);

  useEffect(() => {
    const newest = (props.at_ms[props.at_ms.length - 1] ?? 0) / 1_000;
    plot.current?.batch(() => {
      plot.current?.setData(aligned(props), false);
      plot.current?.setScale("x", { min: newest - props.span_ms / 1_000, max: newest });
    });
  });

  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{props.title}</span>
        <span class="keys">
          {props.lines.map((line) => (
            <span key={line.label} class={`key ${line.color.slice(2)}${line.dashed ? " dashed" : ""}`}>{line.label}</span>
          ))}
        </span>
      </figcaption>
      <div ref={box} class={`plot h${props.height}`} role="img" aria-label={`${props.title}: ${props.summary}`} />
    </figure>
  );
}
