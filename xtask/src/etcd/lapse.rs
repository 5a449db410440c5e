//! What topics did without leases, held against their `on_store_loss`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::crew::Placed;
use super::load::{Delivery, Ns};

/// Between a release and its arrival at a consumer, on a machine with other things to do.
pub(super) const ARRIVES: Duration = Duration::from_millis(250);

/// When a part's lease ended, and what it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) at: Ns,
    pub(super) rate_per_s: f64,
    pub(super) burst: u64,
}

/// By topic and broker.
pub(super) type By<T> = BTreeMap<(&'static str, usize), T>;
pub(super) type Ends = By<End>;
pub(super) type Deliveries = By<Vec<Delivery>>;

/// What a topic's brokers did without leases, between two instants.
pub(super) struct Seen<'a> {
    pub(super) topic: Placed,
    pub(super) ends: &'a Ends,
    pub(super) in_force: &'a By<Option<(f64, u64)>>,
    pub(super) deliveries: &'a Deliveries,
    pub(super) from: Ns,
    pub(super) to: Ns,
}

impl Seen<'_> {
    /// What it did in words, and what of it is not what it should do.
    pub(super) fn judge(&self) -> (String, Vec<String>) {
        let (mut said, mut wrong) = (Vec::new(), Vec::new());
        let brokers = self.in_force.keys().filter(|(topic, _)| *topic == self.topic.name).map(|(_, at)| *at);
        for at in brokers {
            let key = (self.topic.name, at);
            let (end, deliveries) = (self.ends[&key], &self.deliveries[&key]);
            let came = deliveries.iter().filter(|delivery| (self.from..self.to).contains(&delivery.came)).count();
            let sent = deliveries.iter().filter(|delivery| (self.from..self.to).contains(&delivery.sent)).count();
            said.push(format!("{came} of {sent}, its part {:.0}/s", end.rate_per_s));
            let bound = |rate: f64, burst: u64| count(burst) + rate * seconds(self.to - self.from + ns(ARRIVES));
            let (rules, came, sent) = (self.in_force[&key], count(came as u64), count(sent as u64));
            let whole = (f64::from(self.topic.rate_per_s), u64::from(self.topic.burst));
            let part = (end.rate_per_s, end.burst);
            match self.topic.on_store_loss {
                "closed" => {
                    let late = deliveries.iter().filter(|d| d.came > end.at + ns(ARRIVES) && d.came < self.to).count();
                    wrong.extend((late > 0).then(|| format!("{late} messages passed after the end")));
                    wrong.extend(rules.filter(|(rate, _)| *rate > 0.0).map(|rules| format!("{rules:?} rules")));
                }
                "open" => {
                    wrong.extend((rules != Some(whole)).then(|| format!("{rules:?} rules, not the whole")));
                    wrong.extend((came > bound(whole.0, whole.1)).then(|| "more than the whole passed".to_owned()));
                    wrong.extend((came < 0.9 * sent).then(|| format!("{came} of {sent} passed, though there is room")));
                    let exceeds = at != 0 || came > bound(part.0, part.1);
                    wrong.extend((!exceeds).then(|| "no more than its part passed, so this says nothing".to_owned()));
                }
                _ => {
                    wrong.extend((rules != Some(part)).then(|| format!("{rules:?} rules, not the part {part:?}")));
                    wrong.extend((came > bound(part.0, part.1)).then(|| "more than the part passed".to_owned()));
                    let least = 0.9 * sent.min(part.0 * seconds(self.to - self.from));
                    wrong.extend((came < least).then(|| format!("{came} passed, and the part takes {least}")));
                }
            }
        }
        (said.join("; "), wrong)
    }
}

pub(super) fn ns(span: Duration) -> Ns {
    Ns::try_from(span.as_nanos()).expect("spans here are minutes")
}

fn seconds(span: Ns) -> f64 {
    Duration::from_nanos(u64::try_from(span).unwrap_or(0)).as_secs_f64()
}

/// A number of messages, which a run has some ten thousand of.
fn count(messages: u64) -> f64 {
    u32::try_from(messages).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Ns = 1_000_000_000;
    const PART: End = End { at: 10 * SECOND, rate_per_s: 100.0, burst: 10 };

    /// A broker that passes a message each `gap_ms` from the end of its lease on for ten seconds, under `rules`.
    fn judged(on_store_loss: &'static str, gap_ms: Ns, rules: Option<(f64, u64)>) -> Vec<String> {
        let topic = Placed { name: "t", rate_per_s: 200, burst: 20, on_store_loss };
        let at = |number: Ns| PART.at + number * gap_ms * SECOND / 1_000;
        let passes = (0..).map(at).take_while(|at| gap_ms > 0 && *at < 20 * SECOND);
        let deliveries = passes.map(|at| Delivery { sent: at, came: at }).collect();
        let key = ("t", 0);
        let seen = Seen {
            topic,
            ends: &Ends::from([(key, PART)]),
            in_force: &By::from([(key, rules)]),
            deliveries: &Deliveries::from([(key, deliveries)]),
            from: 10 * SECOND,
            to: 20 * SECOND,
        };
        seen.judge().1
    }

    #[test]
    fn local_keeps_its_part_open_has_the_whole_and_closed_nothing() {
        let none: Vec<String> = Vec::new();
        assert_eq!(judged("local", 10, Some((100.0, 10))), none);
        assert_eq!(judged("open", 6, Some((200.0, 20))), none);
        assert_eq!(judged("closed", 0, Some((0.0, 10))), none);
    }

    #[test]
    fn each_other_way_is_told() {
        assert_eq!(judged("local", 5, Some((100.0, 10))), ["more than the part passed"]);
        assert_eq!(judged("local", 10, Some((200.0, 20))).len(), 1, "another limit rules");
        assert_eq!(judged("open", 10, Some((200.0, 20))), ["no more than its part passed, so this says nothing"]);
        assert_eq!(judged("open", 6, Some((100.0, 10))).len(), 1, "the part rules");
        assert_eq!(judged("open", 4, Some((200.0, 20))), ["more than the whole passed"]);
        assert_eq!(judged("closed", 500, Some((0.0, 10))), ["19 messages passed after the end"]);
        assert_eq!(judged("closed", 0, Some((100.0, 10))), ["(100.0, 10) rules"]);
    }
}
