//! What the page is shown of a tenant.

use serde::Serialize;
use tidegate_load::http::live::LiveSnapshot;

use crate::demo::meter::Meter;

/// A tenant over the last few seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) offered_per_s: f64,
    /// Answered in time.
    pub(crate) answered_per_s: f64,
    /// By the proxy, or by the service behind it.
    pub(crate) refused_per_s: f64,
    /// Of what has ended: a request that is under way is no request without an answer.
    pub(crate) answered_percent: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Meter<LiveSnapshot> {
    pub(crate) fn tenant(&self) -> Figures {
        let Some(grown) = self.grown() else { return Figures::default() };
        let answered = grown.count(|seen| seen.answered);
        let ended = answered + grown.count(|seen| seen.refused) + grown.count(|seen| seen.failed);
        Figures {
            offered_per_s: grown.per_s(|seen| seen.offered),
            answered_per_s: grown.per_s(|seen| seen.answered),
            refused_per_s: grown.per_s(|seen| seen.refused),
            answered_percent: if ended > 0.0 { 100.0 * answered / ended } else { 0.0 },
            p50_ms: grown.latest.response.us_p50 / 1e3,
            p99_ms: grown.latest.response.us_p99 / 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;

    use super::*;

    #[test]
    fn an_answered_share_is_of_those_that_have_ended() {
        let mut meter = Meter::default();
        assert_eq!(meter.tenant(), Figures::default());
        meter.sample(Instant::ZERO, LiveSnapshot::default());
        let seen = LiveSnapshot { offered: 200, answered: 30, refused: 60, failed: 10, ..LiveSnapshot::default() };
        meter.sample(Instant::from_nanos(2_000_000_000), seen);
        let figures = meter.tenant();
        assert!((figures.answered_percent - 30.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.offered_per_s - 100.0).abs() < 1e-9 && (figures.refused_per_s - 30.0).abs() < 1e-9);
    }
}
