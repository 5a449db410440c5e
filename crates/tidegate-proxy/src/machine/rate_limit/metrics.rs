//! What a limiter counts, and the plugin's names for it.

use core::fmt;

/// Totals since the limiter began, and two numbers of now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Started on arrival.
    pub admitted: u64,
    /// Sent to the queue.
    pub queued: u64,
    /// Turned away on arrival.
    pub rejected: u64,
    /// Turned away after a wait.
    pub expired: u64,
    /// Started after a wait.
    pub resumed: u64,
    /// Run now.
    pub active: u64,
    /// Wait now.
    pub queue: u64,
}

impl Counts {
    /// The metrics of the plugin, then ours, each with its value.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("queued", self.queued),
            ("rejected", self.rejected),
            ("expired", self.expired),
            ("resumed", self.resumed),
            ("admitted", self.admitted),
            ("active", self.active),
            ("queue", self.queue),
        ]
    }
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        let Self { admitted, queued, rejected, expired, resumed, active, queue } = more;
        self.admitted += admitted;
        self.queued += queued;
        self.rejected += rejected;
        self.expired += expired;
        self.resumed += resumed;
        self.active += active;
        self.queue += queue;
    }
}

/// What kind of thing a limiter stands before; the second part of its metrics' names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// A route; the plugin says remap rule.
    Remap,
    /// A name that clients ask for in the `ClientHello`.
    Sni,
}

/// The name of a metric, `prefix.type.tag.metric`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetricName<'a> {
    /// What all names of the installation begin with.
    pub prefix: &'a str,
    /// What the limiter stands before.
    pub scope: Scope,
    /// The limiter among those of its kind.
    pub tag: &'a str,
    /// The metric: one of [`Counts::named`].
    pub metric: &'a str,
}

impl fmt::Display for MetricName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scope = match self.scope {
            Scope::Remap => "remap",
            Scope::Sni => "sni",
        };
        write!(f, "{}.{scope}.{}.{}", self.prefix, self.tag, self.metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_plugin() {
        let name =
            MetricName { prefix: "plugin.rate_limiter", scope: Scope::Sni, tag: "www.example.com", metric: "queued" };
        assert_eq!(name.to_string(), "plugin.rate_limiter.sni.www.example.com.queued");
        assert_eq!(MetricName { scope: Scope::Remap, ..name }.to_string().matches(".remap.").count(), 1);
    }
}
