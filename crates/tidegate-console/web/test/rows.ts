// Rows for tests: idle, but for what is said.

import type { Row } from "../src/model";

const none = { count: 0, p50: 0, p99: 0, p999: 0 };
export function row(topic: string, channel: string | null = null, more: Partial<Row> = {}): Row {
  return {
    broker: "b", topic, channel, paused: false, limit: null, offered_per_s: 0, admitted_per_s: 0, dropped_per_s: 0, offered_total: 0,
    waiting: 0, blocked_publishers: 0, depth: 0, backend_depth: 0, memory_bytes: 0, in_flight: 0, deferred: 0, clients: 0,
    access_delay_us: none, end_to_end_us: none, ...more,
  };
}
