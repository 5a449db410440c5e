//! The table and the verdict.

use serde_json::json;
use tidegate_load::tcp::report::SendReport;

use super::acts::{Act, RATE_MBPS};
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// Payload of a frame of 1,514 bytes.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;
/// The control is to leave at most this of the median round trip.
const SHORTER: f64 = 0.5;

/// What an act showed.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) act: Act,
    pub(super) report: SendReport,
    /// Packets that the class dropped.
    pub(super) drops: u64,
}

impl Told {
    fn efficiency_percent(&self) -> f64 {
        100.0 * self.report.clean.goodput_mbps / (RATE_MBPS * PAYLOAD)
    }
}

/// Prints what was seen, and fails if the control did not shorten the queue.
pub(super) fn tell(acts: &[Told], style: Style) -> Result<(), Failure> {
    let shorter = is_shorter(acts);
    match style {
        Style::Json => {
            let acts: Vec<_> = acts
                .iter()
                .map(|told| {
                    json!({
                        "act": told.act.title(),
                        "efficiency_percent": told.efficiency_percent(),
                        "drops": told.drops,
                        "load": told.report,
                    })
                })
                .collect();
            output::json(&json!({ "shorter": shorter, "acts": acts }))?;
        }
        Style::Table => table(acts)?,
    }
    if shorter {
        return Ok(());
    }
    Err(Failure::slo_missed("the control did not halve the round trip of the flows")
        .help("a machine that is busy with other work delays packets itself; try again, or for longer with --seconds"))
}

fn table(acts: &[Told]) -> Result<(), Failure> {
    let mut table = Table::new(&[
        "1 Gbit/s",
        "efficiency %",
        "rtt p50 us",
        "p99 us",
        "probe p50 us",
        "p99 us",
        "drops",
        "sent again",
    ]);
    for told in acts {
        let seen = told.report.clean;
        table.row([
            told.act.title().to_owned(),
            figure(told.efficiency_percent()),
            figure(seen.srtt.us_p50),
            figure(seen.srtt.us_p99),
            figure(seen.requests.us_p50),
            figure(seen.requests.us_p99),
            told.drops.to_string(),
            told.report.retransmitted.to_string(),
        ]);
    }
    table.print()?;
    let left_out: f64 = acts.iter().map(|told| told.report.gaps.left_out_ms).sum();
    if left_out > 0.0 {
        output::line(format_args!("left out: {} ms in which this machine stood still", figure(left_out)))?;
    }
    Ok(())
}

/// Whether the control shortened the queue that the flows wait in.
fn is_shorter(acts: &[Told]) -> bool {
    let of = |act| acts.iter().find(|told| told.act == act).map(|told| told.report.clean.srtt);
    let (Some(off), Some(on)) = (of(Act::Off), of(Act::On)) else { return false };
    on.count > 0 && on.us_p50 <= SHORTER * off.us_p50 && on.us_p99 < off.us_p99
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(act: Act, us_p50: f64, us_p99: f64) -> Told {
        let mut report = SendReport::default();
        (report.clean.srtt.count, report.clean.srtt.us_p50, report.clean.srtt.us_p99) = (1, us_p50, us_p99);
        Told { act, report, drops: 0 }
    }

    #[test]
    fn the_control_is_to_halve_the_round_trip() {
        let off = told(Act::Off, 6_000.0, 9_000.0);
        assert!(is_shorter(&[off.clone(), told(Act::On, 120.0, 200.0)]));
        assert!(!is_shorter(&[off.clone(), told(Act::On, 3_100.0, 3_200.0)]));
        assert!(!is_shorter(&[off.clone(), told(Act::On, 120.0, 9_100.0)]));
        assert!(!is_shorter(&[off]));
    }
}
