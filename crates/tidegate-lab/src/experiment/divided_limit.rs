//! One limit over several proxies: what each way to divide it refuses that the undivided limit admits.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, Size};
use crate::divided::{Report, Scenario, Scheme, play};
use crate::table::{Table, number};

/// A quick run is no longer than this.
const QUICK_S: u32 = 35;
const QUICK_WARM_UP_S: u32 = 5;

/// Settings of the kind `divided_limit`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DividedLimit {
    /// Each is run under every scheme, with the same requests.
    pub case: Vec<Case>,
}

/// A scenario, and what should be seen.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// In the table.
    pub name: String,
    /// What is run.
    pub scenario: Scenario,
    /// With other random numbers so often.
    #[serde(default = "one")]
    pub repeats: u32,
    /// Schemes that refuse at most so large a share of the requests while the undivided limit has tokens.
    #[serde(default)]
    pub at_most: Vec<Bar>,
}

/// A bar of a scheme.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Of this scheme.
    pub scheme: Scheme,
    /// Of all requests.
    pub share: f64,
}

const fn one() -> u32 {
    1
}

impl DividedLimit {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        Complaint::unless(!self.case.is_empty(), "divided_limit.case", "nothing to run")?;
        for (at, case) in self.case.iter().enumerate() {
            let Scenario { limit, proxies, load, batch, busy, loss, length_s, warm_up_s, window_s, .. } = case.scenario;
            let rules = [
                (
                    !limit.rate.is_zero() && limit.burst >= u64::from(proxies),
                    "limit",
                    "a token of burst for each proxy",
                ),
                ((1..=64).contains(&proxies), "proxies", "a number from 1 to 64"),
                (load > 0.0 && load <= 100.0, "load", "above 0 and at most 100"),
                ((1..=10_000).contains(&batch), "batch", "a number from 1 to 10000"),
                ((0.0..=1.0).contains(&busy), "busy", "a share from 0 to 1"),
                ((0.0..1.0).contains(&loss), "loss", "a chance below 1"),
                ((1..=100_000).contains(&length_s) && warm_up_s < length_s, "length_s", "longer than the warm-up"),
                ((1..=60).contains(&window_s), "window_s", "a number from 1 to 60"),
                ((1..=10_000).contains(&case.repeats), "repeats", "a number from 1 to 10000"),
            ];
            for (right, key, message) in rules {
                Complaint::unless(right, &format!("divided_limit.case[{at}].{key}"), message)?;
            }
        }
        Ok(())
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Results {
        let header = [
            "case",
            "limit",
            "refused with tokens",
            "refused",
            "undivided refuses",
            "violations",
            "above b + r t",
            "datagrams",
        ];
        let mut table = Table::new(header);
        let (mut claims, mut numbers) = (Vec::new(), Vec::new());
        for case in &self.case {
            let mut scenario = case.scenario;
            let mut repeats = case.repeats;
            if size == Size::Quick {
                scenario.length_s = scenario.length_s.min(QUICK_S);
                scenario.warm_up_s = scenario.warm_up_s.min(QUICK_WARM_UP_S);
                repeats = 1;
            }
            for scheme in Scheme::ALL {
                let runs: Vec<Report> =
                    (0..repeats).map(|repeat| play(&scenario, scheme, experiment.seed + u64::from(repeat))).collect();
                let sum = sum_of(&runs);
                table.push([
                    case.name.clone(),
                    scheme.name().to_owned(),
                    percent(sum.share_refused_with_tokens()),
                    percent(sum.share_refused()),
                    percent(sum.share_refused_undivided()),
                    sum.violations.to_string(),
                    number(sum.excess_max),
                    number(sum.frames_per_request),
                ]);
                claims.push(Claim {
                    claim: format!("{}, {}: admitted in any window at most b + r t", case.name, scheme.name()),
                    held: sum.violations == 0,
                    seen: format!("{} of {} admissions completed a window with more", sum.violations, sum.checked),
                });
                for bar in case.at_most.iter().filter(|bar| bar.scheme == scheme) {
                    let share = sum.share_refused_with_tokens();
                    claims.push(Claim {
                        claim: format!(
                            "{}, {}: at most {} refused while the undivided limit had tokens",
                            case.name,
                            scheme.name(),
                            percent(bar.share)
                        ),
                        held: share <= bar.share && sum.requests > 0,
                        seen: format!("{} of {} requests", percent(share), sum.requests),
                    });
                }
                numbers.push(json!({ "case": case.name, "report": sum }));
            }
        }
        Results { claims, numbers: json!(numbers), table, ..Results::default() }
    }
}

fn percent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}

/// All runs together.
fn sum_of(runs: &[Report]) -> Report {
    let mut sum = runs[0].clone();
    for run in &runs[1..] {
        sum.requests += run.requests;
        sum.admitted += run.admitted;
        sum.refused_with_tokens += run.refused_with_tokens;
        sum.refused_undivided += run.refused_undivided;
        sum.checked += run.checked;
        sum.violations += run.violations;
        sum.orders += run.orders;
        sum.excess_max = sum.excess_max.max(run.excess_max);
        sum.frames_per_request = sum.frames_per_request.max(run.frames_per_request);
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_bars_of_the_file_hold_also_in_a_quick_run() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/divided_limit.toml");
        let outcome = crate::experiment::read(&file).unwrap().run("divided_limit", Size::Quick).unwrap();
        assert!(outcome.holds(), "{outcome}");
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/divided_limit.toml");
        let text = std::fs::read_to_string(&file).unwrap().replacen("proxies = 6", "proxies = 600", 1);
        let error = crate::experiment::parse(&file, &text).unwrap_err().to_string();
        assert!(error.contains("divided_limit.case[0]"), "{error}");
    }
}
