//! `tidegate explain`: where a placed topic is and why, or what would happen to a request now.

use std::fmt::Write as _;
use std::net::IpAddr;

use clap::Args;
use hyper::Method;
use serde::Deserialize;

use crate::admin_client::{AdminClient, Of, ReadToken, authority};
use crate::failure::Failure;
use crate::output::{self, Style, Table};
use crate::placed::{self, CONTROL};
use crate::proxy::quantity;

/// `tidegate explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A topic that `tidegate control` places; or the host of a request to a proxy, perhaps with a path behind it, such as
    /// `shop.example/cart`
    request: String,
    /// The method
    #[arg(short = 'X', long, default_value = "GET")]
    method: String,
    /// The name of the `ClientHello`, if it is not the host
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// The value of the header that tells tenants apart
    #[arg(long, value_name = "VALUE")]
    header: Option<String>,
    /// Whose request it is, whatever else says so
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// The client's address, for lists of addresses
    #[arg(long, value_name = "ADDRESS")]
    client: Option<IpAddr>,
    /// The proxy's admin API; without any address 127.0.0.1:4154
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = authority, conflicts_with = "control")]
    admin: Option<String>,
    /// Control's admin API; without any address 127.0.0.1:4190
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = authority)]
    control: Option<String>,
    #[command(flatten)]
    token: ReadToken,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The part of the answer that a person reads.
#[derive(Deserialize)]
struct Explanation {
    outcome: String,
    status: Option<u16>,
    why: Vec<String>,
    route: Option<Route>,
    tenant: Tenant,
    resources: Vec<Standing>,
    rate_limits: Vec<Limit>,
}

#[derive(Deserialize)]
struct Route {
    name: String,
    why: String,
    upstream: String,
    upstream_path: String,
    servers: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Tenant {
    name: String,
    why: String,
    weight: u32,
    lane: Option<String>,
}

#[derive(Deserialize)]
struct Standing {
    name: String,
    capacity: f64,
    learnt: bool,
    used_by_all: f64,
    share: f64,
    demand: f64,
    used: f64,
    refused: u64,
}

#[derive(Deserialize)]
struct Limit {
    scope: String,
    tag: String,
    #[serde(rename = "limit")]
    at_once: Option<u32>,
    rate: Option<String>,
    queue: u32,
    active: u64,
    waiting: u64,
    error: Option<u16>,
}

/// Where the proxy is looked for if nothing is said.
const PROXY: &str = "127.0.0.1:4154";

pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    match &args.control {
        Some(address) if explain_topic(args, address)? => Ok(()),
        Some(address) => Err(Failure::new(format!("control at {address} does not place {:?}", args.request))
            .help("its topics are the [[control.topic]] of its file")),
        // A bare name may be either; control, if there is one here, knows its topics.
        None if args.may_be_topic() => match explain_topic(args, CONTROL) {
            Ok(true) => Ok(()),
            told => explain_request(args).map_err(|failure| neither(args, told, failure)),
        },
        None => explain_request(args),
    }
}

/// A name that neither a control nor a proxy knows at its usual address.
fn neither(args: &ExplainArgs, told: Result<bool, Failure>, proxy: Failure) -> Failure {
    proxy.behind(match told {
        Ok(_) => format!("control at {CONTROL} does not place {:?}", args.request),
        Err(control) => control.to_string(),
    })
}

/// Explains a topic, if control places it.
fn explain_topic(args: &ExplainArgs, address: &str) -> Result<bool, Failure> {
    let client = AdminClient { of: Of::Control, address: address.to_owned(), token: args.token.load(Of::Control)? };
    let Some((value, placed)) = placed::ask(&client, &args.request)? else { return Ok(false) };
    match Style::of(args.json) {
        Style::Json => output::json(&value)?,
        Style::Table => placed.show()?,
    }
    Ok(true)
}

fn explain_request(args: &ExplainArgs) -> Result<(), Failure> {
    let address = args.admin.clone().unwrap_or_else(|| PROXY.to_owned());
    let client = AdminClient { of: Of::Proxy, address, token: args.token.load(Of::Proxy)? };
    let answer = client.ask(Method::GET, &path(args)?, None)?;
    match Style::of(args.json) {
        Style::Json => output::json(&answer),
        Style::Table => {
            let explanation = serde_json::from_value(answer).map_err(|error| {
                Failure::new(format!("{} is no proxy that this version knows", client.address)).because(error)
            })?;
            show(&explanation)
        }
    }
}

impl ExplainArgs {
    /// Whether nothing says that a request is meant.
    fn may_be_topic(&self) -> bool {
        let of_proxy = [&self.admin, &self.sni, &self.header, &self.tenant];
        of_proxy.into_iter().all(Option::is_none)
            && self.client.is_none()
            && self.method == "GET"
            && tidegate_wire::nsq::TopicName::new(&self.request).is_ok()
    }
}

/// The request to the admin API.
fn path(args: &ExplainArgs) -> Result<String, Failure> {
    let request = args.request.split_once("://").map_or(args.request.as_str(), |(_, rest)| rest);
    let (host, path) = request.find('/').map_or((request, "/"), |at| request.split_at(at));
    if host.is_empty() {
        return Err(Failure::usage(format!("{:?} names no host", args.request)).help("write it as shop.example/cart"));
    }
    let mut query =
        format!("/api/v1/explain?host={}&path={}&method={}", encoded(host), encoded(path), encoded(&args.method));
    for (key, value) in [("sni", &args.sni), ("header", &args.header), ("tenant", &args.tenant)] {
        if let Some(value) = value {
            write!(query, "&{key}={}", encoded(value)).expect("writing to a string does not fail");
        }
    }
    if let Some(client) = args.client {
        write!(query, "&client={client}").expect("writing to a string does not fail");
    }
    Ok(query)
}

/// `text` as a value in a query.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string does not fail");
        }
        encoded
    })
}

fn show(answer: &Explanation) -> Result<(), Failure> {
    let outcome = match answer.outcome.as_str() {
        "served_in_share" => "served at once, within the tenant's share",
        "served_from_overflow" => "served with what others leave, after everybody who is within his share",
        "waits" => "waits for what others leave",
        "refused_mostly" => "mostly refused",
        "served" => "served",
        "no_route" => "refused: no route",
        "misdirected" => "refused: its connection is for another host",
        "no_server" => "refused: no server",
        "rate_limited" => "refused by a rate limit",
        "denied" => "refused: a list denies the client",
        other => other,
    };
    let status = answer.status.map_or_else(String::new, |status| format!(" with {status}"));
    output::line(format_args!("outcome  {outcome}{status}"))?;
    for why in &answer.why {
        output::line(format_args!("because  {why}"))?;
    }
    if let Some(route) = &answer.route {
        let servers: Vec<String> = route.servers.iter().map(|(server, health)| format!("{server} {health}")).collect();
        output::line(format_args!("route    {}: {}", route.name, route.why))?;
        output::line(format_args!("goes to  {} as {} ({})", route.upstream, route.upstream_path, servers.join(", ")))?;
    }
    let Tenant { name, why, weight, lane } = &answer.tenant;
    let lane = match lane.as_deref() {
        Some("overflow") => ", served at the lowest priority now",
        Some(_) => "",
        None => ", asked for nothing lately",
    };
    output::line(format_args!("tenant   {name}, by {why}; weight {weight}{lane}"))?;
    for limit in &answer.rate_limits {
        output::line(format_args!("limit    {}", limit_line(limit)))?;
    }
    if answer.resources.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["resource", "share", "demand", "used", "refused", "used by all", "capacity", ""]);
    for one in &answer.resources {
        table.row([
            one.name.clone(),
            quantity(&one.name, one.share),
            quantity(&one.name, one.demand),
            quantity(&one.name, one.used),
            one.refused.to_string(),
            quantity(&one.name, one.used_by_all),
            quantity(&one.name, one.capacity),
            if one.learnt { "learnt".to_owned() } else { String::new() },
        ]);
    }
    output::line("")?;
    table.print()
}

fn limit_line(limit: &Limit) -> String {
    let Limit { scope, tag, queue, active, waiting, error, .. } = limit;
    let mut line = format!("{scope} {tag}:");
    if let Some(most) = limit.at_once {
        write!(line, " {active} of {most} at once,").expect("writing to a string does not fail");
    }
    if let Some(rate) = &limit.rate {
        write!(line, " {rate},").expect("writing to a string does not fail");
    }
    write!(line, " {waiting} of {queue} wait, then ").expect("writing to a string does not fail");
    line.push_str(&error.map_or_else(|| "the connection is closed".to_owned(), |status| status.to_string()));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(request: &str) -> ExplainArgs {
        ExplainArgs {
            request: request.to_owned(),
            method: "GET".to_owned(),
            sni: None,
            header: None,
            tenant: None,
            client: None,
            admin: None,
            control: None,
            token: ReadToken { token_file: None },
            json: false,
        }
    }

    #[test]
    fn a_request_is_written_as_in_a_browser() {
        assert_eq!(path(&args("a.example")).unwrap(), "/api/v1/explain?host=a.example&path=/&method=GET");
        assert_eq!(
            path(&args("https://a.example:8443/x y?z=1&b")).unwrap(),
            "/api/v1/explain?host=a.example:8443&path=/x%20y%3Fz%3D1%26b&method=GET"
        );
        let header = ExplainArgs { header: Some("gold+é".to_owned()), ..args("a/b") };
        assert_eq!(path(&header).unwrap(), "/api/v1/explain?host=a&path=/b&method=GET&header=gold%2B%C3%A9");
        let client = ExplainArgs { client: Some("::1".parse().unwrap()), ..args("a/b") };
        assert_eq!(path(&client).unwrap(), "/api/v1/explain?host=a&path=/b&method=GET&client=::1");
    }

    #[test]
    fn a_bare_name_may_be_a_topic() {
        assert!(args("orders").may_be_topic() && args("a.example").may_be_topic());
        assert!(!args("a.example/cart").may_be_topic() && !args("a.example:80").may_be_topic());
        assert!(!ExplainArgs { admin: Some("127.0.0.1:4154".to_owned()), ..args("orders") }.may_be_topic());
        assert!(!ExplainArgs { tenant: Some("gold".to_owned()), ..args("orders") }.may_be_topic());
    }

    #[test]
    fn a_limit_is_one_line() {
        let limit = Limit {
            scope: "sni".to_owned(),
            tag: "a.example".to_owned(),
            at_once: Some(10),
            rate: Some("100/s".to_owned()),
            queue: 5,
            active: 3,
            waiting: 0,
            error: Some(429),
        };
        assert_eq!(limit_line(&limit), "sni a.example: 3 of 10 at once, 100/s, 0 of 5 wait, then 429");
    }
}
