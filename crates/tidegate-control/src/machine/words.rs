//! Decisions and shortfalls in words, for people.

use super::types::{Cause, NodeNo, PublisherNo, Reason};

/// A rate or a number as people read it.
fn short(value: f64) -> String {
    if value.abs() >= 99.95 || value.fract().abs() < f64::EPSILON {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

fn milliseconds(us: f64) -> String {
    format!("{:.2} ms", us / 1e3)
}

fn many(count: u32, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

impl Reason {
    /// The decision as a sentence; `name` says what a node is called, `kind` what nodes are, such as `broker`.
    pub fn in_words(&self, kind: &str, name: impl Fn(NodeNo) -> String) -> String {
        match *self {
            Self::LeastNodes { nodes, rate_per_s, rcap_per_s } => format!(
                "{} for {} messages/s, the fewest with room: {} messages/s are left of their capacity",
                many(nodes, kind),
                short(rate_per_s),
                short(rcap_per_s),
            ),
            Self::Kept { node, publishers, delay_us_p99 } => {
                format!("{} takes {}: p99 {}", name(node), many(publishers, "publisher"), milliseconds(delay_us_p99))
            }
            Self::Full { node, kept, of, rounds, delay_us_p99 } => format!(
                "{} missed the objective with {of} more and keeps {kept}, found in {}; the last showed a p99 of {}",
                name(node),
                many(rounds, "round"),
                milliseconds(delay_us_p99),
            ),
            Self::DealtAnew { node, of, left } => format!(
                "{} cannot be on a {kind} of their own: {of} of {} are dealt anew with them",
                many(left, "publisher"),
                name(node),
            ),
            Self::Predicted { nodes, delay_us_p99, share_over } => format!(
                "on {} the model expects a p99 of {} and {:.2} % beyond the objective",
                many(nodes, kind),
                milliseconds(delay_us_p99),
                100.0 * share_over,
            ),
            Self::Disagreed { predicted_us_p99, measured_us_p99 } => format!(
                "the model expected a p99 of {} and {} was measured: it is fitted anew",
                milliseconds(predicted_us_p99),
                milliseconds(measured_us_p99),
            ),
            Self::FellBack => "the model is given up for measurements in rounds".to_owned(),
        }
    }
}

impl Cause {
    /// The cause as a sentence; `kind` as for [`Reason::in_words`]. Publishers are told by number.
    #[must_use]
    pub fn in_words(&self, kind: &str) -> String {
        self.in_words_of(kind, |publisher| publisher.0.to_string())
    }

    /// The same; `who` says what a publisher is called.
    pub fn in_words_of(&self, kind: &str, who: impl Fn(PublisherNo) -> String) -> String {
        match *self {
            Self::Capacity => format!("all {kind}s that are not full have too little capacity left"),
            Self::PublisherTooLarge { publisher, rate_per_s, largest_mcap_per_s } => format!(
                "publisher {} sends {} messages/s, and no {kind} takes more than {}",
                who(publisher),
                short(rate_per_s),
                short(largest_mcap_per_s),
            ),
            Self::SloUnmet { best_us_p99 } => {
                format!("no number of {kind}s meets the objective; the best p99 was {}", milliseconds(best_us_p99))
            }
            Self::NoNode => format!("there is no {kind}"),
            Self::TooMany => format!("there are too many {kind}s or publishers"),
            Self::BurstTooSmall { burst, parts } => {
                format!("a burst of {burst} has no whole token for each of {}", many(parts, "part"))
            }
            Self::TooManyRounds => "there were too many rounds".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_read_as_sentences() {
        let name = |node: NodeNo| format!("broker {}", node.0 + 1);
        let words = |reason: Reason| reason.in_words("broker", name);
        assert_eq!(
            words(Reason::LeastNodes { nodes: 3, rate_per_s: 80e3, rcap_per_s: 86e3 }),
            "3 brokers for 80000 messages/s, the fewest with room: 86000 messages/s are left of their capacity"
        );
        assert_eq!(
            words(Reason::Kept { node: NodeNo(1), publishers: 1, delay_us_p99: 874.0 }),
            "broker 2 takes 1 publisher: p99 0.87 ms"
        );
        assert_eq!(
            words(Reason::Full { node: NodeNo(0), kept: 250, of: 1_000, rounds: 3, delay_us_p99: 950.0 }),
            "broker 1 missed the objective with 1000 more and keeps 250, found in 3 rounds; the last showed a p99 of 0.95 ms"
        );
        assert_eq!(
            words(Reason::DealtAnew { node: NodeNo(0), of: 500, left: 16 }),
            "16 publishers cannot be on a broker of their own: 500 of broker 1 are dealt anew with them"
        );
    }

    #[test]
    fn causes_say_what_is_missing() {
        let burst = Cause::BurstTooSmall { burst: 2, parts: 3 };
        assert_eq!(burst.in_words("broker"), "a burst of 2 has no whole token for each of 3 parts");
        assert_eq!(Cause::NoNode.in_words("broker"), "there is no broker");
        let large =
            Cause::PublisherTooLarge { publisher: PublisherNo(7), rate_per_s: 900.0, largest_mcap_per_s: 500.0 };
        let told = large.in_words_of("broker", |_| "billing@host1".to_owned());
        assert_eq!(told, "publisher billing@host1 sends 900 messages/s, and no broker takes more than 500");
    }
}
