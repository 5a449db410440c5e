// A minute of offered and admitted rate, small.

import { memo } from "./memo";
import { type Spark, sparkPath } from "./series";

const [WIDTH, HEIGHT] = [84, 24];

/** Drawn once a second: `spark` is a new object when it has a new point. */
export const Sparkline = memo(({ spark }: { spark: Spark | undefined }) => {
  const { offered, admitted } = spark ?? { offered: [], admitted: [] };
  const max = Math.max(0, ...offered, ...admitted);
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} viewBox={`0 -1 ${WIDTH} ${HEIGHT + 2}`} aria-hidden="true">
      <path class="offered" d={sparkPath(offered, max, WIDTH, HEIGHT)} />
      <path class="admitted" d={sparkPath(admitted, max, WIDTH, HEIGHT)} />
    </svg>
  );
});
