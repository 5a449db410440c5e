//! What is reported with `tracing`: changes of the server's state, a few a minute at most, however many calls are refused.

use core::time::Duration;

use tidegate_core::Instant;

use crate::io::layer::Mode;
use crate::machine::short::{Shortage, View};

/// The state is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a report there is none for so long: a load at the edge of the capacity may change the state each second.
const QUIET: Duration = Duration::from_secs(10);

/// What was reported last, and when to look again.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    next: Instant,
    last: Shortage,
}

/// A change that is worth a line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Change {
    /// What is short.
    Short {
        /// What was short before.
        before: Shortage,
        /// The state now.
        view: View,
        /// Whether verdicts are carried out.
        mode: Mode,
    },
    /// Verdicts are carried out from now on, or no longer.
    Mode(Mode),
}

impl Reporter {
    pub(crate) const fn new() -> Self {
        Self { next: Instant::ZERO, last: Shortage::Nothing }
    }

    /// Whether to [`Self::look`]: asked at every event of a call.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// What has changed since the last report.
    pub(crate) fn look(&mut self, view: Option<View>, mode: Mode, now: Instant) -> Option<Change> {
        self.next = now + LOOK_EVERY;
        let view = view?;
        if view.short.what == self.last {
            return None;
        }
        let before = core::mem::replace(&mut self.last, view.short.what);
        self.next = now + QUIET;
        Some(Change::Short { before, view, mode })
    }
}

impl Change {
    /// Tells it. Not to be called under a lock: a subscriber may write to a file.
    pub(crate) fn tell(&self) {
        match self {
            Self::Mode(Mode::DryRun) => tracing::info!("dry run: calls that would be refused are served and counted"),
            Self::Mode(Mode::Enforce) => tracing::info!("verdicts are carried out: calls may be refused"),
            Self::Short { before, view, mode } => {
                let View { short, gauges, .. } = view;
                let message = match (before, short.what) {
                    (_, Shortage::Nothing) => "calls are no longer held back",
                    (Shortage::Nothing, _) => "calls are held back",
                    _ => "what is short has changed",
                };
                tracing::info!(
                    short = short.what.word(),
                    before = before.word(),
                    why = %short,
                    idle_share = short.idle_share,
                    held_share = short.held_share,
                    queueing_delay_us = micros(short.queueing_delay),
                    objective_us = micros(short.objective),
                    in_flight = short.in_flight,
                    in_flight_limit = short.limit,
                    capacity_per_s = gauges.capacity_per_s,
                    supply_per_s = gauges.supply_per_s,
                    dry_run = *mode == Mode::DryRun,
                    "{message}"
                );
            }
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::credits::{Config, CreditServer};
    use crate::machine::{Server, Signal};

    fn view(what: Shortage) -> Option<View> {
        let server = CreditServer::new(Config::default(), 1, Instant::ZERO);
        let mut view = server.view(Signal::default(), Instant::ZERO)?;
        view.short.what = what;
        Some(view)
    }

    #[test]
    fn a_change_is_reported_once() {
        let (mut reporter, at) = (Reporter::new(), |s: u64| Instant::from_nanos(s * 1_000_000_000));
        assert_eq!(reporter.look(view(Shortage::Nothing), Mode::Enforce, at(1)), None);
        let Some(Change::Short { before, view: now, .. }) = reporter.look(view(Shortage::Cores), Mode::Enforce, at(2))
        else {
            panic!("the cores became short")
        };
        assert_eq!((before, now.short.what), (Shortage::Nothing, Shortage::Cores));
        assert_eq!(reporter.look(view(Shortage::Cores), Mode::Enforce, at(20)), None);
    }

    #[test]
    fn a_state_that_changes_all_the_time_makes_six_lines_a_minute() {
        let mut reporter = Reporter::new();
        let mut lines = 0;
        for ms in (0..600_000).step_by(10) {
            let now = Instant::from_nanos(ms * 1_000_000);
            if reporter.is_due(now) {
                let seen = if ms / 1_000 % 2 == 0 { view(Shortage::Cores) } else { view(Shortage::Nothing) };
                lines += u32::from(reporter.look(seen, Mode::Enforce, now).is_some());
            }
        }
        assert!((1..=60).contains(&lines), "{lines} lines in ten minutes");
    }
}
