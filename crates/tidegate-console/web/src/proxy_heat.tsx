// Tenants by resources: how much of its share each uses. A picked cell shows its resource's shares.

import { useState } from "preact/hooks";
import { formatCount } from "./format";
import { type CellDetail, HeatMap } from "./heat_map";
import {
  type Cell, marks, type Order, ordered, type Proxy, type Resource, sayCell, type Tenant, warmthOf, wordsOf,
} from "./proxy_model";

/** A row of the map: everybody, a tenant, or those without a row of their own. */
interface Line { key: string; title: string; lane: string; cells: Map<string, Cell> }

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

export function TenantMap({ proxy, resource, onResource }: { proxy: Proxy; resource: string; onResource: (name: string) => void }) {
  const [order, setOrder] = useState<Order>("busy");
  const { resources } = proxy;
  const lines = linesOf(proxy, order);
  const rows = lines.map(({ key, title, lane }) => ({
    key,
    data: { class: key === "*all" ? "all" : key === "*rest" ? "rest" : "", "data-tenant": key.startsWith("=") ? title : key },
    head: <th scope="row" class="name" title={title}>{title}{lane === "overflow" && <span class="mark warn">overflow</span>}</th>,
  }));
  const columns = resources.map(({ name }) => ({
    key: name,
    data: { "data-resource": name },
    head: (
      <th key={name} scope="col" aria-selected={name === resource}>
        <button type="button" title={`Show the shares of ${wordsOf(name).title}`} aria-pressed={name === resource} onClick={() => onResource(name)}>
          <span>{wordsOf(name).short}</span>
        </button>
      </th>
    ),
  }));
  return (
    <HeatMap title="Tenants by resources" about="How much of its share each tenant uses of each resource, in percent" corner="Tenant"
      rows={rows} columns={columns} column={resource}
      cell={(r, c) => {
        const cell = lines[r]!.cells.get(resources[c]!.name);
        const { heat, text } = warmthOf(cell, resources[c]!);
        return { heat, text, sign: marks[heat], said: sayCell(lines[r]!.title, cell, resources[c]!) };
      }}
      detail={(r, c) => detailOf(lines[r]!, resources[c]!)}
      onPick={(_, c) => onResource(resources[c]!.name)}>
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
    </HeatMap>
  );
}

function detailOf(line: Line, resource: Resource): CellDetail {
  const cell = line.cells.get(resource.name);
  const { title, amount, missing } = wordsOf(resource.name);
  const values: CellDetail["values"] = cell === undefined ? [["used", "nothing"]]
    : line.key === "*all" ? [["used", amount(cell.used)], ["capacity", resource.capacity !== null ? amount(resource.capacity) : missing], ["free for whoever needs it", amount(resource.global)]]
    : [
      ["wants", amount(cell.demand)], ["share", amount(cell.share)], ["used", amount(cell.used)], ["from the overflow", amount(cell.overflow)], ["lends", amount(cell.lent)],
      ["refused over its share", formatCount(cell.refused_share)], ["refused, all full", formatCount(cell.refused_full)],
    ];
  return { title: `${line.title}, ${title}`, values };
}
