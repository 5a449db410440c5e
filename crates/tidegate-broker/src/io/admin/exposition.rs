//! Prometheus' text format, with a bound on the series of each metric.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Series of one metric that keep their own labels. The rest is one series for each further label, called `other`.
const MOST_SERIES: usize = 1_000;
const OTHER: &str = "other";

/// What a metric is, and how series are joined under `other`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// It only grows; the sum stands for all.
    Counter,
    /// It comes and goes; the sum stands for all.
    Gauge,
    /// A delay; the longest stands for all.
    Worst,
}

/// The labels of one series. Absent ones are not written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Labels<'a> {
    /// A topic's name.
    pub(super) topic: Option<&'a str>,
    /// The name of a channel of that topic.
    pub(super) channel: Option<&'a str>,
    /// A label with few values.
    pub(super) closed: Option<(&'static str, &'a str)>,
}

impl Labels<'_> {
    fn other(self) -> Self {
        Self { topic: self.topic.map(|_| OTHER), channel: self.channel.map(|_| OTHER), closed: self.closed }
    }
}

/// A page of metrics, growing.
#[derive(Default, Debug)]
pub(super) struct Exposition {
    text: String,
    /// Series that lost their own labels.
    pub(super) dropped: u64,
}

impl Exposition {
    /// Adds the metric `name`. Series beyond the bound, in the order given, are joined.
    pub(super) fn metric<'a>(
        &mut self,
        name: &str,
        help: &str,
        kind: Kind,
        series: impl IntoIterator<Item = (Labels<'a>, f64)>,
    ) {
        let mut values = BTreeMap::new();
        for (position, (labels, value)) in series.into_iter().enumerate() {
            let own = position < MOST_SERIES;
            self.dropped += u64::from(!own);
            let joined: &mut f64 = values.entry(if own { labels } else { labels.other() }).or_insert(0.0);
            *joined = if kind == Kind::Worst { joined.max(value) } else { *joined + value };
        }
        if values.is_empty() {
            return;
        }
        let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("writing to a string does not fail");
        for (labels, value) in values {
            self.text.push_str(name);
            self.labels(labels);
            writeln!(self.text, " {value}").expect("writing to a string does not fail");
        }
    }

    /// Adds a metric of one series without labels.
    pub(super) fn single(&mut self, name: &str, help: &str, kind: Kind, value: f64) {
        self.metric(name, help, kind, [(Labels::default(), value)]);
    }

    fn labels(&mut self, labels: Labels<'_>) {
        let named = [labels.topic.map(|name| ("topic", name)), labels.channel.map(|name| ("channel", name))];
        let mut before = '{';
        for (key, value) in named.into_iter().flatten().chain(labels.closed) {
            write!(self.text, "{before}{key}=\"").expect("writing to a string does not fail");
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
            before = ',';
        }
        if before == ',' {
            self.text.push('}');
        }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Labels<'_> {
        Labels { topic: Some(name), ..Labels::default() }
    }

    #[test]
    fn label_values_are_escaped() {
        let mut page = Exposition::default();
        page.metric("m", "Help.", Kind::Gauge, [(topic("a\"b\\c\nd"), 1.5)]);
        assert_eq!(page.into_text(), "# HELP m Help.\n# TYPE m gauge\nm{topic=\"a\\\"b\\\\c\\nd\"} 1.5\n");
    }

    #[test]
    fn series_beyond_the_bound_are_joined() {
        let names: Vec<String> = (0..1_003).map(|i| format!("t{i:04}")).collect();
        let series = |value: f64| names.iter().zip(0_u32..).map(move |(name, i)| (topic(name), value + f64::from(i)));
        let mut page = Exposition::default();
        page.metric("sum", "Help.", Kind::Counter, series(1.0));
        page.metric("worst", "Help.", Kind::Worst, series(0.5));
        assert_eq!(page.dropped, 6);
        let text = page.into_text();
        assert!(text.contains("sum{topic=\"other\"} 3006\n"), "1001 + 1002 + 1003");
        assert!(text.contains("worst{topic=\"other\"} 1002.5\n"));
        assert_eq!(text.matches("\nsum{").count(), 1_001);
    }

    #[test]
    fn a_topic_called_other_makes_no_series_twice() {
        let mut names: Vec<String> = (0..1_001).map(|i| format!("t{i}")).collect();
        names[0] = "other".to_owned();
        let mut page = Exposition::default();
        page.metric("m", "Help.", Kind::Gauge, names.iter().map(|name| (topic(name), 1.0)));
        let text = page.into_text();
        assert_eq!(text.matches("m{topic=\"other\"} 2\n").count(), 1);
    }
}
