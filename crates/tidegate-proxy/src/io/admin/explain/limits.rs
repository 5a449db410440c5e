//! The rate limits that a request passes, and what they would say to it.

use std::net::IpAddr;

use serde::Serialize;

use super::{Outcome, Request};
use crate::config::{Config, RateLimit};
use crate::io::admin::status::Live;
use crate::machine::rate_limit::{Cause, Outlook};

/// A rate limit that a request passes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LimitPassed {
    /// `sni` or `remap`, as the metrics say.
    pub scope: &'static str,
    /// Which one.
    pub tag: String,
    /// Most at once.
    pub limit: Option<u32>,
    /// Most each second, as text.
    pub rate: Option<String>,
    /// Most that wait.
    pub queue: u32,
    /// How many there are at once now.
    pub active: u64,
    /// How many wait now.
    pub waiting: u64,
    /// The status of a refusal; none where a connection is closed.
    pub error: Option<u16>,
    /// What it would say now.
    pub says: Says,
}

/// What a rate limit would say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Says {
    /// There is a slot and a token: go on.
    GoOn,
    /// Wait in the queue.
    Wait,
    /// No: neither that nor room in the queue is there.
    Refuse,
    /// Go on, uncounted: a list allows the client's address.
    Exempt,
    /// No: a list denies the client's address.
    Deny,
}

impl LimitPassed {
    /// What a request comes to that is not let through here, with the proxy's answer.
    pub(super) fn refusal(&self) -> Option<(Outcome, Option<u16>)> {
        let outcome = match self.says {
            Says::Refuse => Outcome::RateLimited,
            Says::Deny => Outcome::Denied,
            Says::GoOn | Says::Wait | Says::Exempt => return None,
        };
        Some((outcome, self.error))
    }
}

/// Those that `request` passes on its way to the route at this place, and sentences about what they would say.
pub(super) fn passed(
    config: &Config,
    live: &Live,
    request: &Request,
    route: Option<usize>,
    client: Option<IpAddr>,
) -> (Vec<LimitPassed>, Vec<String>) {
    let asked = Asked { config, live, client };
    let (mut all, mut why) = (Vec::new(), Vec::new());
    let sni = request.sni.as_deref().unwrap_or_default();
    let has = |names: &[String]| names.iter().any(|name| name == sni);
    let rule = config.sni.iter().find(|rule| has(&rule.names) || has(&rule.aliases));
    if let Some(rule) = rule.or(config.sni.iter().find(|rule| rule.default)).filter(|_| request.sni.is_some()) {
        let name = match rule.names.first() {
            Some(name) if has(&rule.aliases) => name.clone(),
            _ if has(&rule.names) => sni.to_owned(),
            _ => "*".to_owned(),
        };
        all.push(asked.one("sni", "sni", name, &rule.rate_limit, &mut why));
    }
    if let Some(route) = route.map(|index| &config.routes[index])
        && let Some(limit) = &route.rate_limit
    {
        all.push(asked.one("remap", "route", route.name.clone(), limit, &mut why));
    }
    (all, why)
}

struct Asked<'a> {
    config: &'a Config,
    live: &'a Live,
    client: Option<IpAddr>,
}

impl Asked<'_> {
    fn one(
        &self,
        scope: &'static str,
        kind: &str,
        name: String,
        limit: &RateLimit,
        why: &mut Vec<String>,
    ) -> LimitPassed {
        let gate = format!("{kind} {name}");
        let live = self.live.rate_limits.iter().find(|live| live.name == gate);
        let (counts, outlook) = live.map(|live| (live.counts, live.outlook)).unwrap_or_default();
        let tag = limit.tag.clone().unwrap_or(name);
        let says = self.by_address(limit).unwrap_or(match outlook {
            Outlook::Admit => Says::GoOn,
            Outlook::Queue(_) => Says::Wait,
            Outlook::Reject(_) => Says::Refuse,
        });
        if let Some(client) = self.client {
            match says {
                Says::Deny => why.push(format!("rate limit {tag} denies {client}")),
                Says::Exempt => why.push(format!("rate limit {tag} allows {client}, and does not count it")),
                Says::GoOn | Says::Wait | Says::Refuse => {}
            }
        } else if !(limit.allow.is_empty() && limit.deny.is_empty()) {
            why.push(format!("rate limit {tag} has lists of addresses, and no client was named"));
        }
        if let (Says::Wait | Says::Refuse, Outlook::Queue(cause) | Outlook::Reject(cause)) = (says, outlook) {
            let short = match (cause, limit.limit, limit.rate) {
                (Cause::Limit, Some(most), _) => format!("has {} of {most} under way", counts.active),
                (_, _, Some(rate)) => format!("admits {rate}, and has no token left"),
                _ => "is short".to_owned(),
            };
            let then = if says == Says::Wait { "it waits in the queue" } else { "it is refused" };
            why.push(format!("rate limit {tag} {short}: {then}"));
        }
        LimitPassed {
            scope,
            tag,
            limit: limit.limit,
            rate: limit.rate.map(|rate| rate.to_string()),
            queue: limit.queue,
            active: counts.active,
            waiting: counts.queue,
            error: (scope == "remap").then(|| limit.error.as_u16()),
            says,
        }
    }

    /// What the rule's lists say of the client; one that is on both is denied.
    fn by_address(&self, limit: &RateLimit) -> Option<Says> {
        let client = self.client?;
        let has = |names: &[String]| {
            names.iter().filter_map(|name| self.config.lists.get(name)).flatten().any(|range| range.contains(client))
        };
        if has(&limit.deny) {
            Some(Says::Deny)
        } else if has(&limit.allow) {
            Some(Says::Exempt)
        } else {
            None
        }
    }
}
