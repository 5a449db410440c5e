// A plain table: a heading for each column, and rows of texts and figures.

import type { ComponentChildren } from "preact";

/** A column's heading; numbers stand right, reasons may take several lines. */
export type Column = string | [heading: string, kind: "number" | "why"];

/** `data` is for tests: attributes of the row. */
export interface TableRow { key: string; data?: Record<string, string>; cells: ComponentChildren[] }

export function PlainTable({ columns, rows, none }: { columns: Column[]; rows: TableRow[]; /** What stands there without rows. */ none: string }) {
  const kind = (column: Column | undefined) => (Array.isArray(column) ? column[1] : "");
  return (
    <div class="scroll">
      <table class="plain">
        <thead><tr>{columns.map((column, i) => <th key={i} class={kind(column)}>{Array.isArray(column) ? column[0] : column}</th>)}</tr></thead>
        <tbody>
          {rows.map(({ key, data, cells }) => <tr key={key} {...data}>{cells.map((cell, i) => <td key={i} class={kind(columns[i])}>{cell}</td>)}</tr>)}
          {rows.length === 0 && <tr><td colSpan={columns.length} class="none">{none}</td></tr>}
        </tbody>
      </table>
    </div>
  );
}

/** Something goes from one to another: the other's cell. */
export const to = (name: string): ComponentChildren => <><span aria-hidden="true">→ </span>{name}</>;
