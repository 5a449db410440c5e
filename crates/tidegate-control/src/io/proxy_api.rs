//! A proxy's admin API, as far as control uses it: what is sent and what is answered.
//!
//! What a proxy leaves out is zero or empty, what it says beyond is ignored: control and proxy may be of different
//! releases.

use std::hash::Hasher;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use tidegate_core::Rate;
use tidegate_core::limit::Limit;
use tidegate_core::number::float;

use super::broker_api::PartsBody;
use super::client::{NodeClient, escaped};
use crate::config::{LENDERS_MAX, OnStoreLoss, Proxy};
use crate::error::NodeError;
use crate::machine::adaptor::Second;
use crate::machine::divider::DemandReading;
use crate::machine::name::Name;
use crate::machine::steps::Put;

/// `GET /api/v1/demand/{limit}?seconds=N`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DemandAnswer {
    /// The proxy's monotonic clock, microseconds.
    pub now_us: u64,
    /// It takes no new connections.
    pub draining: bool,
    /// The last whole seconds, newest last.
    pub seconds: Vec<DemandSecond>,
    /// The part that it has.
    pub part: Option<HeldPart>,
}

/// A whole second of a limit at a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DemandSecond {
    /// When it began, on the proxy's clock.
    pub start_us: u64,
    /// Requests that came.
    pub requests: u64,
    /// Those of them that were refused for want of a token.
    pub refused: u64,
    /// Tokens that were missing at the worst moment, those of refused requests included.
    pub backlog_max: u64,
}

/// A part that a proxy has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct HeldPart {
    /// Tokens per second, exact.
    pub rate: Rate,
    /// Depth in tokens.
    pub burst: u64,
}

/// A part of a limit in `PUT /api/v1/parts`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct LimitPartBody<'a> {
    /// `route NAME` or `sni NAME`.
    pub limit: &'a str,
    /// Tokens per second; a text, which is exact.
    pub rate_per_s: Rate,
    /// Depth in tokens.
    pub burst: u64,
    /// With whom tokens are lent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lend: Option<&'a LendBody>,
}

/// With whom tokens of a limit are lent, as a part says it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LendBody {
    /// The same for all proxies of the limit, and another one for others.
    pub circle: u64,
    /// Which of the members is told.
    pub own: u16,
    /// 32 hexadecimal digits, which all members share.
    pub key: String,
    /// All of them.
    pub members: Vec<LendMember>,
}

/// A proxy that lends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct LendMember {
    /// Its number, which it has in no other limit.
    pub member: u16,
    /// Where it takes datagrams.
    pub address: SocketAddr,
}

/// How the proxies of a limit lend, under `secret`: one for each of them, in their order. `number` is that of the limit.
#[must_use]
pub fn lenders(limit: &str, number: usize, proxies: &[Proxy], secret: [u8; 16]) -> Vec<LendBody> {
    let member = |(place, proxy): (usize, &Proxy)| {
        let member = u16::try_from(number * LENDERS_MAX + place).ok()?;
        Some(LendMember { member, address: proxy.lend? })
    };
    let members: Vec<LendMember> = proxies.iter().enumerate().filter_map(member).collect();
    let mut hasher = SipHasher24::new();
    hasher.write(limit.as_bytes());
    for LendMember { member, address } in &members {
        hasher.write(format!(" {member} {address}").as_bytes());
    }
    hasher.write(&secret);
    let (circle, key) = (hasher.finish(), format!("{:032x}", u128::from_be_bytes(secret)));
    let own = |member: &LendMember| LendBody { circle, own: member.member, key: key.clone(), members: members.clone() };
    members.iter().map(own).collect()
}

impl DemandAnswer {
    /// The same, as a divider wants to know it.
    #[must_use]
    pub fn reading(&self) -> DemandReading {
        let second = |told: &DemandSecond| Second {
            start_us: told.start_us,
            tokens: told.requests,
            backlog_max: told.backlog_max,
        };
        let refused: u64 = self.seconds.iter().map(|second| second.refused).fold(0, u64::saturating_add);
        DemandReading {
            clock_us: self.now_us,
            draining: self.draining,
            seconds: self.seconds.iter().map(second).collect(),
            refused_per_s: float(refused) / float(self.seconds.len().max(1) as u64),
            holds: self.part.map(|part| Limit::new(part.rate, part.burst)),
        }
    }
}

impl NodeClient {
    /// What was asked of a proxy's limit in the last `seconds` whole seconds.
    pub async fn demand(&self, limit: &str, seconds: u32) -> Result<DemandAnswer, NodeError> {
        let path = format!("/api/v1/demand/{}?seconds={seconds}", escaped(limit));
        self.read(http::Method::GET, &path, None::<&()>).await
    }

    /// Puts a part of a proxy's limit in force, or renews its lease.
    pub async fn put_limit_part(
        &self,
        limit: &str,
        put: &Put<Name>,
        terms: PutTerms,
        lend: Option<&LendBody>,
    ) -> Result<(), NodeError> {
        let body = PartsBody {
            revision: put.revision,
            lease_ms: u64::try_from(terms.lease.as_millis()).unwrap_or(u64::MAX),
            until_us: put.until_us,
            on_lapse: terms.on_lapse.word(),
            parts: vec![LimitPartBody { limit, rate_per_s: put.limit.rate, burst: put.limit.burst, lend }],
        };
        self.put_parts(&body).await.map(drop)
    }
}

/// On which terms parts of a limit are put in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutTerms {
    /// How long they hold from their arrival.
    pub lease: std::time::Duration,
    /// What holds then.
    pub on_lapse: OnStoreLoss,
}
