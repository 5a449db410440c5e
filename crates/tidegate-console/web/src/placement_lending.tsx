// What brokers lend each other of a topic's limit.

import { formatCount, formatRate } from "./format";
import { flowsOf, lendersOf, next, type Readings, type Told } from "./lending_model";
import { PlainTable, to } from "./plain_table";
import { usePolled } from "./poll";

const POLL_MS = 1_000;
/** Flows that are shown; a circle of many brokers has their square. */
const FLOWS = 20;

export function LendingFlows({ topic }: { topic: string }) {
  const { seen, error } = usePolled<Told[], Readings>("lending", POLL_MS, next);
  const lenders = seen === null ? [] : lendersOf(seen, topic);
  const lends = lenders.some(({ loans }) => loans !== undefined);
  const flows = seen === null ? [] : flowsOf(seen, topic);
  return (
    <section aria-label="Lending" data-testid="lending" data-lends={String(lends)}>
      <h2>Lending between brokers</h2>
      {error !== "" && <p class="error" role="alert">{error}</p>}
      {!lends ? <p class="hint">No broker lends tokens of this topic: each keeps its part.</p> : (
        <div class="neighbour-columns">
          <PlainTable none="Nobody has lent anything so far." columns={["From", "To", ["tokens/s", "number"], ["in all", "number"]]}
            rows={flows.slice(0, FLOWS).map((flow) => ({
              key: `${flow.from}/${flow.to}`,
              data: { "data-flow": `${flow.from}/${flow.to}` },
              cells: [flow.from, to(flow.to), flow.per_s === null ? "–" : formatRate(flow.per_s), formatCount(flow.total)],
            }))} />
          <PlainTable none="" columns={["Broker", ["own", "number"], ["borrowed", "number"], ["lent", "number"], ["depth now", "number"], ["State", "why"]]}
            rows={lenders.map(({ broker, loans, words }) => {
              const tokens = loans === undefined ? [] : [loans.base, loans.borrowed, loans.lent, loans.base + loans.borrowed - loans.lent - loans.withheld];
              return { key: broker, data: { "data-lender": broker }, cells: [broker, ...[0, 1, 2, 3].map((i) => (i in tokens ? formatCount(tokens[i]!) : "–")), words] };
            })} />
        </div>
      )}
      {flows.length > FLOWS && <p class="hint">{formatCount(flows.length - FLOWS)} smaller flows are not shown.</p>}
    </section>
  );
}
