//! What the fields of draft-ietf-httpapi-ratelimit-headers-10 and their older forms say of a limit.
//!
//! Their unit is requests if none is named, so what clients do not count themselves is told in requests: time of a core,
//! by what a request of theirs is expected to take.

use std::fmt::{self, Write as _};
use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::config::{RateLimit, RateLimitHeaders};
use crate::io::conn::limiter::Refusal;
use crate::machine::Resource;
use crate::machine::rate_limit::{Cause, Rejection};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEGACY: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
/// No integer of a structured field is greater (RFC 9651, 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;
const SECOND_NS: u64 = 1_000_000_000;

/// A limit as clients are told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Quota {
    name: &'static str,
    /// How much, in its unit.
    most: u64,
    /// The draft's default is requests.
    unit: Option<&'static str>,
    /// For how many seconds; none of what is held and given back.
    window_s: Option<u64>,
}

impl Quota {
    /// The share that a refusal was about; none of one too small to be told.
    fn of_share(refusal: &Refusal) -> Option<Self> {
        let Refusal { resource, share, .. } = *refusal;
        if share == 0 {
            return None;
        }
        let (most, unit, window_s) = match resource {
            Resource::Requests | Resource::Handshakes => (share, None, Some(1)),
            Resource::EventTime | Resource::HandshakeTime => {
                let cost = refusal.cost.max(1);
                // A share that is less than one request a second is one request in so many.
                let window_s = if share < cost { cost.div_ceil(share) } else { 1 };
                ((share / cost).max(1), None, Some(window_s))
            }
            Resource::NetworkBytes | Resource::DiskBytes => (share, Some("content-bytes"), Some(1)),
            Resource::Connections => (share, Some("connections"), None),
            Resource::Memory => (share, Some("bytes"), None),
        };
        Some(Self { name: resource.name(), most, unit, window_s })
    }

    /// How many requests may begin.
    fn of_rate(rule: &RateLimit) -> Option<Self> {
        let rate = rule.rate.filter(|rate| !rate.is_zero())?;
        let window_s = rate.period_ns().div_ceil(SECOND_NS);
        let most = u128::from(rate.tokens()) * u128::from(window_s) * u128::from(SECOND_NS);
        let most = u64::try_from(most / u128::from(rate.period_ns())).unwrap_or(u64::MAX);
        Some(Self { name: "rate", most, unit: None, window_s: Some(window_s) })
    }

    /// How many may be under way.
    fn of_limit(rule: &RateLimit) -> Option<Self> {
        let unit = if rule.connections { "connections" } else { "concurrent-requests" };
        Some(Self { name: "limit", most: rule.limit?.into(), unit: Some(unit), window_s: None })
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\";q={}", self.name, self.most.min(INTEGER_MAX))?;
        if let Some(unit) = self.unit {
            write!(f, ";qu=\"{unit}\"")?;
        }
        self.window_s.map_or(Ok(()), |window_s| write!(f, ";w={}", window_s.min(INTEGER_MAX)))
    }
}

/// Tells of a refusal for want of a share.
pub(crate) fn tell_share(fields: &mut HeaderMap, refusal: &Refusal, form: RateLimitHeaders) {
    let quota = Quota::of_share(refusal);
    let short = Some((refusal.resource.name(), Some(whole_seconds(refusal.retry_after))));
    // The older form has no units: what is not a number of connections is one of requests.
    let most = match refusal.resource {
        Resource::Requests | Resource::Handshakes | Resource::Connections => refusal.share,
        _ => (refusal.share / refusal.cost.max(1)).max(refusal.share.min(1)),
    };
    tell(fields, quota.as_slice(), short, most, form);
}

/// Tells of a `rate_limit` that rejected.
pub(crate) fn tell_rule(fields: &mut HeaderMap, rejection: &Rejection, rule: &RateLimit, form: RateLimitHeaders) {
    let of_cause = match rejection.cause {
        Cause::Rate => Quota::of_rate(rule),
        Cause::Limit => Quota::of_limit(rule),
        // Whether a slot or a token came too late is not known.
        Cause::Age => None,
        // Nothing is left over or comes back.
        Cause::Denied => return,
    };
    let all: Vec<Quota> = Quota::of_limit(rule).into_iter().chain(Quota::of_rate(rule)).collect();
    let short = of_cause.map(|quota| (quota.name, rejection.retry_after.map(whole_seconds)));
    tell(fields, &all, short, of_cause.map_or(0, |quota| quota.most), form);
}

/// `short` is the policy that there is nothing left of, with the seconds until there is if that is known.
fn tell(
    fields: &mut HeaderMap,
    policies: &[Quota],
    short: Option<(&str, Option<u64>)>,
    most: u64,
    form: RateLimitHeaders,
) {
    if matches!(form, RateLimitHeaders::Draft | RateLimitHeaders::Both) {
        let mut policy = String::new();
        for quota in policies {
            let comma = if policy.is_empty() { "" } else { ", " };
            write!(policy, "{comma}{quota}").expect("strings take every byte");
        }
        set(fields, RATELIMIT_POLICY, &policy);
        if let Some((name, reset)) = short {
            let reset = reset.map_or(String::new(), |reset| format!(";t={reset}"));
            set(fields, RATELIMIT, &format!("\"{name}\";r=0{reset}"));
        }
    }
    if matches!(form, RateLimitHeaders::Legacy | RateLimitHeaders::Both)
        && let Some((_, reset)) = short
    {
        for (name, value) in LEGACY.into_iter().zip([Some(most), Some(0), reset]) {
            if let Some(value) = value {
                fields.insert(name, HeaderValue::from(value));
            }
        }
    }
}

fn set(fields: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Some(value) = HeaderValue::try_from(value).ok().filter(|value| !value.is_empty()) {
        fields.insert(name, value);
    }
}

/// The next whole second: to come back earlier would be in vain.
pub(crate) fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::machine::neighbours::Cause as ShareCause;
    use tidegate_runtime::config::Document;

    fn of_share(resource: Resource, share: u64, cost: u64) -> [Option<String>; 3] {
        let retry_after = Duration::from_millis(1_001);
        let refusal = Refusal { resource, cause: ShareCause::OverShare, retry_after, share, limit: 2 * share, cost };
        let mut fields = HeaderMap::new();
        tell_share(&mut fields, &refusal, RateLimitHeaders::Both);
        ["ratelimit-policy", "ratelimit", "x-ratelimit-limit"].map(|name| told(&fields, name))
    }

    fn told(fields: &HeaderMap, name: &str) -> Option<String> {
        fields.get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_share_is_told_in_what_a_client_counts() {
        for (resource, share, cost, policy, legacy) in [
            (Resource::Requests, 50, 1, "\"requests\";q=50;w=1", "50"),
            (Resource::EventTime, 200_000_000, 50_000, "\"event_time\";q=4000;w=1", "4000"),
            (Resource::EventTime, 1_000_000, 2_500_000, "\"event_time\";q=1;w=3", "1"),
            (Resource::NetworkBytes, 9_000, 3_000, "\"network_bytes\";q=9000;qu=\"content-bytes\";w=1", "3"),
            (Resource::Connections, 7, 1, "\"connections\";q=7;qu=\"connections\"", "7"),
            (Resource::Memory, 80_000, 40_000, "\"memory\";q=80000;qu=\"bytes\"", "2"),
        ] {
            let [told_policy, left, told_legacy] = of_share(resource, share, cost);
            assert_eq!((told_policy.as_deref(), told_legacy.as_deref()), (Some(policy), Some(legacy)));
            assert_eq!(left.unwrap(), format!("\"{}\";r=0;t=2", resource.name()));
        }
        let [policy, left, legacy] = of_share(Resource::EventTime, 0, 50_000);
        assert_eq!((policy, left.as_deref(), legacy.as_deref()), (None, Some("\"event_time\";r=0;t=2"), Some("0")));
    }

    fn of_rule(rule: &str, cause: Cause, retry_after: Option<Duration>) -> [Option<String>; 4] {
        let text = format!(
            "[[proxy.upstream]]\nname = \"u\"\nservers = [\"127.0.0.1:1\"]\n[[proxy.route]]\nupstream = \"u\"\n\
             rate_limit = {{ {rule} }}\n"
        );
        let config = Config::from_document(&Document::new("t.toml", text), 1).unwrap();
        let mut fields = HeaderMap::new();
        let rejection = Rejection { cause, status: 429, retry_after };
        tell_rule(&mut fields, &rejection, config.routes[0].rate_limit.as_ref().unwrap(), RateLimitHeaders::Both);
        ["ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-reset"].map(|name| told(&fields, name))
    }

    #[test]
    fn a_rule_tells_its_policies_and_which_one_is_used_up() {
        let some = |text: &str| Some(text.to_owned());
        let both = "limit = 4, rate = \"90/min\"";
        let policy = some("\"limit\";q=4;qu=\"concurrent-requests\", \"rate\";q=3;w=2");
        let second = Some(Duration::from_millis(700));
        let told = of_rule(both, Cause::Rate, second);
        assert_eq!(told, [policy.clone(), some("\"rate\";r=0;t=1"), some("3"), some("1")]);
        let told = of_rule(both, Cause::Limit, None);
        assert_eq!(told, [policy.clone(), some("\"limit\";r=0"), some("4"), None]);
        assert_eq!(of_rule(both, Cause::Age, None), [policy, None, None, None]);
        assert_eq!(of_rule(both, Cause::Denied, None), [None, None, None, None]);
        let [policy, ..] = of_rule("limit = 9, connections = true", Cause::Limit, None);
        assert_eq!(policy, some("\"limit\";q=9;qu=\"connections\""));
    }
}
