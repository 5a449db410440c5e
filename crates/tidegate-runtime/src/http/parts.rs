//! `/api/v1/parts` of a node: the orders that give it parts of limits, and why it refuses one.
//!
//! What a part is a part of, a topic's limit or a route's, is the node's own; the terms of an order, the words of a
//! refusal and the clock are the same at every node, as the one that divides limits reads them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_core::lease::{self, OnLapse};
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};

use super::Problem;
use crate::clock;

/// Most parts of one order. Control sends those of a limit together, and may send those of many.
pub const PARTS_MAX: usize = 4_096;
/// An order of that many, each with a long name.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Shortest and longest lease, ms.
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// An order as it is written; `G` is a part.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderBody<G> {
    revision: u64,
    lease_ms: u64,
    /// On the clock that answers tell as `now_us`. Without it there is no order: one that was held up on its way would hold
    /// for longer than its sender believes, and a repeated one would bring back what has lapsed.
    until_us: Option<u64>,
    #[serde(default)]
    on_lapse: OnLapse,
    parts: Vec<G>,
}

/// On which terms parts are granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartTerms {
    /// An order never replaces a part of a newer revision; at least 1.
    pub revision: u64,
    /// How long the parts hold, from when the order is carried out.
    pub lease: Duration,
    /// They hold no longer than until then, on the node's clock; and nothing is put in force after it.
    pub until: Instant,
    /// What holds after that.
    pub on_lapse: OnLapse,
}

impl PartTerms {
    /// When the leases of parts end that are put in force at `now`. Not after `now` if the order is late.
    #[must_use]
    pub fn ends(&self, now: Instant) -> Instant {
        self.until.min(now + self.lease)
    }

    /// The end that is stated is on another clock than this one: [`lease::ends_on_another_clock`].
    #[must_use]
    pub fn is_of_another_clock(&self, now: Instant) -> bool {
        lease::ends_on_another_clock(self.until, self.lease, now)
    }
}

/// How large the body of an order may be.
pub fn body_limit() -> DefaultBodyLimit {
    DefaultBodyLimit::max(BODY_BYTES_MAX)
}

/// The order that `body` gives; `example` is a part, as JSON, for the complaint about a body that is none.
///
/// # Errors
/// What is wrong with which key, and what to send.
pub fn order_of<G: DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
    example: &str,
) -> Result<(PartTerms, Vec<G>), Problem> {
    let body = body.map_err(|rejection| {
        let detail = format!("the body could not be read ({rejection}); it may have {BODY_BYTES_MAX} bytes");
        Problem::new(rejection.status(), "body", "The body cannot be read", detail)
    })?;
    parse(&body, example)
}

/// The same of a body that is there.
///
/// # Errors
/// As there.
pub fn parse<G: DeserializeOwned>(body: &[u8], example: &str) -> Result<(PartTerms, Vec<G>), Problem> {
    let order: OrderBody<G> = serde_json::from_slice(body).map_err(|error| {
        Problem::bad_request(format!(
            "the body is no order for parts ({error}); send {{\"revision\": 7, \"lease_ms\": 10000, \"until_us\": \
             81230000000, \"on_lapse\": \"local\", \"parts\": [{example}]}}"
        ))
    })?;
    if order.revision == 0 {
        return Err(Problem::bad_request("`revision` is 0; give a whole number from 1"));
    }
    let Some(until_us) = order.until_us else {
        return Err(Problem::bad_request(
            "`until_us` is missing, so a late order would hold for too long; give `now_us` of GET /api/v1/parts plus the \
             lease in microseconds",
        ));
    };
    if !LEASE_MS.contains(&order.lease_ms) {
        let (least, most) = (LEASE_MS.start(), LEASE_MS.end());
        let detail = format!("`lease_ms` is {}; a lease lasts {least} to {most} ms", order.lease_ms);
        return Err(Problem::bad_request(detail));
    }
    if !(1..=PARTS_MAX).contains(&order.parts.len()) {
        let detail = format!("`parts` has {} parts; an order has 1 to {PARTS_MAX}", order.parts.len());
        return Err(Problem::bad_request(detail));
    }
    let terms = PartTerms {
        revision: order.revision,
        lease: Duration::from_millis(order.lease_ms),
        until: Instant::from_nanos(until_us.saturating_mul(1_000)),
        on_lapse: order.on_lapse,
    };
    Ok((terms, order.parts))
}

/// The rate and burst of a part of what is called `name`.
///
/// # Errors
/// If nothing would ever pass although there is a rate.
pub fn limit_of(name: impl Display, rate: Rate, burst: u64) -> Result<Limit, Problem> {
    if burst == 0 && !rate.is_zero() {
        let detail = format!("`burst` of `{name}` is 0; give 1 or more, or a `rate_per_s` of 0 to hold everything");
        return Err(Problem::bad_request(detail));
    }
    Ok(Limit::new(rate, burst))
}

/// Finds the first of these names that stands twice in an order.
///
/// # Errors
/// If there is one.
pub fn once_each<N: Ord + Display>(names: impl IntoIterator<Item = N>) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    for name in names {
        if seen.contains(&name) {
            return Err(Problem::bad_request(format!("`{name}` stands twice in `parts`")));
        }
        seen.insert(name);
    }
    Ok(())
}

/// A part as it is shown, without the name of what it is a part of.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PartState {
    /// In force, exact. Absent, like the next two, if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    /// The same, rounded to the nearest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    revision: u64,
    lapses_in_ms: Option<u64>,
    on_lapse: OnLapse,
    /// The part as it was ordered, where that is not what is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordered: Option<LimitJson>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct LimitJson {
    rate: String,
    burst: u64,
}

impl PartState {
    /// What is in force, and the part as it was ordered; its revision, when its lease ends, and what holds then.
    #[must_use]
    pub fn new(
        (in_force, ordered): (Option<Limit>, Limit),
        revision: u64,
        lapses_in_ms: Option<u64>,
        on_lapse: OnLapse,
    ) -> Self {
        let json = LimitJson { rate: ordered.rate.to_string(), burst: ordered.burst };
        Self {
            rate: in_force.map(|limit| limit.rate.to_string()),
            rate_per_s: in_force.map(|limit| limit.rate.as_per_s()),
            burst: in_force.map(|limit| limit.burst),
            revision,
            lapses_in_ms,
            on_lapse,
            ordered: (in_force != Some(ordered)).then_some(json),
        }
    }
}

/// Answer to `PUT /api/v1/parts`; `P` is a part as the node shows it.
#[derive(Debug, Serialize)]
pub struct PutAnswer<P> {
    revision: u64,
    now_us: u64,
    in_force: Vec<P>,
}

impl<P> PutAnswer<P> {
    /// The parts of an order of this revision, as they stand now.
    #[must_use]
    pub fn new(revision: u64, in_force: Vec<P>) -> Self {
        Self { revision, now_us: now_us(), in_force }
    }
}

/// Answer to `GET /api/v1/parts`.
#[derive(Debug, Serialize)]
pub struct AllAnswer<P> {
    now_us: u64,
    parts: Vec<P>,
}

impl<P> AllAnswer<P> {
    /// All parts that the node has.
    #[must_use]
    pub fn new(parts: Vec<P>) -> Self {
        Self { now_us: now_us(), parts }
    }
}

/// Answer to `DELETE /api/v1/parts/{name}`.
#[derive(Debug, Serialize)]
pub struct RemovedAnswer<P> {
    /// Of the removal.
    pub revision: u64,
    /// As it stood before.
    pub removed: Option<P>,
}

/// What a removal is about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    revision: u64,
}

/// The revision of a removal, `?revision=NUMBER`.
///
/// # Errors
/// If there is none.
pub fn revision_of(removal: Result<Query<Removal>, QueryRejection>) -> Result<u64, Problem> {
    let removal =
        removal.map_err(|rejection| Problem::bad_request(format!("{rejection}; the parameter is revision=NUMBER")))?;
    Ok(removal.0.revision)
}

/// The node's monotonic clock, as answers tell it.
#[must_use]
pub fn now_us() -> u64 {
    clock::now().as_nanos() / 1_000
}

/// Why a node refuses an order for a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A newer order holds.
    Stale,
    /// An order of the same revision said something else.
    OtherContent,
    /// What the part is of counts something else.
    OtherUnit,
    /// The order came after the end of its lease.
    Late,
    /// The end of its lease is not on this clock.
    OtherClock,
    /// There is no room.
    Full,
    /// What it takes away is lent to others.
    Lent,
}

impl Refusal {
    /// The answer, with what the node says about it. Of [`Self::Stale`] it says ` revision N`, for whoever ordered.
    #[must_use]
    pub fn problem(self, said: impl Display) -> Problem {
        let (kind, title, remedy) = match self {
            Self::Stale => ("stale-revision", "A newer order holds", "ask who leads now"),
            Self::OtherContent => ("other-content", "The revision is taken", "send the change with a newer revision"),
            Self::OtherUnit => {
                ("other-unit", "The limit counts something else", "/api/v1/limits says what the limit counts")
            }
            Self::Late => ("late", "The order is late", "send it with a later `until_us`"),
            Self::OtherClock => (
                "other-clock",
                "The order is of another clock",
                "read `now_us` of GET /api/v1/parts, and add the lease",
            ),
            Self::Lent => ("lent", "What it takes is lent", "send it again"),
            Self::Full => ("full", "No more parts fit", "remove parts that nobody needs"),
        };
        Problem::new(StatusCode::CONFLICT, kind, title, format!("{said}; {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Any {}

    #[test]
    fn complaints_name_key_value_and_remedy() {
        let order = |fields: &str, parts: &str| format!(r#"{{{fields}, "parts": [{parts}]}}"#);
        let sound = r#""revision": 7, "lease_ms": 1000, "until_us": 9"#;
        for (body, said) in [
            ("[]".to_owned(), "the body is no order for parts"),
            (order(r#""lease_ms": 1000"#, "{}"), "missing field `revision`"),
            (order(r#""revision": 0, "lease_ms": 1000"#, "{}"), "`revision` is 0"),
            (order(r#""revision": 1, "lease_ms": 1000"#, "{}"), "`until_us` is missing, so a late order"),
            (
                order(r#""revision": 1, "lease_ms": 99, "until_us": 9"#, "{}"),
                "`lease_ms` is 99; a lease lasts 100 to 3600000 ms",
            ),
            (order(sound, ""), "`parts` has 0 parts; an order has 1 to 4096"),
            (order(&format!(r#"{sound}, "on_lapse": "shut""#), "{}"), "unknown variant `shut`"),
        ] {
            let detail = parse::<Any>(body.as_bytes(), "{}").unwrap_err().detail;
            assert!(detail.contains(said), "{body}: {detail}");
        }
        assert!(limit_of("t", Rate::per_s(1), 0).unwrap_err().detail.contains("`burst` of `t` is 0"));
        assert_eq!(limit_of("t", Rate::ZERO, 0), Ok(Limit::new(Rate::ZERO, 0)));
        assert!(once_each(["b", "a", "b"]).unwrap_err().detail.contains("`b` stands twice"));
        assert_eq!(once_each(["b", "a"]), Ok(()));
    }

    #[test]
    fn leases_end_when_the_order_says_at_the_latest() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let body = br#"{"revision": 7, "lease_ms": 100, "until_us": 70000, "parts": [{}]}"#;
        let (terms, _) = parse::<Any>(body, "{}").unwrap();
        assert_eq!([0, 69, 90].map(|ms| terms.ends(at(ms))), [at(70); 3]);
        assert_eq!(PartTerms { until: at(500), ..terms }.ends(at(0)), at(100));
    }
}
