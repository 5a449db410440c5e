//! A running proxy in a few tables, for `tidegate status`.

use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin_client::AdminClient;
use crate::failure::Failure;
use crate::output::{self, Table, figure};

/// Tenants that are listed: those that use most.
const SHOWN: usize = 20;

/// The part of `GET /api/v1/neighbours` that is shown.
#[derive(Deserialize)]
struct Neighbours {
    mode: String,
    resources: Vec<Resource>,
    tenants: Vec<Tenant>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    capacity: Option<f64>,
    learnt: bool,
    used: f64,
}

#[derive(Deserialize)]
struct Tenant {
    name: String,
    weight: u32,
    lane: String,
    resources: Vec<Use>,
    refused: Refused,
}

#[derive(Deserialize)]
struct Use {
    name: String,
    demand: f64,
    share: f64,
    used: f64,
}

#[derive(Deserialize)]
struct Refused {
    hello: u64,
    request: u64,
    queue: u64,
}

/// The part of `GET /api/v1/proxy` that is shown.
#[derive(Deserialize)]
struct Status {
    phase: String,
    connections: u64,
    requests_total: u64,
    listeners: Vec<Listener>,
    upstreams: Vec<Upstream>,
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Listener {
    address: String,
    tls: bool,
}

#[derive(Deserialize)]
struct Upstream {
    name: String,
    waiting: u64,
    servers: Vec<Server>,
}

#[derive(Deserialize)]
struct Server {
    address: String,
    health: String,
    active: u64,
    requests_total: u64,
    failures_total: u64,
}

/// An amount of `resource` in the unit that people think in; processor time is in nanoseconds on the wire.
pub(crate) fn quantity(resource: &str, amount: f64) -> String {
    match resource {
        "event_time" | "handshake_time" => format!("{} cores", figure(amount / 1e9)),
        "network_bytes" | "disk_bytes" | "memory" => format!("{} MB", figure(amount / 1e6)),
        _ => figure(amount),
    }
}

/// What a proxy says of itself.
pub(crate) struct Figures {
    status: Value,
    neighbours: Value,
}

impl Figures {
    /// Asks the proxy whose admin API is `client`.
    pub(crate) fn ask(client: &AdminClient) -> Result<Self, Failure> {
        let get = |path| client.ask(Method::GET, path, None);
        Ok(Self { status: get("/api/v1/proxy")?, neighbours: get("/api/v1/neighbours")? })
    }

    /// For programs; tenants whose name starts with `prefix`.
    pub(crate) fn json(mut self, prefix: &str) -> Value {
        if let Some(tenants) = self.neighbours.get_mut("tenants").and_then(Value::as_array_mut) {
            tenants.retain(|tenant| tenant["name"].as_str().is_some_and(|name| name.starts_with(prefix)));
        }
        json!({ "status": self.status, "neighbours": self.neighbours })
    }

    /// For people; tenants whose name starts with `prefix`.
    pub(crate) fn show(self, prefix: &str) -> Result<(), Failure> {
        let unknown = |error| Failure::new("the proxy is of a version that this one does not know").because(error);
        let status: Status = serde_json::from_value(self.status).map_err(unknown)?;
        let neighbours: Neighbours = serde_json::from_value(self.neighbours).map_err(unknown)?;
        for line in head(&status, &neighbours) {
            output::line(line)?;
        }
        let tenants: Vec<&Tenant> =
            neighbours.tenants.iter().filter(|tenant| tenant.name.starts_with(prefix)).collect();
        if !tenants.is_empty() {
            output::line("")?;
            table_of_tenants(&tenants, &neighbours.resources).print()?;
            if tenants.len() > SHOWN {
                output::line(format_args!("and {} more", tenants.len() - SHOWN))?;
            }
        }
        if !status.upstreams.is_empty() {
            output::line("")?;
            table_of_servers(&status.upstreams).print()?;
        }
        status.warnings.iter().try_for_each(|warning| output::line(format_args!("warning: {warning}")))
    }
}

fn head(status: &Status, neighbours: &Neighbours) -> Vec<String> {
    let scheme = |listener: &Listener| if listener.tls { "https" } else { "http" };
    let addresses: Vec<String> =
        status.listeners.iter().map(|listener| format!("{}://{}", scheme(listener), listener.address)).collect();
    let Status { phase, connections, requests_total, .. } = status;
    let short: Vec<String> = neighbours.resources.iter().filter_map(in_use).collect();
    let short = if short.is_empty() { "nothing is limited yet".to_owned() } else { short.join(", ") };
    vec![
        format!("proxy   {} ({phase}): {connections} connections, {requests_total} requests", addresses.join(", ")),
        format!("limits  {}: {short}", neighbours.mode),
    ]
}

/// `handshakes 41 % of 900 (learnt)`.
fn in_use(resource: &Resource) -> Option<String> {
    let capacity = resource.capacity.filter(|capacity| *capacity > 0.0)?;
    let learnt = if resource.learnt { " (learnt)" } else { "" };
    Some(format!(
        "{} {:.0} % of {}{learnt}",
        resource.name,
        100.0 * resource.used / capacity,
        quantity(&resource.name, capacity)
    ))
}

/// Each tenant with the resource of which it uses the largest part.
fn table_of_tenants(tenants: &[&Tenant], resources: &[Resource]) -> Table {
    let mut table =
        Table::new(&["tenant", "weight", "lane", "most of", "demand", "share", "used", "refused", "at hello"]);
    for tenant in tenants.iter().take(SHOWN) {
        let part = |one: &&Use| {
            let resource = resources.iter().find(|resource| resource.name == one.name);
            resource
                .and_then(|resource| resource.capacity)
                .filter(|most| *most > 0.0)
                .map_or(0.0, |most| one.used / most)
        };
        let most = tenant.resources.iter().max_by(|a, b| part(a).total_cmp(&part(b)));
        let of = |field: fn(&Use) -> f64| most.map_or_else(|| "-".to_owned(), |one| quantity(&one.name, field(one)));
        let Refused { hello, request, queue } = tenant.refused;
        table.row([
            tenant.name.clone(),
            tenant.weight.to_string(),
            tenant.lane.clone(),
            most.map_or_else(|| "-".to_owned(), |one| one.name.clone()),
            of(|one| one.demand),
            of(|one| one.share),
            of(|one| one.used),
            (hello + request + queue).to_string(),
            hello.to_string(),
        ]);
    }
    table
}

fn table_of_servers(upstreams: &[Upstream]) -> Table {
    let mut table = Table::new(&["upstream", "server", "health", "active", "requests", "failures", "waiting"]);
    for upstream in upstreams {
        for server in &upstream.servers {
            table.row([
                upstream.name.clone(),
                server.address.clone(),
                server.health.clone(),
                server.active.to_string(),
                server.requests_total.to_string(),
                server.failures_total.to_string(),
                upstream.waiting.to_string(),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_shown_with_what_it_uses_most_of() {
        let neighbours: Neighbours = serde_json::from_value(json!({
            "mode": "restrict",
            "resources": [
                { "name": "handshakes", "capacity": 1000.0, "learnt": true, "used": 900.0 },
                { "name": "requests", "capacity": 10000.0, "learnt": false, "used": 100.0 },
                { "name": "memory", "capacity": null, "learnt": false, "used": 5.0 },
            ],
            "tenants": [{
                "name": "b.example", "weight": 2, "lane": "overflow",
                "resources": [
                    { "name": "requests", "demand": 90.0, "share": 99.0, "used": 90.0 },
                    { "name": "handshakes", "demand": 3200.0, "share": 700.0, "used": 800.0 },
                ],
                "refused": { "hello": 41, "request": 2, "queue": 0 },
            }],
        }))
        .unwrap();
        let tenants: Vec<&Tenant> = neighbours.tenants.iter().collect();
        assert_eq!(
            table_of_tenants(&tenants, &neighbours.resources).to_string(),
            "tenant     weight  lane      most of     demand  share  used  refused  at hello\n\
             b.example       2  overflow  handshakes    3200    700   800       43        41\n"
        );
        let status = Status {
            phase: "serving".to_owned(),
            connections: 3,
            requests_total: 5,
            listeners: vec![Listener { address: "127.0.0.1:8443".to_owned(), tls: true }],
            upstreams: Vec::new(),
            warnings: Vec::new(),
        };
        assert_eq!(
            head(&status, &neighbours),
            [
                "proxy   https://127.0.0.1:8443 (serving): 3 connections, 5 requests",
                "limits  restrict: handshakes 90 % of 1000 (learnt), requests 1 % of 10000"
            ]
        );
    }
}
