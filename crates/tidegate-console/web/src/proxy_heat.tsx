// Tenants by resources: how much of its share each uses. Arrow keys walk it, Enter or a click shows a resource's shares.

import { useRef, useState } from "preact/hooks";
import { formatCount } from "./format";
import {
  type Cell, marks, type Order, ordered, type Proxy, type Resource, sayCell, type Tenant, warmthOf, wordsOf,
} from "./proxy_model";

/** A row of the map: everybody, a tenant, or those without a row of their own. */
interface Line { key: string; title: string; lane: string; cells: Map<string, Cell> }

/** Where the walk stands: by name, as rows come, go and change places. */
interface Spot { line: string; resource: string }

const byName = (cells: Cell[]) => new Map(cells.map((cell) => [cell.name, cell]));

/** Everybody's use, held against the capacity. */
function everybody(resources: Resource[]): Line {
  const nothing = { demand: 0, share: 0, overflow: 0, lent: 0, refused_share: 0, refused_full: 0, refused_share_per_s: 0, refused_full_per_s: 0 };
  return { key: "*all", title: "All together", lane: "", cells: byName(resources.map(({ name, used }) => ({ ...nothing, name, used }))) };
}

function linesOf(proxy: Proxy, order: Order): Line[] {
  const own = ({ name, lane, resources }: Tenant): Line => ({ key: `=${name}`, title: name, lane, cells: byName(resources) });
  const { rest } = proxy;
  const others: Line[] = rest === null ? [] : [{ key: "*rest", title: `${formatCount(rest.tenants)} others`, lane: "", cells: byName(rest.resources) }];
  return [everybody(proxy.resources), ...ordered(proxy, order).map(own), ...others];
}

const steps: Record<string, [down: number, right: number]> = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity],
};

export function HeatMap({ proxy, resource, onResource }: { proxy: Proxy; resource: string; onResource: (name: string) => void }) {
  const [order, setOrder] = useState<Order>("busy");
  const [spot, setSpot] = useState<Spot | null>(null);
  const table = useRef<HTMLTableElement>(null);
  const { resources } = proxy;
  const lines = linesOf(proxy, order);
  const row = Math.max(0, lines.findIndex(({ key }) => key === spot?.line));
  const column = Math.max(0, resources.findIndex(({ name }) => name === (spot?.resource ?? resource)));

  const walk = (event: KeyboardEvent) => {
    const step = steps[event.key];
    const inCell = (event.target as Element).closest("td") !== null;
    if (!inCell) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const name = resources[column]?.name;
      if (name !== undefined) onResource(name);
    }
    if (step === undefined) return;
    event.preventDefault();
    const within = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
    const [down, right] = [within(row + step[0], lines.length), within(column + step[1], resources.length)];
    // The heading's row comes first in the table.
    (table.current?.rows[down + 1]?.cells[right + 1] as HTMLElement | undefined)?.focus();
  };

  const spotted = lines[row];
  const under = resources[column];
  return (
    <section class="heat" aria-label="Tenants by resources">
      <div class="heat-bar">
        <p class="hint heat-keys" aria-hidden="true">
          Percent of the share in use: <span class="low">some</span><span class="busy">half</span><span class="full">nearly all</span>
          <span class="over">{marks.over} beyond it</span><span class="refused">{marks.refused} refused now</span>
          <span class="unlimited">not limited: the amount</span>
        </p>
        <label class="hint">Order{" "}
          <select value={order} onChange={(event) => setOrder(event.currentTarget.value as Order)}>
            <option value="busy">busiest first</option>
            <option value="name">by name</option>
          </select>
        </label>
      </div>
      <div class="scroll">
        <table ref={table} role="grid" aria-label="How much of its share each tenant uses of each resource, in percent" onKeyDown={walk}>
          <thead>
            <tr>
              <th scope="col" class="name">Tenant</th>
              {resources.map(({ name }) => (
                <th key={name} scope="col" aria-selected={name === resource}>
                  <button type="button" title={`Show the shares of ${wordsOf(name).title}`} aria-pressed={name === resource} onClick={() => onResource(name)}>
                    <span>{wordsOf(name).short}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {lines.map(({ key, title, lane, cells }, r) => (
              <tr key={key} class={key === "*all" ? "all" : key === "*rest" ? "rest" : ""} data-tenant={key.startsWith("=") ? title : key}>
                <th scope="row" class="name" title={title}>{title}{lane === "overflow" && <span class="mark warn">overflow</span>}</th>
                {resources.map((each, c) => {
                  const cell = cells.get(each.name);
                  const { heat, text } = warmthOf(cell, each);
                  return (
                    <td key={each.name} class={heat} role="gridcell" tabIndex={r === row && c === column ? 0 : -1} data-resource={each.name}
                      aria-label={sayCell(title, cell, each)}
                      onFocus={() => setSpot({ line: key, resource: each.name })}
                      onClick={() => onResource(each.name)}>
                      {text}<span class="sign">{marks[heat]}</span>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {spotted !== undefined && under !== undefined && <Detail line={spotted} resource={under} />}
    </section>
  );
}

/** Everything about the cell that the walk stands at. */
function Detail({ line, resource }: { line: Line; resource: Resource }) {
  const cell = line.cells.get(resource.name);
  const { title, amount, missing } = wordsOf(resource.name);
  const figures: [string, string][] = cell === undefined ? [["used", "nothing"]]
    : line.key === "*all" ? [["used", amount(cell.used)], ["capacity", resource.capacity !== null ? amount(resource.capacity) : missing], ["free for whoever needs it", amount(resource.global)]]
    : [
      ["wants", amount(cell.demand)], ["share", amount(cell.share)], ["used", amount(cell.used)], ["from the overflow", amount(cell.overflow)], ["lends", amount(cell.lent)],
      ["refused over its share", formatCount(cell.refused_share)], ["refused, all full", formatCount(cell.refused_full)],
    ];
  return (
    <p class="heat-detail" data-testid="heat-detail">
      <strong>{line.title}, {title}</strong>
      {figures.map(([name, value]) => <span key={name}>{name} <b>{value}</b></span>)}
    </p>
  );
}
