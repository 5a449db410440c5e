//! `tidegate status`: the topics of a running broker, in one screen.

use hyper::Method;
use serde::Deserialize;
use serde_json::Value;

use crate::admin_client::AdminClient;
use crate::cli::Status;
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// The part of the broker's snapshot that is shown.
#[derive(Deserialize)]
struct Snapshot {
    #[serde(default)]
    topics: Vec<Topic>,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Topic {
    name: String,
    paused: bool,
    limit: Option<Limit>,
    offered_total: u64,
    admitted_total: u64,
    refused_total: u64,
    waiting: u64,
    access_delay_us: Delay,
    depth: u64,
    channels: Vec<Channel>,
}

#[derive(Deserialize)]
struct Channel {
    name: String,
    paused: bool,
    limit: Option<Limit>,
    message_total: u64,
    delivered_total: u64,
    depth: u64,
    in_flight: u64,
    client_count: u64,
    access_delay_us: Delay,
}

#[derive(Deserialize)]
struct Limit {
    rate_per_s: f64,
    burst: u64,
    mode: String,
}

#[derive(Deserialize)]
struct Delay {
    p99: f64,
}

pub(crate) fn run(args: &Status) -> Result<(), Failure> {
    let client = AdminClient { address: args.running.admin.clone(), token: None };
    let mut answer = client.ask(Method::GET, "/api/v1/snapshot", None)?;
    if let Some(topics) = answer.get_mut("topics").and_then(Value::as_array_mut) {
        topics.retain(|topic| topic["name"].as_str().is_some_and(|name| name.starts_with(&args.prefix)));
    }
    match Style::of(args.running.json) {
        Style::Json => output::json(&answer),
        Style::Table => {
            let snapshot = serde_json::from_value(answer).map_err(|error| {
                Failure::new(format!("{} is no broker that this version knows", client.address)).because(error)
            })?;
            show(&snapshot)
        }
    }
}

fn show(snapshot: &Snapshot) -> Result<(), Failure> {
    let mut table = Table::new(&[
        "topic/channel",
        "limit",
        "burst",
        "mode",
        "in",
        "out",
        "refused",
        "waiting",
        "delay p99 ms",
        "depth",
        "in flight",
        "clients",
    ]);
    for topic in &snapshot.topics {
        let [rate, burst, mode] = contract(topic.limit.as_ref(), topic.paused);
        table.row([
            topic.name.clone(),
            rate,
            burst,
            mode,
            topic.offered_total.to_string(),
            topic.admitted_total.to_string(),
            topic.refused_total.to_string(),
            topic.waiting.to_string(),
            figure(topic.access_delay_us.p99 / 1e3),
            topic.depth.to_string(),
            "-".into(),
            "-".into(),
        ]);
        for channel in &topic.channels {
            let [rate, burst, mode] = contract(channel.limit.as_ref(), channel.paused);
            table.row([
                format!("  {}", channel.name),
                rate,
                burst,
                mode,
                channel.message_total.to_string(),
                channel.delivered_total.to_string(),
                "-".into(),
                "-".into(),
                figure(channel.access_delay_us.p99 / 1e3),
                channel.depth.to_string(),
                channel.in_flight.to_string(),
                channel.client_count.to_string(),
            ]);
        }
    }
    table.print()?;
    snapshot.warnings.iter().try_for_each(|warning| output::line(format_args!("warning: {warning}")))
}

fn contract(limit: Option<&Limit>, paused: bool) -> [String; 3] {
    let mode = |mode: &str| if paused { "paused".to_owned() } else { mode.to_owned() };
    match limit {
        Some(limit) => [format!("{}/s", figure(limit.rate_per_s)), limit.burst.to_string(), mode(&limit.mode)],
        None => ["-".into(), "-".into(), mode("-")],
    }
}
