//! A service with the layer beside the same service without it, or with another limit, in alternation: the host's speed
//! cancels.
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

use crate::load::{Caller, Callers, Control, Kind, Outcome, connect_to, micros, quantiles};

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
    /// The server without, or with what it is compared with.
    #[arg(long)]
    bare: String,
    /// What stands behind the callers of that one.
    #[arg(long, value_enum, default_value_t = Control::None)]
    bare_control: Control,
    /// Share of the calls that are reports, which wait for 2 s. They are not among the calls that count.
    #[arg(long, default_value_t = 0.0)]
    reports: f64,
    /// Deadline of the others.
    #[arg(long)]
    deadline_ms: Option<u64>,
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
    entered: Instant,
    at: Instant,
    outcome: Outcome,
    is_report: bool,
}

/// What came of one slice, or of several.
struct Slice {
    offered: u64,
    good: u64,
    failed: u64,
    met_gap: u64,
    /// Calls that were served, those that met a gap too.
    answered: u64,
    reports: u64,
    reports_served: u64,
    /// From the first call to the end of the last that was served.
    span: Duration,
    served_us: Histogram<u64>,
    shed_here_us: Histogram<u64>,
    shed_there_us: Histogram<u64>,
}

impl Slice {
    fn new() -> Self {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 3).expect("these bounds are possible");
        Self {
            offered: 0,
            good: 0,
            failed: 0,
            met_gap: 0,
            answered: 0,
            reports: 0,
            reports_served: 0,
            span: Duration::ZERO,
            served_us: histogram(),
            shed_here_us: histogram(),
            shed_there_us: histogram(),
        }
    }

    fn count(&mut self, end: &End, start: Instant, met_gap: bool, slo_us: u64) {
        let is_served = end.outcome == Outcome::Served;
        if end.is_report {
            self.reports_served += u64::from(is_served && !met_gap);
            return;
        }
        if is_served {
            self.answered += 1;
            self.span = self.span.max(end.at.since(start));
        }
        if met_gap {
            self.met_gap += 1;
            return;
        }
        let us = micros(end.at, end.intended);
        match end.outcome {
            Outcome::Served => {
                self.good += u64::from(us <= slo_us);
                self.served_us.saturating_record(us);
            }
            // From the entry into the layer: what the layer adds.
            Outcome::ShedHere => self.shed_here_us.saturating_record(micros(end.at, end.entered)),
            Outcome::ShedThere => self.shed_there_us.saturating_record(us),
            Outcome::Failed => self.failed += 1,
        }
    }

    fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.good += other.good;
        self.failed += other.failed;
        self.met_gap += other.met_gap;
        self.answered += other.answered;
        self.reports += other.reports;
        self.reports_served += other.reports_served;
        self.span += other.span;
        let histograms = [
            (&mut self.served_us, &other.served_us),
            (&mut self.shed_here_us, &other.shed_here_us),
            (&mut self.shed_there_us, &other.shed_there_us),
        ];
        for (all, part) in histograms {
            all.add(part).expect("the bounds are the same");
        }
    }

    fn shed(&self) -> u64 {
        self.shed_here_us.len() + self.shed_there_us.len()
    }

    /// All answers, by the share of those in time among the ones that met no gap: answered calls take longer than refused
    /// ones and meet more gaps.
    fn goodput(&self) -> f64 {
        to_f64(self.answered) * to_f64(self.good) / to_f64(self.served_us.len().max(1))
    }

    fn counts(&self) -> bool {
        to_f64(self.met_gap) <= MET_MOST * to_f64(self.offered)
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().event_interval(8).build();
    let runtime = runtime.expect("the system gives a runtime");
    LocalSet::new().block_on(&runtime, async {
        let ours = connect_to(&options.addr, &options.callers, options.callers.control).await?;
        let bare = connect_to(&options.bare, &options.callers, options.bare_control).await?;
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
    let (mut intended, mut behind) = (start, 0_u32);
    let mut slice = Slice::new();
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
        let is_report = options.reports > 0.0 && rng.chance(options.reports);
        *(if is_report { &mut slice.reports } else { &mut slice.offered }) += 1;
        let deadline = options.deadline_ms.filter(|_| !is_report).map(Duration::from_millis);
        open.set(open.get() + 1);
        let index = usize::try_from(rng.below(callers.len() as u64)).expect("below a usize");
        let (mut caller, ends, open) = (callers[index].clone(), Rc::clone(&ends), Rc::clone(&open));
        tokio::task::spawn_local(async move {
            let entered = clock::now();
            let result = caller.call(Bytes::from_static(&[0; 32]), Kind { is_report, deadline }).await;
            let outcome = Outcome::of(&result);
            ends.borrow_mut().push(End { intended, entered, at: clock::now(), outcome, is_report });
            open.set(open.get() - 1);
        });
    }
    let patience = until + PATIENCE;
    while open.get() > 0 && look(&mut gaps) < patience {
        tokio::task::yield_now().await;
    }
    for end in ends.borrow().iter() {
        let met_gap = gaps.iter().any(|(from, to)| end.intended <= *to && end.at >= *from);
        slice.count(end, start, met_gap, options.callers.slo_us);
    }
    slice
}

#[expect(clippy::cast_precision_loss, reason = "counts of calls")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

/// Everything of one address in some pairs.
fn pool(pairs: &[Vec<Slice>], which: usize) -> Slice {
    let mut all = Slice::new();
    for slice in pairs.iter().map(|pair| &pair[which]) {
        all.add(slice);
    }
    all
}

fn report(pairs: &[Vec<Slice>], dropped: u32) -> Value {
    let ratio = |pairs: &[Vec<Slice>], of: fn(&Slice) -> f64| of(&pool(pairs, 1)) / of(&pool(pairs, 0)).max(1e-9);
    let goodput = |slice: &Slice| slice.goodput() / to_f64(slice.offered.max(1));
    let p99 = |slice: &Slice| to_f64(slice.served_us.value_at_quantile(0.99));
    let p50 = |slice: &Slice| to_f64(slice.served_us.value_at_quantile(0.5));
    let parts = |of: fn(&Slice) -> f64| -> Vec<f64> {
        pairs.chunks(pairs.len().div_ceil(PARTS).max(1)).map(|part| ratio(part, of)).collect()
    };
    let [bare, ours] = [pool(pairs, 0), pool(pairs, 1)];
    let side = |slice: &Slice| {
        json!({
            "offered": slice.offered, "good": slice.good, "shed": slice.shed(), "met_gap": slice.met_gap,
            "failed": slice.failed, "served": slice.served_us.len(),
            "us_p50": p50(slice), "us_p99": p99(slice), "us_max": slice.served_us.max(),
            "shed_here": quantiles(&slice.shed_here_us), "shed_there": quantiles(&slice.shed_there_us),
            "reports": slice.reports, "reports_served": slice.reports_served,
            // What was begun in a slice ends after it: over the time in which it did.
            "good_per_s": slice.goodput() / slice.span.as_secs_f64().max(1e-9),
        })
    };
    json!({
        "pairs": pairs.len(), "dropped": dropped, "bare": side(&bare), "ours": side(&ours),
        "shed_share": to_f64(ours.shed()) / to_f64((ours.offered - ours.met_gap).max(1)),
        "goodput": ratio(pairs, goodput), "goodput_parts": parts(goodput),
        "p99": ratio(pairs, p99), "p99_parts": parts(p99),
    })
}
