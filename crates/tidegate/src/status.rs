//! `tidegate status`: the topics of a running broker, and the tenants of a running proxy, in one screen.

use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin_client::{AdminClient, Of};
use crate::cli::Status;
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};
use crate::proxy::Figures;

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
    #[serde(default)]
    shadow: Option<Shadow>,
}

#[derive(Deserialize)]
struct Shadow {
    delay_us: Delay,
}

#[derive(Deserialize)]
struct Delay {
    p99: f64,
}

/// Where they are looked for if nothing is said.
const BROKER: &str = "127.0.0.1:4153";
const PROXY: &str = "127.0.0.1:4154";

pub(crate) fn run(args: &Status) -> Result<(), Failure> {
    // Who names one of them means that one. Else whoever answers is shown.
    // Broker and proxy of one `tidegate up` have one token.
    let token = args.token.load(if args.proxy.is_some() { Of::Proxy } else { Of::Broker })?;
    let client = |of, given: &Option<String>, other: &Option<String>, usual: &str| {
        let address = given.clone().or_else(|| other.is_none().then(|| usual.to_owned()))?;
        Some(AdminClient { of, address, token: token.clone() })
    };
    let broker = client(Of::Broker, &args.admin, &args.proxy, BROKER).map(|client| topics(&client, &args.prefix));
    let proxy = client(Of::Proxy, &args.proxy, &args.admin, PROXY).map(|client| Figures::ask(&client));
    let both_are_named = args.admin.is_some() && args.proxy.is_some();
    let (broker, proxy) = match (broker, proxy) {
        (Some(Err(failure)), None | Some(Err(_))) | (None, Some(Err(failure))) => return Err(failure),
        // Both were asked for by name: one without the other is not what was asked for.
        (Some(Err(failure)), Some(Ok(_))) | (Some(Ok(_)), Some(Err(failure))) if both_are_named => return Err(failure),
        (broker, proxy) => (broker.and_then(Result::ok), proxy.and_then(Result::ok)),
    };
    match Style::of(args.json) {
        Style::Json => {
            let mut answer = broker.unwrap_or_else(|| json!({}));
            if let Some(proxy) = proxy {
                answer["proxy"] = proxy.json(&args.prefix);
            }
            output::json(&answer)
        }
        Style::Table => {
            if let Some(broker) = broker {
                let unknown = "the broker is of a version that this one does not know";
                show(&serde_json::from_value(broker).map_err(|error| Failure::new(unknown).because(error))?)?;
                if proxy.is_some() {
                    output::line("")?;
                }
            }
            proxy.map_or(Ok(()), |proxy| proxy.show(&args.prefix))
        }
    }
}

/// The broker's snapshot, of topics whose name starts with `prefix`.
fn topics(client: &AdminClient, prefix: &str) -> Result<Value, Failure> {
    let mut answer = client.ask(Method::GET, "/api/v1/snapshot", None)?;
    if let Some(topics) = answer.get_mut("topics").and_then(Value::as_array_mut) {
        topics.retain(|topic| topic["name"].as_str().is_some_and(|name| name.starts_with(prefix)));
    }
    Ok(answer)
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
            delay(&topic.access_delay_us, topic.limit.as_ref()),
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
                delay(&channel.access_delay_us, channel.limit.as_ref()),
                channel.depth.to_string(),
                channel.in_flight.to_string(),
                channel.client_count.to_string(),
            ]);
        }
    }
    table.print()?;
    snapshot.warnings.iter().try_for_each(|warning| output::line(format_args!("warning: {warning}")))
}

/// The p99 in ms; in brackets what a limit in shadow mode would make of it.
fn delay(real: &Delay, limit: Option<&Limit>) -> String {
    match limit.and_then(|limit| limit.shadow.as_ref()) {
        Some(shadow) => format!("({})", figure(shadow.delay_us.p99 / 1e3)),
        None => figure(real.p99 / 1e3),
    }
}

fn contract(limit: Option<&Limit>, paused: bool) -> [String; 3] {
    let mode = |mode: &str| if paused { "paused".to_owned() } else { mode.to_owned() };
    match limit {
        Some(limit) => [output::rate(limit.rate_per_s), limit.burst.to_string(), mode(&limit.mode)],
        None => ["-".into(), "-".into(), mode("-")],
    }
}
