//! Looks at the parts of all brokers while something happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use miette::Result;

use super::crew::{Broker, Part, Placed};
use crate::clock;

/// Between two looks.
const GLANCE: Duration = Duration::from_millis(100);
/// Wrong things that are told; more are as bad.
const TOLD_MAX: usize = 10;
/// Rates are divided without a remainder of a billionth.
const ROUNDING: f64 = 1e-6;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) glances: u64,
    /// Leases that had ended.
    pub(crate) lapsed: Vec<String>,
    /// Sums above the whole, and revisions that went back.
    pub(crate) unlawful: Vec<String>,
}

/// The one that looks, on a thread of its own.
#[derive(Debug)]
pub(super) struct Watching {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Watching {
    /// Looks at what `brokers` have of `placed` until it is told to stop.
    pub(super) fn start(brokers: &[Arc<Broker>], placed: Placed) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, brokers) = (Arc::clone(&stop), brokers.to_vec());
        let thread = std::thread::spawn(move || {
            let (mut seen, mut newest) = (Seen::default(), BTreeMap::new());
            while !told.load(Ordering::Relaxed) {
                if let Err(report) = seen.glance(&brokers, placed, &mut newest) {
                    seen.unlawful.push(report.to_string());
                }
                seen.lapsed.truncate(TOLD_MAX);
                seen.unlawful.truncate(TOLD_MAX);
                clock::rest(GLANCE);
            }
            seen
        });
        Self { stop, thread }
    }

    pub(super) fn finish(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it tells its errors")
    }
}

impl Seen {
    fn glance(&mut self, brokers: &[Arc<Broker>], placed: Placed, newest: &mut BTreeMap<String, u64>) -> Result<()> {
        let Some(parts) = at_once(brokers, placed)? else { return Ok(()) };
        self.glances += 1;
        for (broker, part) in brokers.iter().zip(&parts).filter_map(|(broker, part)| Some((broker, part.as_ref()?))) {
            if part.lapses_in.is_none() {
                self.lapsed.push(format!("the lease of {} at {}", part.topic, broker.name));
            }
            let before = newest.insert(broker.name.clone(), part.revision).unwrap_or(0);
            if part.revision < before {
                self.unlawful.push(format!("{} went from revision {before} to {}", broker.name, part.revision));
            }
        }
        // A part that has lapsed closed keeps its depth and lets nothing pass: its rate is zero.
        let in_force = || parts.iter().flatten().filter_map(|part| part.in_force).filter(|(rate, _)| *rate > 0.0);
        let (rate, burst) =
            (in_force().map(|(rate, _)| rate).sum::<f64>(), in_force().map(|(_, burst)| burst).sum::<u64>());
        if rate > f64::from(placed.rate_per_s) * (1.0 + ROUNDING) || burst > u64::from(placed.burst) {
            self.unlawful.push(format!("the parts of {} are {rate} messages/s and {burst} in all", placed.name));
        }
        Ok(())
    }
}

/// The part of each broker at one instant; `None` if they changed while they were read.
fn at_once(brokers: &[Arc<Broker>], placed: Placed) -> Result<Option<Vec<Option<Part>>>> {
    let read = || -> Result<Vec<Option<Part>>> {
        let one = |broker: &Arc<Broker>| Ok(broker.parts()?.into_iter().find(|part| part.topic == placed.name));
        brokers.iter().map(one).collect()
    };
    let (first, second) = (read()?, read()?);
    let same = |(a, b): (&Option<Part>, &Option<Part>)| match (a, b) {
        (Some(a), Some(b)) => (a.revision, a.in_force) == (b.revision, b.in_force),
        (None, None) => true,
        _ => false,
    };
    let stood = first.iter().zip(&second).all(same);
    Ok(stood.then_some(second))
}
