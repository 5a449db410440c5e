// One of two sides that are compared: is it harmed, its two large figures, and a line about the other one.

import type { ComponentChildren } from "preact";

export interface LargeFigure { name: string; value: string; bad: boolean; hint: string }

export function SideFigures({ title, large, children }: { title: string; large: LargeFigure[]; children: ComponentChildren }) {
  return (
    <div class="side-figures">
      <h2>{title}</h2>
      <p class="state">{large.some(({ bad }) => bad) ? "✕ harmed" : "✓ unharmed"}</p>
      <dl class="large">
        {large.map(({ name, value, bad, hint }) => (
          <div key={name} class={bad ? "bad" : "good"}>
            <dt>{name}</dt>
            <dd>{value}</dd>
            <dd class="hint">{hint}</dd>
          </div>
        ))}
      </dl>
      <p class="noisy">{children}</p>
    </div>
  );
}
