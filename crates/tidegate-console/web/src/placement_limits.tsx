// Limits of requests that proxies divide: who has which part, and what comes there.

import { formatCount, formatPercent, formatRate } from "./format";
import { type DividedLimit, dividedTrouble, dividedWords } from "./placement_model";
import { PlainTable } from "./plain_table";

export function DividedLimits({ limits }: { limits: DividedLimit[] }) {
  if (limits.length === 0) return null;
  return (
    <section aria-label="Limits over proxies" data-testid="divided">
      <h2>Limits over proxies</h2>
      {limits.map((limit) => <Divided key={limit.name} limit={limit} />)}
    </section>
  );
}

function Divided({ limit }: { limit: DividedLimit }) {
  const share = (rate: number) => (limit.rate_per_s > 0 ? formatPercent((100 * rate) / limit.rate_per_s) : "–");
  return (
    <div data-limit={limit.name}>
      <h3>{limit.name}</h3>
      <p class="hint">{dividedWords(limit)}</p>
      <PlainTable none="No proxy is declared."
        columns={["Proxy", ["Part", "number"], ["of the rate", "number"], ["burst", "number"], ["Requests/s", "number"], ["refused/s", "number"], ["Trouble", "why"]]}
        rows={limit.parts.map((part) => ({
          key: part.node,
          data: { "data-proxy": part.node },
          cells: [part.node, `${formatRate(part.limit_rate_per_s)}/s`, share(part.limit_rate_per_s), formatCount(part.limit_burst),
            formatRate(part.rate_per_s), formatRate(part.refused_per_s), dividedTrouble(part)],
        }))} />
    </div>
  );
}
