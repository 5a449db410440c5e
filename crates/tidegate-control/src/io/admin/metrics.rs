//! `/metrics`: the figures of control for Prometheus. Series of nodes and topics are bounded by the configuration.

use std::fmt::Write as _;

use tidegate_core::number::float;

use crate::io::division::{DivisionPartView, DivisionView};
use crate::io::view::{ControlView, NodeView, PartView, TopicView};

/// A page that grows.
struct Page(String);

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.put(format_args!("# HELP tidegate_control_{name} {help}\n# TYPE tidegate_control_{name} {kind}\n"));
    }

    /// Names in labels are of the configuration, which has no quotes and backslashes in them.
    fn row(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.put(format_args!("tidegate_control_{name}"));
        for (number, (key, text)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            self.put(format_args!("{before}{key}=\"{text}\""));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        self.put(format_args!(" {value}\n"));
    }

    fn single(&mut self, name: &str, help: &str, kind: &str, value: f64) {
        self.head(name, help, kind);
        self.row(name, &[], value);
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a string does not fail");
    }
}

/// A metric's name and help, and how it is found.
type Figure<T> = (&'static str, &'static str, fn(&T) -> f64);

const NODES: [Figure<NodeView>; 3] = [
    ("node_ready", "1 while the broker takes publishers.", |node| f64::from(node.state == "ready")),
    ("node_mcap", "Messages per second that the broker takes within the objectives.", |node| node.mcap_per_s),
    ("node_allocated", "Messages per second of placed topics on the broker.", |node| node.allocated_per_s),
];

const TOPICS: [Figure<TopicView>; 9] = [
    ("topic_publishers", "Publishers that are known.", |topic| f64::from(topic.publishers)),
    ("topic_offered", "Messages per second that are sent.", |topic| topic.offered_per_s),
    ("topic_missing", "Messages per second that have no broker.", |topic| topic.missing_per_s),
    ("topic_brokers", "Brokers that have a part of the limit.", |topic| float(topic.parts.len() as u64)),
    ("topic_placement_revision", "Revision of the placement.", |topic| float(topic.placement)),
    ("topic_delay_p99_seconds", "The slowest broker's p99 from arrival to the end of processing.", |topic| {
        topic.measured.delay_us_p99 / 1e6
    }),
    ("topic_access_p99_seconds", "The slowest broker's p99 of waiting for tokens.", |topic| {
        topic.measured.access_us_p99 / 1e6
    }),
    ("topic_predicted_access_p99_seconds", "The same by the exact theory; NaN without a steady state.", |topic| {
        topic.predicted.as_ref().map_or(f64::NAN, |predicted| predicted.split.access_us_p99 / 1e6)
    }),
    ("topic_over_slo_ratio", "Share of messages beyond the objective.", |topic| topic.measured.share_over),
];

const PARTS: [Figure<PartView>; 4] = [
    ("part_publishers", "Publishers of the topic that are placed on the broker.", |part| f64::from(part.publishers)),
    ("part_rate", "The broker's part of the topic's rate, tokens per second.", |part| part.limit_rate_per_s),
    ("part_burst", "The broker's part of the topic's burst, tokens.", |part| float(part.limit_burst)),
    ("part_in_force", "1 if the broker acknowledged the part.", |part| f64::from(part.in_force)),
];

const LIMITS: [Figure<DivisionView>; 2] = [
    ("limit_offered", "Requests per second at all proxies of the limit.", |limit| limit.offered_per_s),
    ("limit_refused", "Requests per second that proxies of the limit refuse for want of a token.", |limit| {
        limit.refused_per_s
    }),
];

const LIMIT_PARTS: [Figure<DivisionPartView>; 4] = [
    ("limit_part_rate", "The proxy's part of the limit's rate, requests per second.", |part| part.limit_rate_per_s),
    ("limit_part_burst", "The proxy's part of the limit's burst, tokens.", |part| float(part.limit_burst)),
    ("limit_part_in_force", "1 if the proxy acknowledged the part.", |part| f64::from(part.in_force)),
    ("limit_part_refused", "Requests per second that the proxy refuses.", |part| part.refused_per_s),
];

/// The page.
pub(super) fn page(view: &ControlView) -> String {
    let mut page = Page(String::with_capacity(8 << 10));
    page.single("leads", "1 while this process leads.", "gauge", f64::from(view.leader.leads));
    page.single("store_healthy", "1 while the store answers.", "gauge", f64::from(view.store.healthy));
    let help = "Calls of the store that failed.";
    page.single("store_failures_total", help, "counter", float(view.store.failures_total));
    let help = "How long the store's last answer took.";
    page.single("store_latency_seconds", help, "gauge", view.store.latency_us / 1e6);
    for (name, help, figure) in NODES {
        page.head(name, help, "gauge");
        for node in &view.nodes {
            page.row(name, &[("node", &node.name)], figure(node));
        }
    }
    for (name, help, figure) in TOPICS {
        page.head(name, help, "gauge");
        for topic in &view.topics {
            page.row(name, &[("topic", &topic.name)], figure(topic));
        }
    }
    for (name, help, figure) in PARTS {
        page.head(name, help, "gauge");
        for topic in &view.topics {
            for part in &topic.parts {
                page.row(name, &[("topic", &topic.name), ("node", &part.node)], figure(part));
            }
        }
    }
    for (name, help, figure) in LIMITS {
        page.head(name, help, "gauge");
        for limit in &view.limits {
            page.row(name, &[("limit", &limit.name)], figure(limit));
        }
    }
    for (name, help, figure) in LIMIT_PARTS {
        page.head(name, help, "gauge");
        for limit in &view.limits {
            for part in &limit.parts {
                page.row(name, &[("limit", &limit.name), ("node", &part.node)], figure(part));
            }
        }
    }
    page.single("uptime_seconds", "Time since the start.", "gauge", view.uptime_s);
    page.0
}
