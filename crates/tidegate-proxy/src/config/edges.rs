//! Upstreams, routes and the limits on them.

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tidegate_core::Rate;
use tidegate_runtime::config::units::Span;
use tidegate_runtime::config::{ConfigError, suggest};

use super::checked::{
    ClientCertificate, HeaderEdits, Health, RateLimit, Retries, Route, Server, SniRule, Trust, Upstream, UpstreamTls,
};
use super::paths::{self, Climbs, PlainPath};
use super::section::{
    HealthSection, RateLimitSection, RetriesSection, RouteSection, SniSection, UpstreamSection, UpstreamTlsSection,
};
use super::words::{Balance, Statuses, UpstreamProtocol};
use crate::config::place::{Lists, Place, host_name, own_name};

/// They say how a message is framed on one connection, and are nobody's to edit.
const FRAMING: [HeaderName; 6] = [CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

pub(super) fn upstreams(place: &Place<'_>, sections: Vec<UpstreamSection>) -> Result<Vec<Upstream>, ConfigError> {
    let mut upstreams: Vec<Upstream> = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("upstream[{index}]"));
        own_name(&place, "name", &section.name)?;
        if upstreams.iter().any(|other| other.name == section.name) {
            let remedy = "keep one; `servers` takes as many as there are";
            return Err(place.problem("name", format_args!("{} is there twice", section.name), remedy));
        }
        if section.servers.is_empty() {
            let remedy = "expected at least one, such as [\"127.0.0.1:9000\"]";
            return Err(place.problem("servers", "there is no server", remedy));
        }
        let mut servers = Vec::new();
        for (index, text) in section.servers.iter().enumerate() {
            let key = format!("servers[{index}]");
            let server = server(&place, &key, text)?;
            if servers.contains(&server) {
                return Err(place.problem(&key, format_args!("{server} is there twice"), "keep one of them"));
            }
            servers.push(server);
        }
        let weights = weights(&place, &section)?;
        let tls = section.tls.map(|tls| upstream_tls(&place.below("tls"), tls, &servers)).transpose()?;
        check_protocol(&place, section.protocol, tls.is_some())?;
        match (section.balance, &section.hash_by) {
            (Balance::Hash, None) => {
                let remedy = "add hash_by = \"source\", \"host\", \"path\" or \"header:NAME\"";
                return Err(place.problem("balance", "found \"hash\" without hash_by", remedy));
            }
            (Balance::LeastLoaded | Balance::RoundRobin, Some(by)) => {
                let found = format_args!("found \"{by}\" without balance = \"hash\"");
                return Err(place.problem("hash_by", found, "add it, or leave hash_by out"));
            }
            _ => {}
        }
        upstreams.push(Upstream {
            // What a server can do at once is not known here: a bound that slow answers reach refuses clients whom it would
            // have served. This one is what the ports of one address to another, 28,232 on Linux, permit in any case.
            max_connections: place.number("max_connections", section.max_connections, 16_384, 1..=1_000_000)?,
            // A client that takes no answer holds a hundred on one connection, and the memory that each of them needs here.
            max_streams: place.number("max_streams", section.max_streams, 512, 1..=1_000_000)?,
            queue: place.number("queue", section.queue, 1024, 0..=1_000_000)?,
            health: section.health.map(|health| health_of(&place.below("health"), health)).transpose()?,
            failure_statuses: statuses(&place, "failure_statuses", &section.failure_statuses)?,
            retries: retries(&place.below("retries"), &section.retries)?,
            slow_start: section.slow_start.map(|Span(span)| span).unwrap_or_default(),
            name: section.name,
            servers,
            resolve: section.resolve,
            weights,
            // Tenants share what is behind the proxy as well as the proxy itself.
            adaptive_concurrency: section.adaptive_concurrency.unwrap_or(true),
            balance: section.balance,
            hash_by: section.hash_by,
            protocol: section.protocol,
            proxy_protocol: section.proxy_protocol,
            tls,
        });
    }
    Ok(upstreams)
}

/// The weight of each server; those that are not named have 1.
fn weights(place: &Place<'_>, section: &UpstreamSection) -> Result<Vec<u16>, ConfigError> {
    if let Some(unknown) = section.weights.keys().find(|name| !section.servers.contains(name)) {
        let remedy = match suggest(unknown, section.servers.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => "write it as in servers".to_owned(),
        };
        return Err(place.problem("weights", format_args!("there is no server {unknown:?}"), remedy));
    }
    let weight = |name| place.number("weights", section.weights.get(name).copied(), 1, 0..=1_000);
    let weights = section.servers.iter().map(weight).collect::<Result<Vec<_>, _>>()?;
    if weights.iter().all(|&weight| weight == 0) {
        return Err(place.problem("weights", "every server has 0", "give one of them at least 1"));
    }
    Ok(weights)
}

fn server(place: &Place<'_>, key: &str, text: &str) -> Result<Server, ConfigError> {
    let wrong = || {
        let remedy = "expected host:port such as \"127.0.0.1:9000\", \"shop.internal:80\" or \"[::1]:9000\"";
        place.problem(key, format_args!("found {text:?}"), remedy)
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?.to_string(),
        None if host.contains([':', '*', '/']) => return Err(wrong()),
        None => host_name(place, key, host).map_err(|_| wrong())?,
    };
    Ok(Server { host, port, address: None })
}

/// The names of two of the protocols say whether TLS is spoken.
fn check_protocol(place: &Place<'_>, protocol: UpstreamProtocol, has_tls: bool) -> Result<(), ConfigError> {
    match (protocol, has_tls) {
        (UpstreamProtocol::Http2, false) => {
            let remedy = "add tls = {}, or write \"h2c\" for HTTP/2 without TLS";
            Err(place.problem("protocol", "found \"http2\" without tls", remedy))
        }
        (UpstreamProtocol::H2c, true) => {
            let remedy = "write \"http2\" for HTTP/2 over TLS, or leave tls out";
            Err(place.problem("protocol", "found \"h2c\" with tls", remedy))
        }
        _ => Ok(()),
    }
}

fn upstream_tls(
    place: &Place<'_>,
    section: UpstreamTlsSection,
    servers: &[Server],
) -> Result<UpstreamTls, ConfigError> {
    let trust = match (section.verify, section.roots.as_deref()) {
        (Some(false), None) => Trust::Unverified,
        (Some(false), Some(_)) => {
            let remedy = "leave one of them out: without verification no roots are needed";
            return Err(place.problem("verify", "found false beside roots", remedy));
        }
        (_, None | Some("system")) => Trust::System,
        (_, Some("")) => {
            let remedy = "expected \"system\", or a PEM file of authorities such as \"/etc/tidegate/ca.pem\"";
            return Err(place.problem("roots", "found \"\"", remedy));
        }
        (_, Some(file)) => Trust::File(file.into()),
    };
    let is_address = |text: &str| text.parse::<std::net::IpAddr>().is_ok();
    let name = match section.name {
        Some(name) if is_address(&name) => Some(name),
        Some(name) if name.contains('*') => {
            let remedy = "write out the one name that the servers' certificates must be for";
            return Err(place.problem("name", format_args!("found {name:?}"), remedy));
        }
        Some(name) => Some(host_name(place, "name", &name)?),
        None => None,
    };
    if name.is_none()
        && trust != Trust::Unverified
        && let Some(server) = servers.iter().find(|server| is_address(&server.host))
    {
        let found = format_args!("there is none, and {server} is an address");
        let remedy = "add the name that the servers' certificates are for, such as name = \"service.internal\"";
        return Err(place.problem("name", found, remedy));
    }
    let client = match (section.cert, section.key) {
        (Some(cert), Some(key)) => Some(ClientCertificate { cert, key }),
        (None, None) => None,
        (cert, _) => {
            let (there, missing) = if cert.is_some() { ("cert", "key") } else { ("key", "cert") };
            let remedy = format!("add {missing}, the PEM file that goes with it");
            return Err(place.problem(there, format_args!("found it without {missing}"), remedy));
        }
    };
    Ok(UpstreamTls { trust, name, client })
}

fn health_of(place: &Place<'_>, section: HealthSection) -> Result<Health, ConfigError> {
    const LEAST: Duration = Duration::from_millis(10);
    const STATUSES_MAX: usize = 16;
    let path = section.path.unwrap_or_else(|| "/".to_owned());
    check_path(place, "path", &path)?;
    if let Some(host) = &section.host {
        let is_host = host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'));
        if !is_host {
            let remedy = "expected a host, with a port if the servers want one: \"shop.example.com\"";
            return Err(place.problem("host", format_args!("found {host:?}"), remedy));
        }
    }
    let statuses = section.statuses.unwrap_or_else(|| vec![Statuses { first: 200, last: 399 }]);
    if statuses.is_empty() || statuses.len() > STATUSES_MAX {
        let found = format_args!("found {}", statuses.len());
        return Err(place.problem("statuses", found, format_args!("expected 1 to {STATUSES_MAX} of them")));
    }
    let interval = place.span("interval", section.interval, Duration::from_secs(2), LEAST)?;
    let default = interval.min(Duration::from_secs(1));
    let timeout = place.span("timeout", section.timeout, default, LEAST)?;
    if timeout > interval {
        let found = format_args!("found {timeout:?}, but the interval is {interval:?}");
        return Err(place.problem("timeout", found, "expected no more than the interval"));
    }
    let rise = place.number("rise", section.rise, 2, 1..=100)?;
    let fall = place.number("fall", section.fall, 3, 1..=100)?;
    Ok(Health { path, host: section.host, statuses, interval, timeout, rise, fall })
}

fn retries(place: &Place<'_>, section: &RetriesSection) -> Result<Retries, ConfigError> {
    Ok(Retries {
        attempts: place.number("attempts", section.attempts, 1, 0..=5)?,
        // A fifth: enough for a server that restarts, too little to make an overload worse.
        budget: place.number("budget", section.budget, 0.2, 0.0..=1.0)?,
        statuses: statuses(place, "statuses", &section.statuses)?,
    })
}

/// Statuses by which a server says that it failed. Those below 500 say what the client did, and so do 501, 505 and 511.
fn statuses(place: &Place<'_>, key: &str, given: &[u16]) -> Result<Vec<u16>, ConfigError> {
    for (index, status) in given.iter().enumerate() {
        let key = format!("{key}[{index}]");
        if !(500..=599).contains(status) || [501, 505, 511].contains(status) {
            let remedy = "expected statuses of a server that failed, such as [502, 503, 504]: from 500 to 599 without \
                          501, 505 and 511, which are up to the request";
            return Err(place.problem(&key, format_args!("found {status}"), remedy));
        }
        if given[..index].contains(status) {
            return Err(place.problem(&key, format_args!("{status} is there twice"), "keep one of them"));
        }
    }
    Ok(given.to_vec())
}

fn check_path(place: &Place<'_>, key: &str, path: &str) -> Result<(), ConfigError> {
    if path.starts_with('/') && path.bytes().all(paths::stands) {
        return Ok(());
    }
    let remedy = "expected a path such as \"/api/\", encoded as in a request, without `?`";
    Err(place.problem(key, format_args!("found {path:?}"), remedy))
}

/// What requests' paths are compared with, so it is in their plain form.
fn route_path(place: &Place<'_>, given: Option<String>) -> Result<String, ConfigError> {
    let path = given.unwrap_or_else(|| "/".to_owned());
    check_path(place, "path", &path)?;
    let found = format_args!("found {path:?}");
    match PlainPath::new(&path) {
        Err(Climbs) => Err(place.problem("path", found, "leave out `..`: requests with it get 400")),
        Ok(plain) if plain.as_str() != path => {
            let remedy = format!("write it as {:?}: the paths of requests are compared in that form", plain.as_str());
            Err(place.problem("path", found, remedy))
        }
        Ok(_) => Ok(path),
    }
}

pub(super) fn routes(
    place: &Place<'_>,
    sections: Vec<RouteSection>,
    upstreams: &[Upstream],
    lists: &Lists,
) -> Result<Vec<Route>, ConfigError> {
    let mut routes: Vec<Route> = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("route[{index}]"));
        let route = route(&place, section, upstreams, lists)?;
        if routes.iter().any(|other| other.name == route.name) {
            let found = format_args!("{} is there twice", route.name);
            return Err(place.problem("name", found, "give one of them another name: metrics are told apart by it"));
        }
        let same = |other: &&Route| {
            let clash = other.methods.is_empty() == route.methods.is_empty()
                && (route.methods.is_empty() || route.methods.iter().any(|method| other.methods.contains(method)));
            other.host == route.host && other.path == route.path && clash
        };
        if let Some(other) = routes.iter().find(same) {
            let found = format_args!("the same requests already go to route {}", other.name);
            return Err(place.problem("path", found, "keep one of them, or give it another host, path or methods"));
        }
        routes.push(route);
    }
    Ok(routes)
}

fn route(
    place: &Place<'_>,
    section: RouteSection,
    upstreams: &[Upstream],
    lists: &Lists,
) -> Result<Route, ConfigError> {
    let host = section.host.filter(|host| host != "*").map(|host| host_name(place, "host", &host)).transpose()?;
    let path = route_path(place, section.path)?;
    let mut methods = Vec::new();
    for text in &section.methods {
        let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| *text == text.to_ascii_uppercase());
        methods.push(method.ok_or_else(|| {
            place.problem("methods", format_args!("found {text:?}"), "expected methods such as \"GET\" or \"POST\"")
        })?);
    }
    let Some(upstream) = upstreams.iter().position(|upstream| upstream.name == section.upstream) else {
        let names = upstreams.iter().map(|upstream| upstream.name.as_str());
        let remedy = match suggest(&section.upstream, names) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("add [[proxy.upstream]] with name = {:?} and servers", section.upstream),
        };
        return Err(place.problem("upstream", format_args!("there is no upstream {:?}", section.upstream), remedy));
    };
    if let Some(rewrite) = &section.rewrite {
        check_path(place, "rewrite", rewrite)?;
    }
    let name = section.name.unwrap_or_else(|| {
        let methods = if section.methods.is_empty() { String::new() } else { section.methods.join(",") + ":" };
        format!("{methods}{}{path}", host.as_deref().unwrap_or("*"))
    });
    own_name(place, "name", &name)?;
    if let Some(tenant) = &section.tenant {
        own_name(place, "tenant", tenant)?;
    }
    let rate_limit =
        section.rate_limit.map(|limit| rate_limit(&place.below("rate_limit"), limit, lists)).transpose()?;
    Ok(Route {
        name,
        host,
        path,
        methods,
        upstream,
        rewrite: section.rewrite,
        request_headers: edits(place, "request", &section.set_request_headers, &section.remove_request_headers)?,
        response_headers: edits(place, "response", &section.set_response_headers, &section.remove_response_headers)?,
        tenant: section.tenant,
        rate_limit,
    })
}

fn edits(
    place: &Place<'_>,
    of: &str,
    set: &BTreeMap<String, String>,
    remove: &[String],
) -> Result<HeaderEdits, ConfigError> {
    let (set_key, remove_key) = (format!("set_{of}_headers"), format!("remove_{of}_headers"));
    let mut edits = HeaderEdits::default();
    for name in remove {
        edits.remove.push(header_name(place, &remove_key, name)?);
    }
    for (name, value) in set {
        let header = header_name(place, &set_key, name)?;
        let value = HeaderValue::from_str(value).map_err(|_| {
            let key = format!("{set_key}.{name}");
            place.problem(&key, format_args!("found {value:?}"), "expected visible ASCII characters on one line")
        })?;
        edits.set.push((header, value));
    }
    Ok(edits)
}

fn header_name(place: &Place<'_>, key: &str, text: &str) -> Result<HeaderName, ConfigError> {
    let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
        return Err(place.problem(key, format_args!("found {text:?}"), "expected a header's name such as \"X-Shop\""));
    };
    if FRAMING.contains(&name) || name.as_str() == "keep-alive" {
        let remedy = "leave it out: the proxy frames messages itself";
        return Err(place.problem(key, format_args!("{name} belongs to one connection"), remedy));
    }
    Ok(name)
}

pub(super) fn sni_rules(
    place: &Place<'_>,
    sections: Vec<SniSection>,
    lists: &Lists,
) -> Result<Vec<SniRule>, ConfigError> {
    let mut rules: Vec<SniRule> = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        let place = place.below(format_args!("sni[{index}]"));
        let read = |key: &str, names: &[String]| -> Result<Vec<String>, ConfigError> {
            names.iter().map(|name| host_name(&place, key, name)).collect()
        };
        let (names, aliases) = (read("names", &section.names)?, read("aliases", &section.aliases)?);
        if let Some(many) = names.iter().chain(&aliases).find(|name| name.starts_with("*.")) {
            let remedy = "write each name out; default = true is for all names without a rule";
            return Err(place.problem("names", format_args!("found {many:?}"), remedy));
        }
        if names.is_empty() && !section.default {
            let remedy = "add names, or default = true for all names without a rule";
            return Err(place.problem("names", "the rule is for no name", remedy));
        }
        if !aliases.is_empty() && names.len() != 1 {
            let found = format_args!("aliases of {} names", names.len());
            return Err(place.problem("aliases", found, "expected one name, which they are aliases of"));
        }
        if section.default && rules.iter().any(|rule| rule.default) {
            return Err(place.problem("default", "there are two defaults", "keep one of them"));
        }
        let known = |name: &&String| rules.iter().any(|rule| rule.names.contains(name) || rule.aliases.contains(name));
        if let Some(twice) = names.iter().chain(&aliases).find(known) {
            return Err(place.problem("names", format_args!("{twice} has two rules"), "keep one of them"));
        }
        let Some(limit) = section.rate_limit else {
            let remedy = "add [proxy.sni.rate_limit] with limit, rate or both";
            return Err(place.problem("rate_limit", "the rule has no limit", remedy));
        };
        let place = place.below("rate_limit");
        let of_requests = [
            ("header", limit.header.is_some()),
            ("error", limit.error.is_some()),
            ("retry", limit.retry.is_some()),
            ("connections", limit.connections),
        ];
        if let Some((key, _)) = of_requests.into_iter().find(|(_, given)| *given) {
            let remedy = "leave it out: connections are counted and closed; a route's limit can have it";
            return Err(place.problem(key, "the limit is of a name in the ClientHello", remedy));
        }
        let rate_limit = rate_limit(&place, limit, lists)?;
        rules.push(SniRule { names, aliases, default: section.default, rate_limit });
    }
    Ok(rules)
}

fn rate_limit(place: &Place<'_>, section: RateLimitSection, lists: &Lists) -> Result<RateLimit, ConfigError> {
    if section.limit.is_none() && section.rate.is_none() && section.deny.is_empty() {
        let remedy = "add limit (how many at once), rate (how many each second), or deny (lists of addresses)";
        return Err(place.problem("limit", "there is nothing to limit", remedy));
    }
    let rate = section.rate;
    if rate.is_some_and(Rate::is_zero) {
        return Err(place.problem("rate", "found 0", "expected more than 0; limit = 0 lets nothing through"));
    }
    if section.burst.is_some() && rate.is_none() {
        return Err(place.problem("burst", "a burst without a rate", "add rate, such as \"1000/s\""));
    }
    if section.divided && rate.is_none() {
        return Err(place.problem("divided", "there is no rate to divide", "add rate, such as \"1000/s\""));
    }
    let per_second = rate.map_or(1.0, |rate| rate.as_per_s().ceil().clamp(1.0, 1e15));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
    let burst = place.number("burst", section.burst, per_second as u64, 1..=1_000_000_000_000_000)?;
    let queue = place.number("queue", section.queue, 0, 0..=1_000_000)?;
    let error = place.number("error", section.error, 429, 400..=599)?;
    for (key, names) in [("allow", &section.allow), ("deny", &section.deny)] {
        if let Some(unknown) = names.iter().find(|name| !lists.contains_key(*name)) {
            let remedy = match suggest(unknown, lists.keys().map(String::as_str)) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("add [proxy.lists.{unknown}] with cidr"),
            };
            return Err(place.problem(key, format_args!("there is no list {unknown:?}"), remedy));
        }
    }
    Ok(RateLimit {
        limit: section.limit,
        rate,
        burst,
        divided: section.divided,
        queue,
        max_age: section.max_age.map(|Span(span)| span).filter(|span| !span.is_zero()),
        error: StatusCode::from_u16(error).expect("it is from 400 to 599"),
        retry: section.retry.map(|Span(span)| span).filter(|span| !span.is_zero()),
        header: section.header.map(|name| header_name(place, "header", &name)).transpose()?,
        connections: section.connections,
        prefix: section.prefix.unwrap_or_else(|| "plugin.rate_limiter".to_owned()),
        tag: section.tag,
        allow: section.allow,
        deny: section.deny,
    })
}
