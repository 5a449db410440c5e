//! What would happen to a request now, and why.
//!
//! It is worked out from the configuration and a snapshot of the limits, so it costs the limits nothing and changes
//! nothing: the request is not counted.

use std::net::IpAddr;
use std::time::Duration;

use http::Method;
use serde::{Deserialize, Serialize};

use super::status::{Health, Live, LiveUpstream};
use crate::config::tenancy::Traits;
use crate::config::{Config, PlainPath, Routes, Tenancy, TenantBy};
use crate::machine::Resource;
use crate::machine::neighbours::{Lane, Mode, ResourceView, Snapshot, TenantView, UseView};

mod limits;

pub use self::limits::{LimitPassed, Says};

/// A request that somebody wonders about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// With or without a port.
    pub host: String,
    /// With or without a query; `/` if it is empty.
    pub path: String,
    /// `GET` if it is empty.
    pub method: String,
    /// The name of the `ClientHello`; the host if it is left out and some listener speaks TLS.
    pub sni: Option<String>,
    /// The value of the header that tells tenants apart.
    pub header: Option<String>,
    /// Whose request it is, whatever else says so.
    pub tenant: Option<String>,
    /// The client's address, for lists that allow or deny some.
    pub client: Option<IpAddr>,
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Explanation {
    /// What happens.
    pub outcome: Outcome,
    /// The status that the proxy itself would answer with; none if the upstream answers.
    pub status: Option<u16>,
    /// The reasons, as sentences, the first the most important.
    pub why: Vec<String>,
    /// The request as it was understood.
    pub request: Request,
    /// The route that it takes.
    pub route: Option<RouteTaken>,
    /// Whose it is.
    pub tenant: TenantFound,
    /// How the tenant stands with each resource that is limited.
    pub resources: Vec<Standing>,
    /// Rate limits that it passes, those of its SNI name first.
    pub rate_limits: Vec<LimitPassed>,
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is served within the tenant's share.
    ServedInShare,
    /// It is served with what others leave, at the lowest priority.
    ServedFromOverflow,
    /// Its tenant is over its share and there is nothing left: it waits until there is, and is refused if that takes long.
    Waits,
    /// Its tenant holds more than its share and there is nothing left, or is not to wait: most of its requests are refused.
    RefusedMostly,
    /// It is served, and nothing is limited.
    Served,
    /// No route takes it.
    NoRoute,
    /// Neither the certificate nor the tenant of its `ClientHello` is for its host.
    Misdirected,
    /// No server of its upstream is up.
    NoServer,
    /// A rate limit of its SNI name or its route has no room for it.
    RateLimited,
    /// A list of one of these denies its client's address.
    Denied,
}

/// A request as it was understood.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Request {
    /// In lower case, without a port.
    pub host: String,
    /// Without a query.
    pub path: String,
    /// The method.
    pub method: String,
    /// The name of the `ClientHello`.
    pub sni: Option<String>,
}

/// The route that a request takes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RouteTaken {
    /// Its name.
    pub name: String,
    /// Which of its keys it was chosen for.
    pub why: String,
    /// Its upstream's name.
    pub upstream: String,
    /// The path that the upstream gets.
    pub upstream_path: String,
    /// The upstream's servers, with how they are.
    pub servers: Vec<(String, Health)>,
}

/// Whose a request is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TenantFound {
    /// The tenant's name.
    pub name: String,
    /// What it is known by.
    pub why: String,
    /// Against the others' 1.
    pub weight: u32,
    /// Whether it asked for something lately. If not, it draws on what is kept for newcomers.
    pub known: bool,
    /// Where its connections are served now.
    pub lane: Option<Lane>,
}

/// How a tenant stands with a resource. Amounts are per second, of gauges at once.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Standing {
    /// The resource.
    pub name: String,
    /// What there is for all.
    pub capacity: f64,
    /// Whether that was learnt.
    pub learnt: bool,
    /// What all use.
    pub used_by_all: f64,
    /// What the tenant is granted.
    pub share: f64,
    /// What the tenant wants.
    pub demand: f64,
    /// What the tenant uses.
    pub used: f64,
    /// Whether it wants more than its share, and more than its part of the capacity by weight.
    pub over_share: bool,
    /// Refused since it came.
    pub refused: u64,
}

/// What would happen to the request of `question` now.
#[must_use]
pub fn explain(
    config: &Config,
    routes: &Routes,
    tenancy: &Tenancy,
    snapshot: &Snapshot,
    live: &Live,
    question: &Question,
) -> Explanation {
    let request = understand(config, question);
    let method = Method::from_bytes(request.method.as_bytes()).unwrap_or(Method::GET);
    let path = PlainPath::new(&request.path);
    let climbs = path.is_err();
    let index = path.ok().and_then(|path| routes.find(&request.host, &path, &method));
    let tenant = tenant_of(config, tenancy, snapshot, &request, question, index);
    let view = snapshot.tenants.iter().find(|view| view.name == tenant.name);
    let resources = standings(config, snapshot, view);
    let (rate_limits, why) = limits::passed(config, live, &request, index, question.client);
    let route = index.map(|index| route_taken(config, live, &request, index));
    let mut explanation =
        Explanation { outcome: Outcome::Served, status: None, why, request, route, tenant, resources, rate_limits };
    decide(&mut explanation, snapshot, config.limits.patience);
    let misdirected =
        explanation.request.sni.as_deref().is_some_and(|sni| tenancy.is_misdirected(sni, &explanation.request.host));
    if misdirected && !matches!(explanation.outcome, Outcome::RateLimited | Outcome::Denied) {
        (explanation.outcome, explanation.status) = (Outcome::Misdirected, Some(421));
        explanation.why = vec!["neither the certificate nor the tenant of its ClientHello is for its host".to_owned()];
    } else if climbs && explanation.outcome == Outcome::NoRoute {
        explanation.status = Some(400);
        explanation.why = vec!["its path leaves the root, or hides that it does".to_owned()];
    }
    explanation
}

fn understand(config: &Config, question: &Question) -> Request {
    let host = bare_host(&question.host);
    let path = question.path.split(['?', '#']).next().filter(|path| path.starts_with('/')).unwrap_or("/");
    let method = if question.method.is_empty() { "GET" } else { &question.method };
    let tls = config.listeners.iter().any(|listener| listener.tls);
    let sni = match &question.sni {
        Some(sni) => Some(bare_host(sni)),
        None if tls && !host.is_empty() => Some(host.clone()),
        None => None,
    };
    Request { host, path: path.to_owned(), method: method.to_ascii_uppercase(), sni: sni.filter(|sni| !sni.is_empty()) }
}

fn bare_host(text: &str) -> String {
    let name = match text.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => match text.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) && !name.contains(':') => name,
            _ => text,
        },
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn route_taken(config: &Config, live: &Live, request: &Request, index: usize) -> RouteTaken {
    let route = &config.routes[index];
    let upstream = &config.upstreams[route.upstream];
    let host = match &route.host {
        Some(host) if host.starts_with('*') => format!("host {host}"),
        Some(host) => format!("its host is {host}"),
        None => "it takes every host".to_owned(),
    };
    let methods = match route.methods.as_slice() {
        [] => String::new(),
        methods => format!(", for {}", methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ")),
    };
    let unknown = LiveUpstream::default();
    let live = live.upstreams.get(route.upstream).unwrap_or(&unknown);
    RouteTaken {
        name: route.name.clone(),
        why: format!("{host}, its path {} is the longest that fits{methods}", route.path),
        upstream: upstream.name.clone(),
        upstream_path: route.rewritten(&request.path).unwrap_or_else(|| request.path.clone()),
        servers: live.servers_of(upstream).map(|(server, live)| (server, live.health)).collect(),
    }
}

fn tenant_of(
    config: &Config,
    tenancy: &Tenancy,
    snapshot: &Snapshot,
    request: &Request,
    question: &Question,
    route: Option<usize>,
) -> TenantFound {
    let route = route.map(|index| &config.routes[index]);
    let traits = Traits {
        sni: request.sni.as_deref(),
        host: &request.host,
        route: route.map(|route| (route.name.as_str(), route.tenant.as_deref())),
        header: question.header.as_deref(),
    };
    let (name, why) = match (&question.tenant, route.and_then(|route| route.tenant.as_ref())) {
        (Some(tenant), _) => (tenant.clone(), "the question says so".to_owned()),
        (None, Some(tenant)) => (tenant.clone(), "its route says so".to_owned()),
        (None, None) => {
            let name = tenancy.of_request(traits).name.to_owned();
            let by = match &config.tenants.by {
                TenantBy::Header(header) if question.header.is_some() => format!("its header {header}"),
                TenantBy::Route if route.is_some() => "its route".to_owned(),
                _ => "its host".to_owned(),
            };
            (name, by)
        }
    };
    let view = snapshot.tenants.iter().find(|view| view.name == name);
    let configured = config.tenants.named.iter().find(|tenant| tenant.name == name);
    TenantFound {
        weight: view.map(|view| view.weight).or(configured.map(|tenant| tenant.weight)).unwrap_or(1),
        known: view.is_some(),
        lane: view.map(|view| view.lane),
        name,
        why,
    }
}

fn standings(config: &Config, snapshot: &Snapshot, view: Option<&TenantView>) -> Vec<Standing> {
    // A capacity may be known of what is not shared out by itself: requests, say, which cost a core's time.
    let is_shared = |resource: &ResourceView| {
        let own = |view: &TenantView| view.resources.iter().any(|own| own.name == resource.name && own.share > 0.0);
        resource.global > 0.0 || snapshot.tenants.iter().any(own)
    };
    // Whatever its share is, nobody is refused what is his by weight alone.
    let weights: f64 = snapshot.tenants.iter().map(|view| f64::from(view.weight)).sum();
    let shared = 1.0 - config.limits.reserve - config.limits.newcomers;
    let part = view.map_or(0.0, |view| shared * f64::from(view.weight) / weights);
    let standing = |resource: &ResourceView| {
        let capacity = resource.capacity.filter(|_| is_shared(resource))?;
        let own = view.and_then(|view| view.resources.iter().find(|own| own.name == resource.name));
        let of = |field: fn(&UseView) -> f64| own.map_or(0.0, field);
        Some(Standing {
            name: resource.name.clone(),
            capacity,
            learnt: resource.learnt,
            used_by_all: resource.used,
            share: of(|own| own.share),
            demand: of(|own| own.demand),
            used: of(|own| own.used),
            over_share: own.is_some_and(|own| own.used.max(own.demand) > own.share.max(capacity * part)),
            refused: own.map_or(0, |own| own.refused_share + own.refused_full),
        })
    };
    snapshot.resources.iter().filter_map(standing).collect()
}

/// Fills in what happens, and adds why. What is met first on the way decides.
fn decide(explanation: &mut Explanation, snapshot: &Snapshot, patience: Duration) {
    let mut why = std::mem::take(&mut explanation.why);
    (explanation.outcome, explanation.status) = outcome(explanation, snapshot, patience, &mut why);
    explanation.why = why;
}

fn outcome(
    explanation: &Explanation,
    snapshot: &Snapshot,
    patience: Duration,
    why: &mut Vec<String>,
) -> (Outcome, Option<u16>) {
    let refused_at = |scope: &str| {
        let limit = explanation.rate_limits.iter().find(|limit| limit.scope == scope);
        limit.and_then(LimitPassed::refusal)
    };
    if let Some(refused) = refused_at("sni") {
        return refused;
    }
    let Some(route) = &explanation.route else {
        why.push(format!(
            "no route takes {} {}{}; /api/v1/proxy lists them",
            explanation.request.method, explanation.request.host, explanation.request.path
        ));
        return (Outcome::NoRoute, Some(404));
    };
    let by_share = judge(explanation, snapshot, patience, why);
    if by_share.0 == Outcome::RefusedMostly {
        return by_share;
    }
    if let Some(refused) = refused_at("remap") {
        return refused;
    }
    if !route.servers.is_empty() && route.servers.iter().all(|(_, health)| *health == Health::Down) {
        // The most important reason is the first.
        why.insert(0, format!("no server of upstream {} passes its health check", route.upstream));
        return (Outcome::NoServer, Some(503));
    }
    by_share
}

fn judge(
    explanation: &Explanation,
    snapshot: &Snapshot,
    patience: Duration,
    why: &mut Vec<String>,
) -> (Outcome, Option<u16>) {
    let name = &explanation.tenant.name;
    if snapshot.mode == Mode::Off {
        why.push("the limits are off: nobody is held to anything".to_owned());
        return (Outcome::Served, None);
    }
    if explanation.resources.is_empty() {
        why.push("nothing has been short yet: no capacity is configured, and none had to be learnt".to_owned());
        return (Outcome::Served, None);
    }
    if !explanation.tenant.known {
        why.push(format!("{name} asked for nothing lately: it begins with what is kept for newcomers"));
        return (Outcome::ServedInShare, None);
    }
    let over: Vec<&Standing> = explanation.resources.iter().filter(|one| one.over_share).collect();
    if over.is_empty() {
        why.push(format!("{name} wants no more than its share of anything, and so waits for nobody"));
        return (Outcome::ServedInShare, None);
    }
    // What is held is there again when somebody gives it back, and not by itself.
    let (mut short, mut held) = (false, false);
    let is_held = |name: &str| [Resource::Connections, Resource::Memory].iter().any(|one| one.name() == name);
    for one in &over {
        let Standing { name: resource, demand, share, used, used_by_all, capacity, .. } = one;
        let full = used_by_all >= &(0.98 * capacity);
        short |= full;
        held |= full && is_held(resource);
        let rest = if full {
            "and all of it is in use".to_owned()
        } else {
            format!("and others leave {}", amount(resource, capacity - used_by_all))
        };
        why.push(format!(
            "{name} wants {} of {resource}, its share is {}, {rest}",
            amount(resource, demand.max(*used)),
            amount(resource, *share)
        ));
    }
    if !short {
        return (Outcome::ServedFromOverflow, None);
    }
    if snapshot.mode == Mode::Stats {
        why.push("the limits only count (mode stats): it is served all the same".to_owned());
        return (Outcome::ServedFromOverflow, None);
    }
    if held || patience.is_zero() {
        return (Outcome::RefusedMostly, Some(429));
    }
    why.push(format!(
        "it waits for what the others leave, and is refused with 429 if that takes longer than {patience:?}"
    ));
    (Outcome::Waits, None)
}

/// An amount of `resource` in the unit that people think in: time of a core in cores, bytes in millions.
fn amount(resource: &str, amount: f64) -> String {
    match Resource::named(resource) {
        Some(resource) if resource.is_time() => format!("{:.3} cores", amount / 1e9),
        Some(Resource::NetworkBytes | Resource::DiskBytes | Resource::Memory) => format!("{:.1} MB", amount / 1e6),
        _ => format!("{amount:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::config::Document;

    use super::*;
    use crate::io::admin::status::LiveRateLimit;
    use crate::machine::Kind;
    use crate::machine::neighbours::RefusedView;
    use crate::machine::rate_limit::{Cause, Counts, Outlook};

    const FILE: &str = "[[proxy.upstream]]\nname = \"u\"\nservers = [\"127.0.0.1:1\"]\n[[proxy.route]]\nname = \
                        \"api\"\nhost = \"a.example\"\npath = \"/api\"\nrewrite = \"/v2\"\nupstream = \"u\"\n\
                        [proxy.route.rate_limit]\nlimit = 10\nrate = \"5/s\"\n\
                        error = 503\ndeny = [\"bad\"]\nallow = [\"all\"]\n[proxy.lists.bad]\ncidr = [\"192.0.2.0/24\"]\n\
                        [proxy.lists.all]\ncidr = [\"192.0.0.0/16\"]\n[[proxy.tenant]]\nname = \"b.example\"\nweight = 3\n";

    fn snapshot(demand: f64, used_by_all: f64, mode: Mode) -> Snapshot {
        let own = UseView {
            name: "requests".to_owned(),
            demand,
            share: 100.0,
            used: demand,
            overflow: 0.0,
            lent: 0.0,
            refused_share: 7,
            refused_full: 0,
        };
        let resource = ResourceView {
            name: "requests".to_owned(),
            kind: Kind::Counter,
            capacity: Some(1_000.0),
            learnt: true,
            global: 200.0,
            used: used_by_all,
            refused_share: 7,
            refused_full: 0,
        };
        let tenant = TenantView {
            name: "a.example".to_owned(),
            weight: 1,
            lane: Lane::Share,
            resources: vec![own],
            refused: RefusedView::default(),
        };
        // By weight alone a.example's part is a tenth.
        let rival = TenantView { name: "b.example".to_owned(), weight: 9, resources: Vec::new(), ..tenant.clone() };
        Snapshot { mode, resources: vec![resource], tenants: vec![tenant, rival], ..Snapshot::default() }
    }

    fn ask(snapshot: &Snapshot, host: &str, path: &str) -> Explanation {
        let config = Config::from_document(&Document::new("t.toml", FILE), 1).unwrap();
        let question = Question { host: host.to_owned(), path: path.to_owned(), ..Question::default() };
        explain(&config, &Routes::new(&config), &Tenancy::new(&config, []), snapshot, &Live::default(), &question)
    }

    #[test]
    fn a_tenant_within_its_share_waits_for_nobody() {
        let answer = ask(&snapshot(90.0, 1_000.0, Mode::Restrict), "A.example:443", "/api/x?y=z");
        assert_eq!((answer.outcome, answer.status), (Outcome::ServedInShare, None));
        let route = answer.route.unwrap();
        assert_eq!((route.name.as_str(), route.upstream_path.as_str()), ("api", "/v2/x"));
        assert_eq!((answer.tenant.name.as_str(), answer.tenant.why.as_str()), ("a.example", "its host"));
        assert_eq!((answer.rate_limits[0].limit, answer.rate_limits[0].tag.as_str()), (Some(10), "api"));
    }

    #[test]
    fn beyond_its_share_it_depends_on_what_others_leave() {
        let ask = |all, mode| ask(&snapshot(150.0, all, mode), "a.example", "/api").outcome;
        assert_eq!(ask(500.0, Mode::Restrict), Outcome::ServedFromOverflow);
        assert_eq!(ask(1_000.0, Mode::Restrict), Outcome::Waits);
        assert_eq!(ask(1_000.0, Mode::Stats), Outcome::ServedFromOverflow);
        assert_eq!(ask(1_000.0, Mode::Off), Outcome::Served);
    }

    #[test]
    fn what_is_not_shared_out_by_itself_is_nobodys_reason() {
        let mut snapshot = snapshot(150.0, 1_000.0, Mode::Restrict);
        snapshot.resources[0].global = 0.0;
        snapshot.tenants[0].resources[0].share = 0.0;
        let answer = ask(&snapshot, "a.example", "/api");
        assert_eq!((answer.outcome, answer.resources.len()), (Outcome::Served, 0));
    }

    #[test]
    fn paths_are_understood_as_those_of_requests_are() {
        let snapshot = snapshot(90.0, 1_000.0, Mode::Restrict);
        let route = |path| ask(&snapshot, "a.example", path).route.map(|route| (route.name, route.upstream_path));
        for path in ["/api/x", "//%61pi/x", "/./api/x"] {
            assert_eq!(route(path), Some(("api".to_owned(), "/v2/x".to_owned())), "{path}");
        }
        let climbs = ask(&snapshot, "a.example", "/api/%2e%2e/x");
        assert_eq!((climbs.outcome, climbs.status, climbs.route), (Outcome::NoRoute, Some(400), None));
        assert_eq!(climbs.why, ["its path leaves the root, or hides that it does"]);
    }

    #[test]
    fn the_reasons_have_figures() {
        let answer = ask(&snapshot(150.0, 1_000.0, Mode::Restrict), "a.example", "/api");
        assert_eq!((answer.outcome, answer.status), (Outcome::Waits, None));
        assert_eq!(
            answer.why[1..],
            [
                "a.example wants 150 of requests, its share is 100, and all of it is in use",
                "it waits for what the others leave, and is refused with 429 if that takes longer than 1s"
            ]
        );
        assert_eq!(answer.resources[0].refused, 7);
    }

    fn with_limit(outlook: Outlook, client: Option<&str>) -> Explanation {
        let config = Config::from_document(&Document::new("t.toml", FILE), 1).unwrap();
        let client = client.map(|client| client.parse().unwrap());
        let question =
            Question { host: "a.example".to_owned(), path: "/api".to_owned(), client, ..Question::default() };
        let counts = Counts { active: 10, ..Counts::default() };
        let other = LiveRateLimit { name: "route other".to_owned(), tag: "api".to_owned(), ..LiveRateLimit::default() };
        let own =
            LiveRateLimit { name: "route api".to_owned(), tag: "api".to_owned(), counts, outlook, ..other.clone() };
        let live = Live { rate_limits: vec![other, own], ..Live::default() };
        let snapshot = snapshot(90.0, 500.0, Mode::Restrict);
        explain(&config, &Routes::new(&config), &Tenancy::new(&config, []), &snapshot, &live, &question)
    }

    #[test]
    fn a_rate_limit_that_would_refuse_is_the_outcome() {
        let answer = with_limit(Outlook::Reject(Cause::Rate), Some("198.51.100.1"));
        assert_eq!((answer.outcome, answer.status), (Outcome::RateLimited, Some(503)));
        assert_eq!(answer.why[0], "rate limit api admits 5/s, and has no token left: it is refused");
        assert_eq!(answer.rate_limits[0].active, 10, "of its own gate, not of another with the same tag");
        let answer = with_limit(Outlook::Queue(Cause::Limit), None);
        assert_eq!((answer.outcome, answer.rate_limits[0].says), (Outcome::ServedInShare, Says::Wait));
        assert_eq!(answer.why[0], "rate limit api has lists of addresses, and no client was named");
        assert_eq!(answer.why[1], "rate limit api has 10 of 10 under way: it waits in the queue");
    }

    #[test]
    fn lists_of_addresses_decide_before_the_limit() {
        let denied = with_limit(Outlook::Admit, Some("192.0.2.7"));
        assert_eq!((denied.outcome, denied.status), (Outcome::Denied, Some(503)));
        assert_eq!(denied.why[0], "rate limit api denies 192.0.2.7");
        let exempt = with_limit(Outlook::Reject(Cause::Limit), Some("192.0.3.7"));
        assert_eq!((exempt.outcome, exempt.status), (Outcome::ServedInShare, None));
        assert_eq!(exempt.rate_limits[0].says, Says::Exempt);
    }

    #[test]
    fn what_no_route_takes_is_said() {
        let answer = ask(&Snapshot::default(), "b.example", "/");
        assert_eq!((answer.outcome, answer.status), (Outcome::NoRoute, Some(404)));
        assert_eq!((answer.tenant.weight, answer.tenant.known), (3, false));
        assert_eq!(answer.why, ["no route takes GET b.example/; /api/v1/proxy lists them"]);
    }

    #[test]
    fn hosts_lose_port_case_and_dot() {
        for (text, host) in
            [("A.example:80", "a.example"), ("[::1]:80", "::1"), ("::1", "::1"), ("a.example.", "a.example"), ("", "")]
        {
            assert_eq!(bare_host(text), host);
        }
    }
}
