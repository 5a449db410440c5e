// Topics by brokers: what each has of each. Arrow keys walk it, Enter or a click chooses a topic.

import { useRef, useState } from "preact/hooks";
import { formatCount, formatDelay, formatPercent, formatRate } from "./format";
import { cellOf, type Figure, figures, marks, type Node, partOf, type Placement, sayCell, signed, type Topic } from "./placement_model";

/** Where the walk stands: by name, as rows come and go. */
interface Spot { topic: string; node: string }

const steps: Record<string, [down: number, right: number]> = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity],
};

export function PlacementMap({ placement, chosen, onTopic }: { placement: Placement; chosen: string; onTopic: (name: string) => void }) {
  const [figure, setFigure] = useState<Figure>("share");
  const [spot, setSpot] = useState<Spot | null>(null);
  const table = useRef<HTMLTableElement>(null);
  const { topics, nodes } = placement;
  const row = Math.max(0, topics.findIndex(({ name }) => name === (spot?.topic ?? chosen)));
  const column = Math.max(0, nodes.findIndex(({ name }) => name === spot?.node));

  const walk = (event: KeyboardEvent) => {
    if ((event.target as Element).closest("td") === null) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const name = topics[row]?.name;
      if (name !== undefined) onTopic(name);
    }
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const within = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
    const [down, right] = [within(row + step[0], topics.length), within(column + step[1], nodes.length)];
    // The heading's row and column come first in the table.
    (table.current?.rows[down + 1]?.cells[right + 1] as HTMLElement | undefined)?.focus();
  };

  const [topic, node] = [topics[row], nodes[column]];
  return (
    <section class="heat" aria-label="Topics by brokers">
      <div class="heat-bar">
        <p class="hint heat-keys" aria-hidden="true">
          <span class="low">some</span><span class="busy">a third</span><span class="full">most</span><span class="over">{marks.over} beyond the objective</span>
        </p>
        <label class="hint">Show{" "}
          <select data-testid="figure" value={figure} onChange={(event) => setFigure(event.currentTarget.value as Figure)}>
            {figures.map(([each, title]) => <option key={each} value={each}>{title}</option>)}
          </select>
        </label>
      </div>
      <div class="scroll">
        <table ref={table} role="grid" aria-label="What each broker has of each topic" onKeyDown={walk}>
          <thead>
            <tr>
              <th scope="col" class="name">Topic</th>
              {nodes.map((each) => <th key={each.name} scope="col" title={`${each.name}: ${each.state}`}>{each.name}{each.state !== "ready" && <span class="mark warn">{each.state}</span>}</th>)}
            </tr>
          </thead>
          <tbody>
            {topics.map((each, r) => (
              <tr key={each.name} data-topic={each.name}>
                <th scope="row" class="name" title={each.name}>
                  <button type="button" aria-pressed={each.name === chosen} onClick={() => onTopic(each.name)}>{each.name}</button>
                </th>
                {nodes.map(({ name }, c) => {
                  const part = partOf(each, name);
                  const { heat, text } = cellOf(each, part, figure);
                  return (
                    <td key={name} class={heat} role="gridcell" tabIndex={r === row && c === column ? 0 : -1} data-node={name} aria-label={sayCell(each, name, part)}
                      onFocus={() => setSpot({ topic: each.name, node: name })} onClick={() => onTopic(each.name)}>
                      {text}<span class="sign">{marks[heat]}</span>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {topic !== undefined && node !== undefined && <Detail topic={topic} node={node} />}
    </section>
  );
}

/** Everything about the cell that the walk stands at. */
function Detail({ topic, node }: { topic: Topic; node: Node }) {
  const part = partOf(topic, node.name);
  const room: [string, string] = ["room", `${formatRate(Math.max(0, node.mcap_per_s - node.allocated_per_s))}/s of ${formatRate(node.mcap_per_s)}/s${node.mcap_from === "assumed" ? ", assumed" : ""}`];
  const values: [string, string][] = part === undefined ? [["has", "nothing"], room] : [
    ["publishers", `${formatCount(part.publishers)}, ${formatPercent(100 * part.share)}`],
    ["part", `${formatRate(part.limit_rate_per_s)}/s, burst ${formatCount(part.limit_burst)}${part.in_force ? "" : ", not in force"}`],
    ["sends", `${formatRate(part.rate_per_s)}/s`],
    ["p99", part.measured.messages === 0 ? "–" : formatDelay(part.measured.delay_us_p99)],
    ["for tokens", part.measured.messages === 0 ? "–" : formatDelay(part.measured.access_us_p99)],
    ["penalty", part.penalty_us_p99 === null ? "–" : signed(part.penalty_us_p99)],
    ["largest backlog", formatCount(part.backlog_max)],
    room,
  ];
  return (
    <p class="heat-detail" data-testid="heat-detail">
      <strong>{topic.name} on {node.name}</strong>
      {values.map(([name, value]) => <span key={name}>{name} <b>{value}</b></span>)}
    </p>
  );
}
