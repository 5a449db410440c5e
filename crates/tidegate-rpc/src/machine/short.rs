//! What a server lacks at present, and the numbers that say so.

use core::fmt;
use core::time::Duration;

use serde::Serialize;
use tidegate_core::Instant;

use super::credits::Gauges;

/// What keeps a server from serving all that is asked of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Shortage {
    /// Nothing: it serves what comes.
    #[default]
    Nothing,
    /// What its handlers wait for, such as a database or a pool: the cores idle while calls wait for a place in flight.
    Behind,
    /// Its cores: calls wait although handlers run all the time.
    Cores,
    /// Both: the cores hardly idle, and at times it is for want of places in flight.
    Both,
    /// Its cores, for reading requests and refusing them: more time goes there than to handlers.
    Messages,
}

impl Shortage {
    /// All of them, the worst last.
    pub const ALL: [Self; 5] = [Self::Nothing, Self::Behind, Self::Cores, Self::Both, Self::Messages];

    /// Its word in metrics and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Behind => "behind",
            Self::Cores => "cores",
            Self::Both => "both",
            Self::Messages => "messages",
        }
    }
}

/// What is short, since when, and the numbers that say so. Its text is one sentence for people.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Short {
    /// What is short.
    pub what: Shortage,
    /// Since when it has been that.
    pub since: Instant,
    /// Share of the cores' time, over the last second or the last 64 calls, for which they had no work.
    pub idle_share: f64,
    /// Share of it for which they had none although calls waited: enough were in flight.
    pub held_share: f64,
    /// Share of it that went to reading requests and refusing them, over the last 8,000 calls.
    pub message_share: f64,
    /// How long the oldest call that no core has started has waited.
    pub queueing_delay: Duration,
    /// How long a call may take.
    pub objective: Duration,
    /// Calls that were started and have not ended.
    pub in_flight: u32,
    /// How many there may be of them; `None` while nothing but cores bounds them.
    pub limit: Option<u32>,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| 100.0 * share;
        let Self { in_flight, .. } = *self;
        let (idle, held) = (percent(self.idle_share), percent(self.held_share));
        let (delay, objective) = (Millis(self.queueing_delay), Millis(self.objective));
        match self.what {
            Shortage::Nothing => write!(f, "Nothing is short: the cores idle {idle:.0} % of the time."),
            Shortage::Cores => write!(
                f,
                "The cores are short: they idle {idle:.0} % of the time, and the oldest call has waited {delay}, where a \
                 call may take {objective} in all."
            ),
            Shortage::Behind => {
                write!(f, "What is behind the handlers is short, not the cores: {in_flight} calls are in flight")?;
                if let Some(limit) = self.limit {
                    write!(f, " of at most {limit}")?;
                }
                write!(f, ", and for {held:.0} % of the time cores idled while calls waited for a place.")
            }
            Shortage::Both => write!(
                f,
                "The cores are short, and so is what is behind the handlers: the cores idle {:.0} % of the time, {held:.0} \
                 % because enough calls were in flight.",
                idle + held
            ),
            Shortage::Messages => write!(
                f,
                "Requests come faster than they can be refused: reading and refusing them takes {:.0} % of the cores' time.",
                percent(self.message_share)
            ),
        }
    }
}

/// A span as people read it.
struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_secs_f64() * 1e3;
        write!(f, "{ms:.*} ms", usize::from(ms < 10.0))
    }
}

/// What a scheme shows of itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct View {
    /// What it measures and decides.
    pub gauges: Gauges,
    /// The share of ordinary calls, of nobody in particular, that clients are told to send.
    pub send_share: f64,
    /// What is short.
    pub short: Short,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(what: Shortage) -> Short {
        Short {
            what,
            since: Instant::ZERO,
            idle_share: 0.014,
            held_share: 0.42,
            message_share: 0.7,
            queueing_delay: Duration::from_micros(4_120),
            objective: Duration::from_millis(12),
            in_flight: 10,
            limit: Some(10),
        }
    }

    #[test]
    fn each_shortage_is_one_sentence_with_its_numbers() {
        let said = Shortage::ALL.map(|what| short(what).to_string());
        assert_eq!(
            said,
            [
                "Nothing is short: the cores idle 1 % of the time.",
                "What is behind the handlers is short, not the cores: 10 calls are in flight of at most 10, and for 42 % of \
                 the time cores idled while calls waited for a place.",
                "The cores are short: they idle 1 % of the time, and the oldest call has waited 4.1 ms, where a call may \
                 take 12 ms in all.",
                "The cores are short, and so is what is behind the handlers: the cores idle 43 % of the time, 42 % because \
                 enough calls were in flight.",
                "Requests come faster than they can be refused: reading and refusing them takes 70 % of the cores' time.",
            ]
        );
    }
}
