// A sentence that is spoken when it changes, at most every few seconds.

import { useEffect, useRef, useState } from "preact/hooks";

export function Spoken({ text }: { text: string }) {
  const [shown, setShown] = useState(text);
  const newest = useRef(text);
  newest.current = text;
  useEffect(() => {
    const timer = setInterval(() => setShown(newest.current), 4_000);
    return () => clearInterval(timer);
  }, []);
  return <p class="verdict" aria-live="polite">{shown}</p>;
}
