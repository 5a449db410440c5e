// Topics by brokers: what each has of each.

import { useState } from "preact/hooks";
import { formatCount, formatDelay, formatPercent, formatRate } from "./format";
import { type CellDetail, HeatMap } from "./heat_map";
import { cellOf, type Figure, figures, marks, type Node, partOf, type Placement, sayCell, signed, type Topic } from "./placement_model";

export function PlacementMap({ placement: { topics, nodes }, chosen, onTopic }: { placement: Placement; chosen: string; onTopic: (name: string) => void }) {
  const [figure, setFigure] = useState<Figure>("share");
  const rows = topics.map(({ name }) => ({
    key: name,
    data: { "data-topic": name },
    head: <th scope="row" class="name" title={name}><button type="button" aria-pressed={name === chosen} onClick={() => onTopic(name)}>{name}</button></th>,
  }));
  const columns = nodes.map(({ name, state }) => ({
    key: name,
    data: { "data-node": name },
    head: <th key={name} scope="col" title={`${name}: ${state}`}>{name}{state !== "ready" && <span class="mark warn">{state}</span>}</th>,
  }));
  const at = (r: number, c: number) => ({ topic: topics[r]!, node: nodes[c]!, part: partOf(topics[r]!, nodes[c]!.name) });
  return (
    <HeatMap title="Topics by brokers" about="What each broker has of each topic" corner="Topic" rows={rows} columns={columns} row={chosen}
      cell={(r, c) => {
        const { topic, node, part } = at(r, c);
        const { heat, text } = cellOf(topic, part, figure);
        return { heat, text, sign: marks[heat], said: sayCell(topic, node.name, part) };
      }}
      detail={(r, c) => detailOf(at(r, c).topic, at(r, c).node)}
      onPick={(r) => onTopic(topics[r]!.name)}>
      <p class="hint heat-keys" aria-hidden="true">
        <span class="low">some</span><span class="busy">a third</span><span class="full">most</span><span class="over">{marks.over} beyond the objective</span>
      </p>
      <label class="hint">Show{" "}
        <select data-testid="figure" value={figure} onChange={(event) => setFigure(event.currentTarget.value as Figure)}>
          {figures.map(([each, title]) => <option key={each} value={each}>{title}</option>)}
        </select>
      </label>
    </HeatMap>
  );
}

function detailOf(topic: Topic, node: Node): CellDetail {
  const part = partOf(topic, node.name);
  const room: [string, string] = ["room", `${formatRate(Math.max(0, node.mcap_per_s - node.allocated_per_s))}/s of ${formatRate(node.mcap_per_s)}/s${node.mcap_from === "assumed" ? ", assumed" : ""}`];
  const title = `${topic.name} on ${node.name}`;
  if (part === undefined) return { title, values: [["has", "nothing"], room] };
  const seen = (us: number) => (part.measured.messages === 0 ? "–" : formatDelay(us));
  return {
    title,
    values: [
      ["publishers", `${formatCount(part.publishers)}, ${formatPercent(100 * part.share)}`],
      ["part", `${formatRate(part.limit_rate_per_s)}/s, burst ${formatCount(part.limit_burst)}${part.in_force ? "" : ", not in force"}`],
      ["sends", `${formatRate(part.rate_per_s)}/s`],
      ["p99", seen(part.measured.delay_us_p99)],
      ["for tokens", seen(part.measured.access_us_p99)],
      ["penalty", part.penalty_us_p99 === null ? "–" : signed(part.penalty_us_p99)],
      ["largest backlog", formatCount(part.backlog_max)],
      ...(part.missing.length === 0 ? [] : [["no consumer of", part.missing.join(", ")] satisfies [string, string]]),
      room,
    ],
  };
}
