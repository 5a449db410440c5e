//! What should be seen of the points.

use serde::{Deserialize, Serialize};

use super::super::{Claim, Complaint};
use super::point::{Asked, Metric, Point, in_words};
use super::series::Compared;
use crate::table::number;

/// By so much a value may fall and still be said to rise: the mean of two has a last digit.
const ROUNDING: f64 = 1e-9;

/// A claim. It must hold at every value that it names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Of which series.
    #[serde(alias = "policy")]
    pub series: String,
    /// What.
    pub what: Metric,
    /// Of which broker, from 1; of the topic if there is none.
    pub broker: Option<u32>,
    /// At which values of the axis; at all if there is none.
    #[serde(default)]
    pub at: Vec<f64>,
    /// It is not less.
    pub at_least: Option<f64>,
    /// It is not more.
    pub at_most: Option<f64>,
    /// It is less than that of this series at the same value.
    pub below: Option<String>,
    /// It is not more than that of this series at the same value.
    pub not_above: Option<String>,
    /// It is that of this series at the same value.
    pub same_as: Option<String>,
    /// From value to value it does not fall.
    #[serde(default)]
    pub rises: bool,
    /// From value to value it does not rise.
    #[serde(default)]
    pub falls: bool,
    /// By what share a value may miss `not_above`, `same_as`, `rises` and `falls`.
    #[serde(default)]
    pub within: f64,
    /// Rounds of each iteration, of the run of middle length.
    pub rounds: Option<Vec<u32>>,
    /// The paper's words that it stands for, with their section.
    pub stated: Option<String>,
    /// The paper states it, the model does not show it, and this is why. It is shown and does not count.
    pub not_reproduced: Option<String>,
}

impl Bar {
    fn asked(&self) -> Asked {
        Asked { what: self.what, broker: self.broker }
    }

    fn others(&self) -> impl Iterator<Item = &String> {
        self.below.iter().chain(&self.not_above).chain(&self.same_as)
    }

    /// Checks the claim that stands at place `index` in its file.
    pub(super) fn check(&self, index: usize, compared: &[Compared], values: &[f64]) -> Result<(), Complaint> {
        let key = format!("placement.claim[{index}]");
        for name in std::iter::once(&self.series).chain(self.others()) {
            let is_known = compared.iter().any(|series| series.name == *name);
            Complaint::unless(is_known, &key, format!("{name} is not compared"))?;
        }
        let known = self.at.iter().all(|value| values.contains(value));
        Complaint::unless(known, &format!("{key}.at"), "no such value on the axis")?;
        let bounds = self.at_least.is_some() || self.at_most.is_some() || self.rounds.is_some();
        let says = bounds || self.others().next().is_some() || self.rises || self.falls;
        let all = "at_least, at_most, below, not_above, same_as, rises, falls or rounds is missing";
        Complaint::unless(says, &key, all)?;
        let has_it = self.broker.is_none() || self.what.is_of_brokers();
        Complaint::unless(has_it, &format!("{key}.broker"), format!("{} is of the topic only", self.what.title()))?;
        let is_share = (0.0..1.0).contains(&self.within);
        Complaint::unless(is_share, &format!("{key}.within"), format!("{} is not from 0 to below 1", self.within))?;
        let reason = self.not_reproduced.as_ref().is_none_or(|reason| !reason.trim().is_empty());
        Complaint::unless(reason, &format!("{key}.not_reproduced"), "the reason is missing")
    }

    pub(super) fn judge(&self, points: &[Point]) -> Claim {
        let values = self.seen_of(&self.series, points);
        let held = self.holds(&values, points);
        let mut seen = list(&values);
        if self.rounds.is_some() {
            let rounds = self.concerned(&self.series, points).map(|point| in_words(point.typical_rounds()));
            seen = rounds.collect::<Vec<_>>().join(", ");
        }
        for other in self.others() {
            seen = format!("{seen} against {}", list(&self.seen_of(other, points)));
        }
        let mut claim = self.in_words();
        if let Some(reason) = &self.not_reproduced {
            claim = format!("stated in the paper and not expected here ({reason}): {claim}");
            seen = format!("{seen}; {}", if held { "seen all the same" } else { "not seen" });
        }
        Claim { claim, held: held || self.not_reproduced.is_some(), seen }
    }

    fn concerned<'a>(&'a self, series: &'a str, points: &'a [Point]) -> impl Iterator<Item = &'a Point> {
        points
            .iter()
            .filter(move |point| point.series == series && (self.at.is_empty() || self.at.contains(&point.value)))
    }

    fn seen_of(&self, series: &str, points: &[Point]) -> Vec<f64> {
        self.concerned(series, points).map(|point| point.value(self.asked())).collect()
    }

    fn holds(&self, values: &[f64], points: &[Point]) -> bool {
        let slack = 1.0 + self.within;
        let within = values.iter().all(|value| {
            !value.is_nan()
                && self.at_least.is_none_or(|bound| *value >= bound)
                && self.at_most.is_none_or(|bound| *value <= bound)
        });
        let beside = |other: &Option<String>, is_right: &dyn Fn(f64, f64) -> bool| {
            other.as_ref().is_none_or(|other| {
                values.iter().zip(self.seen_of(other, points)).all(|(value, other)| is_right(*value, other))
            })
        };
        let same = |value: f64, other: f64| value <= other * slack + ROUNDING && other <= value * slack + ROUNDING;
        let rises = |one: &f64, next: &f64| *one <= *next * slack + ROUNDING;
        let falls = |one: &f64, next: &f64| *next <= *one * slack + ROUNDING;
        let mut rounds = self.concerned(&self.series, points).map(Point::typical_rounds);
        within
            && beside(&self.below, &|value, other| value < other)
            && beside(&self.not_above, &|value, other| value <= other * slack + ROUNDING)
            && beside(&self.same_as, &same)
            && (!self.rises || values.is_sorted_by(rises))
            && (!self.falls || values.is_sorted_by(falls))
            && self.rounds.as_ref().is_none_or(|stated| rounds.all(|seen| seen == stated))
    }

    fn in_words(&self) -> String {
        let mut says: Vec<String> = Vec::new();
        says.extend(self.at_least.map(|bound| format!("at least {}", number(bound))));
        says.extend(self.at_most.map(|bound| format!("at most {}", number(bound))));
        says.extend(self.below.iter().map(|other| format!("below that of {other}")));
        says.extend(self.not_above.iter().map(|other| format!("not above that of {other}")));
        says.extend(self.same_as.iter().map(|other| format!("that of {other}")));
        says.extend(self.rises.then(|| "rises".to_owned()));
        says.extend(self.falls.then(|| "falls".to_owned()));
        says.extend(self.rounds.as_ref().map(|rounds| in_words(rounds)));
        let slack =
            if self.within > 0.0 { format!(" within {} %", number(100.0 * self.within)) } else { String::new() };
        let place = if self.at.is_empty() { String::new() } else { format!(" at {}", list(&self.at)) };
        let broker = self.broker.map(|broker| format!(" of broker {broker}")).unwrap_or_default();
        let stated = self.stated.as_ref().map(|words| format!(" [{words}]")).unwrap_or_default();
        let what = self.what.title();
        format!("{}: {what}{broker}{place} {}{slack}{stated}", self.series, says.join(" and "))
    }
}

fn list(values: &[f64]) -> String {
    values.iter().map(|value| number(*value)).collect::<Vec<_>>().join(", ")
}
