// The slider and the button of every demo: the load that it is to offer, and a spike.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { post, type Problem } from "./api";

/** Which loads the slider stands for. */
export interface Slider {
  min: number;
  max: number;
  step: number;
  positionOf: (load: number) => number;
  loadAt: (position: number) => number;
}

/** A slider whose positions are the loads themselves. */
export const plainSlider = (min: number, max: number, step: number): Slider =>
  ({ min, max, step, positionOf: (load) => load, loadAt: (position) => position });

export function LoadControls({ label, load: reported, spike, slider, format, hint, spoken, marks, spikeTitle = "" }: {
  label: string;
  /** What the demo says that it offers, without a spike. */
  load: number;
  spike: boolean;
  slider: Slider;
  format: (load: number) => string;
  /** What the figure is of. */
  hint: string;
  /** The load in words, for whoever hears the page. */
  spoken: (load: number) => string;
  /** Marks below the slider; not spoken. */
  marks: ComponentChildren;
  spikeTitle?: string;
}) {
  // What the hand holds wins over what the demo reports, until the demo has caught up.
  const [held, setHeld] = useState<number | null>(null);
  const [error, setError] = useState("");
  const timer = useRef(0);
  const load = held ?? reported;
  useEffect(() => {
    if (held !== null && Math.abs(held - reported) < 1e-6) setHeld(null);
  }, [held, reported]);
  const send = (path: string, body: unknown) =>
    post(path, body).then(() => setError(""), (problem: Problem) => {
      setError(problem.message);
      setHeld(null);
    });
  const drag = (position: number) => {
    const value = slider.loadAt(position);
    setHeld(value);
    clearTimeout(timer.current);
    // Ten a second follow the hand well enough.
    timer.current = window.setTimeout(() => void send("demo/load", { load: value }), 100);
  };
  return (
    <div class="demo-controls">
      <div class="load">
        <label for="load">{label} <output for="load">{format(load)}</output> <span class="hint">{hint}</span></label>
        <input id="load" type="range" min={slider.min} max={slider.max} step={slider.step} value={slider.positionOf(load)}
          aria-valuetext={spoken(load)} onInput={(event) => drag(Number(event.currentTarget.value))} />
        {marks}
      </div>
      <button type="button" class="spike" aria-pressed={spike} disabled={spike} title={spikeTitle} onClick={() => void send("demo/spike", {})}>
        {spike ? "Spiking …" : "Spike"}
      </button>
      <p class="error" role="alert">{error}</p>
    </div>
  );
}
