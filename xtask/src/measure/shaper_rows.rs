//! The bars of the shaper, one row each.

use super::rows::Row;
use super::{
    shaper_bounds, shaper_changes, shaper_cost, shaper_datagrams, shaper_rivals, shaper_shares, shaper_switch,
};

/// In the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row {
        issue: 22,
        name: "shaper baseline",
        bar: "plain HTB raises the round trip at least 10x",
        run: shaper_bounds::baseline,
    },
    Row {
        issue: 22,
        name: "shaper few flows",
        bar: "1 and 4 flows, 1 and 2 Gb/s: efficiency 98 %, srtt p99 200 us, 0 drops, Jain 0.98",
        run: shaper_bounds::few_flows,
    },
    Row {
        issue: 22,
        name: "shaper many flows",
        bar: "16 flows: efficiency 98 %, srtt p99 500 us at 1 Gb/s and 260 at 2, no stall above 5 ms",
        run: shaper_bounds::many_flows,
    },
    Row {
        issue: 22,
        name: "shaper isolation",
        bar: "16 flows, 1 Gb/s: requests p50 1.5x idle, p99 200 us, efficiency 98 %",
        run: shaper_bounds::isolation,
    },
    Row {
        issue: 22,
        name: "shaper slow isolation",
        bar: "16 flows, 100 Mb/s: requests p99 1 ms",
        run: shaper_bounds::slow_isolation,
    },
    Row {
        issue: 22,
        name: "shaper datagrams",
        bar: "with isolation neither TCP nor UDP waits in the other's queue: p99 1 ms",
        run: shaper_datagrams::datagrams,
    },
    Row {
        issue: 22,
        name: "shaper small fifo",
        bar: "lower p50 and p99 than HTB over the best bfifo, 0 drops, Jain 0.98",
        run: shaper_rivals::small_fifo,
    },
    Row {
        issue: 22,
        name: "shaper rivals",
        bar: "what else holds a rate, on the same network: reported, not judged",
        run: shaper_rivals::rivals,
    },
    Row {
        issue: 22,
        name: "shaper burst",
        bar: "16 flows write 64 kB to 1 MB at once: 0 drops, completion 1.1x plain HTB's",
        run: shaper_changes::burst,
    },
    Row {
        issue: 22,
        name: "shaper two limiters",
        bar: "efficiency 98 %, srtt p99 200 us, 0 drops, Jain 0.98 in each of two classes",
        run: shaper_shares::two_limiters,
    },
    Row {
        issue: 22,
        name: "shaper borrowing",
        bar: "the new share within 5 ms of a neighbour's first byte, and the same bounds",
        run: shaper_shares::borrowing,
    },
    Row {
        issue: 22,
        name: "shaper marked switch",
        bar: "the queue of a marking switch behind the limiter: 1.2x that of DCTCP in the guests; the limiter's bounds kept",
        run: shaper_switch::marked_switch,
    },
    Row {
        issue: 22,
        name: "shaper churn",
        bar: "1,000 short flows/s beside 4: no stall above 200 ms, none fails",
        run: shaper_changes::churn,
    },
    Row {
        issue: 22,
        name: "shaper kills",
        bar: "SIGKILL 100 times under load: 0 stalled flows, 0 programs left",
        run: shaper_changes::kills,
    },
    Row {
        issue: 22,
        name: "shaper cost",
        bar: "CPU per gigabit: 3x plain HTB's at 1 and 4 flows, 8x at 16; 400 ns a packet in the kernel's programs",
        run: shaper_cost::cost,
    },
];
