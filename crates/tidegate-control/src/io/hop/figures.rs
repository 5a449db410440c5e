//! What a hop counts.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::machine::hop::Counts;

/// Counters of all connections. Each is read for itself, so none needs an order among them: all are relaxed.
#[derive(Debug, Default)]
pub(super) struct Figures {
    producers: AtomicU64,
    upstreams: AtomicU64,
    connections: AtomicU64,
    pub(super) turned_away: Counter,
    accepted: Counter,
    refused: Counter,
    lost: Counter,
    unplaced: Counter,
    bytes: Counter,
    moves: Counter,
    node_failures: Counter,
    pub(super) placement_answers: Counter,
    pub(super) placement_failures: Counter,
}

/// Something that is counted and never goes back.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is open at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Open {
    Producer,
    Upstream,
}

/// Counts one open connection for as long as it lives.
#[derive(Debug)]
pub(super) struct Counted {
    figures: Arc<Figures>,
    open: Open,
}

impl Counted {
    pub(super) fn new(figures: &Arc<Figures>, open: Open) -> Self {
        figures.gauge(open).fetch_add(1, Ordering::Relaxed);
        if open == Open::Producer {
            figures.connections.fetch_add(1, Ordering::Relaxed);
        }
        Self { figures: Arc::clone(figures), open }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.figures.gauge(self.open).fetch_sub(1, Ordering::Relaxed);
    }
}

/// All counters at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Totals {
    pub(super) producers: u64,
    pub(super) broker_connections: u64,
    pub(super) producers_total: u64,
    pub(super) turned_away_total: u64,
    pub(super) accepted_total: u64,
    pub(super) refused_total: u64,
    pub(super) lost_total: u64,
    pub(super) unplaced_total: u64,
    pub(super) bytes_total: u64,
    pub(super) moves_total: u64,
    pub(super) broker_failures_total: u64,
    pub(super) placement_answers_total: u64,
    pub(super) placement_failures_total: u64,
}

impl Figures {
    fn gauge(&self, open: Open) -> &AtomicU64 {
        match open {
            Open::Producer => &self.producers,
            Open::Upstream => &self.upstreams,
        }
    }

    /// Adds what a connection counted since `before`.
    pub(super) fn add(&self, before: Counts, now: Counts) {
        self.accepted.add(now.accepted - before.accepted);
        self.refused.add(now.refused - before.refused);
        self.lost.add(now.lost - before.lost);
        self.unplaced.add(now.unplaced - before.unplaced);
        self.bytes.add(now.bytes - before.bytes);
        self.moves.add(now.moves - before.moves);
        self.node_failures.add(now.node_failures - before.node_failures);
    }

    pub(super) fn totals(&self) -> Totals {
        Totals {
            producers: self.producers.load(Ordering::Relaxed),
            broker_connections: self.upstreams.load(Ordering::Relaxed),
            producers_total: self.connections.load(Ordering::Relaxed),
            turned_away_total: self.turned_away.get(),
            accepted_total: self.accepted.get(),
            refused_total: self.refused.get(),
            lost_total: self.lost.get(),
            unplaced_total: self.unplaced.get(),
            bytes_total: self.bytes.get(),
            moves_total: self.moves.get(),
            broker_failures_total: self.node_failures.get(),
            placement_answers_total: self.placement_answers.get(),
            placement_failures_total: self.placement_failures.get(),
        }
    }
}

impl Totals {
    /// In the text format of Prometheus.
    pub(super) fn page(&self) -> String {
        let publishes = [
            ("accepted", self.accepted_total),
            ("refused", self.refused_total),
            ("lost", self.lost_total),
            ("unplaced", self.unplaced_total),
        ];
        let mut page = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
            // Writing to a string does not fail.
            let _ = writeln!(page, "# HELP tidegate_steer_{name} {help}\n# TYPE tidegate_steer_{name} {kind}");
            for (label, value) in values {
                let _ = writeln!(page, "tidegate_steer_{name}{label} {value}");
            }
        };
        let gauges = [
            ("producers", "Producers that are connected.", self.producers),
            ("broker_connections", "Connections to brokers.", self.broker_connections),
        ];
        for (name, help, value) in gauges {
            metric(name, "gauge", help, &[("", value)]);
        }
        let labels = publishes.map(|(result, value)| (format!("{{result=\"{result}\"}}"), value));
        let labelled: Vec<(&str, u64)> = labels.iter().map(|(label, value)| (label.as_str(), *value)).collect();
        metric("publishes_total", "counter", "Publishes, by what became of them.", &labelled);
        let counters = [
            ("producers_total", "Producers that connected.", self.producers_total),
            ("turned_away_total", "Producers beyond max_producers.", self.turned_away_total),
            ("publish_bytes_total", "Bytes of publishes sent to brokers.", self.bytes_total),
            ("moves_total", "Times that a publisher's topic went to another broker.", self.moves_total),
            ("broker_failures_total", "Connections to brokers that failed.", self.broker_failures_total),
            ("placement_answers_total", "Placements read.", self.placement_answers_total),
            ("placement_failures_total", "Placements that could not be read.", self.placement_failures_total),
        ];
        for (name, help, value) in counters {
            metric(name, "counter", help, &[("", value)]);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_are_counted_while_they_live() {
        let figures = Arc::new(Figures::default());
        let producer = Counted::new(&figures, Open::Producer);
        drop(Counted::new(&figures, Open::Producer));
        let _upstream = Counted::new(&figures, Open::Upstream);
        let totals = figures.totals();
        assert_eq!((totals.producers, totals.producers_total, totals.broker_connections), (1, 2, 1));
        drop(producer);
        assert_eq!(figures.totals().producers, 0);
    }

    #[test]
    fn each_metric_is_in_the_book() {
        let book = include_str!("../../../../../docs/src/how-to/steer-producers.md");
        let page = Figures::default().totals().page();
        let names: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(names.len(), 10);
        for name in names {
            assert!(book.contains(&format!("`{name}")), "{name} is not in the book");
        }
    }

    #[test]
    fn the_page_names_each_result() {
        let figures = Figures::default();
        let counts = Counts { accepted: 7, lost: 2, moves: 1, ..Counts::default() };
        figures.add(Counts::default(), counts);
        let page = figures.totals().page();
        for line in [
            "tidegate_steer_publishes_total{result=\"accepted\"} 7",
            "tidegate_steer_publishes_total{result=\"lost\"} 2",
            "tidegate_steer_moves_total 1",
            "# TYPE tidegate_steer_producers gauge",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
