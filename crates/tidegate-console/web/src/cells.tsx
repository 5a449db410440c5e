// Parts of a row that several views show.

import { formatBytes, formatCount, formatDelay, formatRate } from "./format";
import type { Delay, Limit, Row } from "./model";

/** Three quantiles as table cells; a dash where nothing was measured. */
export function DelayCells({ delay, label }: { delay: Delay; label: string }) {
  const quantiles = [["p50", delay.p50], ["p99", delay.p99], ["p99.9", delay.p999]] as const;
  return (
    <>
      {quantiles.map(([name, us]) => (
        <td key={name} class={delay.count === 0 ? "delay unmeasured" : "delay"} data-label={`${label} ${name}`} title={`${label}, ${name}`}>{delayText(delay, us)}</td>
      ))}
    </>
  );
}

export function delayText(delay: Delay, us: number): string {
  return delay.count === 0 ? "–" : formatDelay(us);
}

/** Rate, burst and how full the bucket is. */
export function LimitCell({ limit }: { limit: Limit | null }) {
  if (limit === null) return <span class="none">–</span>;
  const share = Math.min(1, Math.max(0, limit.tokens / limit.burst));
  const amount = limit.unit === "bytes" ? formatBytes : formatCount;
  const rate = limit.unit === "bytes" ? formatBytes(limit.rate_per_s) : formatRate(limit.rate_per_s);
  return (
    <span class={`bucket ${limit.mode}`}>
      <span class="contract">{rate}/s · {amount(limit.burst)}</span>
      {/* An SVG attribute, since the content security policy forbids style attributes. */}
      <svg class="meter" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={`${amount(Math.floor(limit.tokens))} of ${amount(limit.burst)} tokens`}>
        <rect class="track" width="100" height="4" rx="2" />
        <rect class="fill" width={100 * share} height="4" rx="2" />
      </svg>
    </span>
  );
}

/** What is unusual about a row, in words. */
export function Marks({ row }: { row: Row }) {
  return (
    <>
      {row.paused && <span class="mark warn">paused</span>}
      {row.limit?.mode === "shadow" && <span class="mark shadow">shadow</span>}
      {row.blocked_publishers > 0 && <span class="mark warn" title="Publishers held back until the queue has room">{row.blocked_publishers} held back</span>}
    </>
  );
}
