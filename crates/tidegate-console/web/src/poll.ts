// Asks the console for the same thing again and again, while the page can be seen.

import { useEffect, useState } from "preact/hooks";
import { Problem, read } from "./api";

/** What was made of the answers so far, and why the newest one failed; an error goes with the next answer. */
export interface Polled<Seen> { seen: Seen | null; error: string }

/** Keeps an answer as it is. */
export const newest = <Answer>(_: Answer | null, answer: Answer): Answer => answer;

/**
 * Reads `path` of the console's API every `period_ms` and makes of each answer, and of what was made before, what is seen.
 * A slow answer puts the next request off: there is never more than one under way.
 */
export function usePolled<Answer, Seen>(path: string, period_ms: number, take: (last: Seen | null, answer: Answer) => Seen): Polled<Seen> {
  const [seen, setSeen] = useState<Seen | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let timer = 0;
    let gone = false;
    const ask = async () => {
      try {
        if (!document.hidden) {
          const answer = await read<Answer>(path);
          if (gone) return;
          setSeen((last) => take(last, answer));
          setError("");
        }
      } catch (problem) {
        if (!gone) setError(problem instanceof Problem ? problem.message : String(problem));
      }
      if (!gone) timer = window.setTimeout(ask, period_ms);
    };
    void ask();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [path, period_ms]);
  return { seen, error };
}
