// A map of rows by columns in colours, figures and signs. Arrow keys walk it, Enter or a click picks a cell.

import type { ComponentChildren, VNode } from "preact";
import { useRef, useState } from "preact/hooks";

/** A row or a column. `data` goes to its cells, for tests and styles; `key` names it, as rows come, go and change places. */
export interface Line { key: string; head: VNode; data: Record<string, string> }

export interface HeatCell { heat: string; text: string; sign: string; /** The cell in a sentence. */ said: string }

/** Everything about the cell that the walk stands at. */
export interface CellDetail { title: string; values: [name: string, value: string][] }

interface Props {
  title: string;
  /** What a cell tells. */
  about: string;
  corner: string;
  rows: Line[];
  columns: Line[];
  /** Where the walk begins, by key. */
  row?: string;
  column?: string;
  cell: (row: number, column: number) => HeatCell;
  detail: (row: number, column: number) => CellDetail;
  onPick: (row: number, column: number) => void;
  /** What stands above the map. */
  children: ComponentChildren;
}

const steps: Record<string, [down: number, right: number]> = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity],
};

export function HeatMap({ title, about, corner, rows, columns, row, column, cell, detail, onPick, children }: Props) {
  const [spot, setSpot] = useState<{ row?: string; column?: string }>({});
  const table = useRef<HTMLTableElement>(null);
  const place = (lines: Line[], key: string | undefined) => Math.max(0, lines.findIndex((line) => line.key === key));
  const [atRow, atColumn] = [place(rows, spot.row ?? row), place(columns, spot.column ?? column)];

  const walk = (event: KeyboardEvent) => {
    if ((event.target as Element).closest("td") === null) return;
    const step = steps[event.key];
    const isPick = event.key === "Enter" || event.key === " ";
    if (step === undefined && !isPick) return;
    event.preventDefault();
    if (step === undefined) return onPick(atRow, atColumn);
    const within = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
    const [down, right] = [within(atRow + step[0], rows.length), within(atColumn + step[1], columns.length)];
    // The heading's row and column come first in the table.
    (table.current?.rows[down + 1]?.cells[right + 1] as HTMLElement | undefined)?.focus();
  };

  const shown = rows.length > 0 && columns.length > 0 ? detail(atRow, atColumn) : null;
  return (
    <section class="heat" aria-label={title}>
      <div class="heat-bar">{children}</div>
      <div class="scroll">
        <table ref={table} role="grid" aria-label={about} onKeyDown={walk}>
          <thead><tr><th scope="col" class="name">{corner}</th>{columns.map(({ head }) => head)}</tr></thead>
          <tbody>
            {rows.map((line, r) => (
              <tr key={line.key} {...line.data}>
                {line.head}
                {columns.map(({ key, data }, c) => {
                  const { heat, text, sign, said } = cell(r, c);
                  return (
                    <td key={key} class={heat} role="gridcell" tabIndex={r === atRow && c === atColumn ? 0 : -1} aria-label={said} {...data}
                      onFocus={() => setSpot({ row: line.key, column: key })} onClick={() => onPick(r, c)}>
                      {text}<span class="sign">{sign}</span>
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {shown !== null && (
        <p class="heat-detail" data-testid="heat-detail">
          <strong>{shown.title}</strong>
          {shown.values.map(([name, value]) => <span key={name}>{name} <b>{value}</b></span>)}
        </p>
      )}
    </section>
  );
}
