//! A service with the layer beside the same service without it, in alternation: the host's speed cancels.
//!
//! Slices of open-loop load go to one address and to the other by turns, drained between. A clock that the generator
//! never stops reading shows when the host took its core away: calls that met such a gap are counted apart, and a slice
//! in which too many did is dropped.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;
use tokio::task::LocalSet;
use tonic::transport::Error;

use crate::load::{Caller, Callers, Control, connect_to};

/// Between two looks at the clock; more is a gap.
const GAP: Duration = Duration::from_millis(1);
/// Share of a slice's calls that may have met one.
const MET_MOST: f64 = 0.1;
/// The longest wait for the last answers of a slice.
const PATIENCE: Duration = Duration::from_secs(10);
/// Calls in a row that a generator which is late may make before the connections are looked after.
const BURST: u32 = 8;
/// Parts of all pairs, each of which tells a quantile of its own.
const PARTS: usize = 5;

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// The server with the layer.
    #[arg(long)]
    addr: String,
    /// The server without.
    #[arg(long)]
    bare: String,
    /// Calls per second.
    #[arg(long)]
    rate: f64,
    /// Pairs of slices that count.
    #[arg(long, default_value_t = 20)]
    pairs: usize,
    /// Pairs before them.
    #[arg(long, default_value_t = 4)]
    warm_up: usize,
    /// Length of a slice.
    #[arg(long, default_value_t = 250)]
    slice_ms: u64,
    #[command(flatten)]
    callers: Callers,
}

/// How a call ended, and when.
#[derive(Clone, Copy)]
struct End {
    intended: Instant,
    at: Instant,
    served: bool,
}

/// What came of one slice.
struct Slice {
    offered: u64,
    good: u64,
    served: Histogram<u64>,
    shed: u64,
    met_gap: u64,
}

impl Slice {
    fn counts(&self) -> bool {
        to_f64(self.met_gap) <= MET_MOST * to_f64(self.offered)
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().event_interval(8).build();
    let runtime = runtime.expect("the system gives a runtime");
    LocalSet::new().block_on(&runtime, async {
        let ours = connect_to(&options.addr, &options.callers, options.callers.control).await?;
        let bare = connect_to(&options.bare, &options.callers, Control::None).await?;
        let (mut pairs, mut dropped) = (Vec::new(), 0_u32);
        let mut turn = 0;
        while pairs.len() < options.pairs && turn < options.warm_up + 3 * options.pairs {
            let rng = Rng::stream(options.callers.seed, turn as u64);
            let mut slices = Vec::new();
            for callers in if turn % 2 == 0 { [&bare, &ours] } else { [&ours, &bare] } {
                slices.push(slice(options, callers, rng.clone()).await);
            }
            if turn % 2 == 1 {
                slices.reverse();
            }
            turn += 1;
            if turn <= options.warm_up {
                continue;
            }
            if slices.iter().all(Slice::counts) { pairs.push(slices) } else { dropped += 1 }
        }
        writeln!(std::io::stdout(), "{}", report(&pairs, dropped)).expect("somebody reads the output");
        Ok(())
    })
}

/// One slice of load, and its answers.
async fn slice(options: &Options, callers: &[Caller], mut rng: Rng) -> Slice {
    let ends: Rc<RefCell<Vec<End>>> = Rc::default();
    let open = Rc::new(Cell::new(0_u64));
    let mut gaps: Vec<(Instant, Instant)> = Vec::new();
    let mut last = clock::now();
    let mut look = |gaps: &mut Vec<(Instant, Instant)>| {
        let now = clock::now();
        if now.since(last) > GAP {
            gaps.push((last, now));
        }
        last = now;
        now
    };
    let start = clock::now();
    let until = start + Duration::from_millis(options.slice_ms);
    let (mut intended, mut behind, mut offered) = (start, 0_u32, 0_u64);
    loop {
        intended += Duration::from_secs_f64(rng.exponential() / options.rate);
        if intended >= until {
            break;
        }
        while look(&mut gaps) < intended || behind >= BURST {
            behind = 0;
            tokio::task::yield_now().await;
        }
        behind += 1;
        offered += 1;
        open.set(open.get() + 1);
        let index = usize::try_from(rng.below(callers.len() as u64)).expect("below a usize");
        let (mut caller, ends, open) = (callers[index].clone(), Rc::clone(&ends), Rc::clone(&open));
        tokio::task::spawn_local(async move {
            let served = caller.call(Bytes::from_static(&[0; 32])).await.is_ok();
            ends.borrow_mut().push(End { intended, at: clock::now(), served });
            open.set(open.get() - 1);
        });
    }
    let patience = until + PATIENCE;
    while open.get() > 0 && look(&mut gaps) < patience {
        tokio::task::yield_now().await;
    }
    let mut slice = Slice {
        offered,
        good: 0,
        served: Histogram::new_with_bounds(1, 60_000_000, 3).expect("these bounds are possible"),
        shed: 0,
        met_gap: 0,
    };
    for end in ends.borrow().iter() {
        if gaps.iter().any(|(from, to)| end.intended <= *to && end.at >= *from) {
            slice.met_gap += 1;
        } else if end.served {
            let us = end.at.nanos_since(end.intended).div_ceil(1_000);
            slice.good += u64::from(us <= options.callers.slo_us);
            slice.served.saturating_record(us);
        } else {
            slice.shed += 1;
        }
    }
    slice
}

#[expect(clippy::cast_precision_loss, reason = "counts of calls")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

/// Everything of one address in some pairs.
fn pool(pairs: &[Vec<Slice>], which: usize) -> Slice {
    let mut all = Slice {
        offered: 0,
        good: 0,
        served: Histogram::new_with_bounds(1, 60_000_000, 3).expect("these bounds are possible"),
        shed: 0,
        met_gap: 0,
    };
    for slice in pairs.iter().map(|pair| &pair[which]) {
        all.offered += slice.offered;
        all.good += slice.good;
        all.shed += slice.shed;
        all.met_gap += slice.met_gap;
        all.served.add(&slice.served).expect("the bounds are the same");
    }
    all
}

fn report(pairs: &[Vec<Slice>], dropped: u32) -> Value {
    let ratio = |pairs: &[Vec<Slice>], of: fn(&Slice) -> f64| of(&pool(pairs, 1)) / of(&pool(pairs, 0)).max(1e-9);
    let goodput = |slice: &Slice| to_f64(slice.good) / to_f64((slice.offered - slice.met_gap).max(1));
    let p99 = |slice: &Slice| to_f64(slice.served.value_at_quantile(0.99));
    let p50 = |slice: &Slice| to_f64(slice.served.value_at_quantile(0.5));
    let parts = |of: fn(&Slice) -> f64| -> Vec<f64> {
        pairs.chunks(pairs.len().div_ceil(PARTS).max(1)).map(|part| ratio(part, of)).collect()
    };
    let [bare, ours] = [pool(pairs, 0), pool(pairs, 1)];
    let side = |slice: &Slice| {
        json!({
            "offered": slice.offered, "good": slice.good, "shed": slice.shed, "met_gap": slice.met_gap,
            "served": slice.served.len(), "us_p50": p50(slice), "us_p99": p99(slice), "us_max": slice.served.max(),
        })
    };
    json!({
        "pairs": pairs.len(), "dropped": dropped, "bare": side(&bare), "ours": side(&ours),
        "shed_share": to_f64(ours.shed) / to_f64((ours.offered - ours.met_gap).max(1)),
        "goodput": ratio(pairs, goodput), "goodput_parts": parts(goodput),
        "p99": ratio(pairs, p99), "p99_parts": parts(p99),
    })
}
