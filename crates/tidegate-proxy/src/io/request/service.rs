//! Whose request it is, which route it takes, and whether it may.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, Response, StatusCode, Version};
use http_body::Body;
use tidegate_core::Instant;

use super::headers::Unsound;
use super::trace::Hop;
use super::{headers, refuse};
use crate::config::PlainPath;
use crate::config::tenancy::Traits;
use crate::io::conn::account::Account;
use crate::io::conn::held::HELD_STREAM;
use crate::io::conn::limiter::{Lane, Refusal, Source, Stage, Tenant, Verdict};
use crate::io::conn::meter;
use crate::io::conn::pace::{Pace, Paced, SharedBandwidth};
use crate::io::conn::waits::{Asked, Wait};
use crate::io::listen::settings::{InForce, Settings};
use crate::io::listen::thread::Connection;
use crate::io::request::body::RequestBody;
use crate::io::request::host::host_of;
use crate::io::request::response::ResponseBody;
use crate::machine::Resource;
use crate::machine::admission::Costs;

/// A request that may be served.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Who pays: the connection's account, or that of its stream.
    pub(crate) account: Rc<Account>,
    /// In force when it came; a reload does not change it.
    pub(crate) settings: Rc<InForce>,
    /// Index of its route.
    pub(crate) route: usize,
    /// When its head was there.
    pub(crate) began: Instant,
    /// Where it is served.
    pub(crate) lane: Lane,
    /// Of its tenant, if that has a number.
    pub(crate) bandwidth: Option<Arc<SharedBandwidth>>,
    /// Where the proxy is a span of its trace.
    pub(crate) hop: Option<Hop>,
}

impl Admission {
    /// The pace of its request's body, or of its answer's.
    pub(crate) fn pace(&self) -> Pace {
        Pace::new(self.bandwidth.clone())
    }

    /// Its request's body with its pace, if that can matter.
    pub(crate) fn paced(&self, body: RequestBody) -> RequestBody {
        if self.bandwidth.is_none() && body.size_hint().exact().is_some_and(|length| length <= PART_MIN) {
            return body;
        }
        RequestBody::Paced(Box::new(Paced::new(body, self.pace(), Rc::clone(&self.account))))
    }
}

/// Bodies of no more bytes than these never come to the end of a part, of which each byte is one that comes and one that
/// goes.
const PART_MIN: u64 = Resource::NetworkBytes.part_max() / 4;

/// What a request was charged with beforehand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    pub(crate) lane: Lane,
    pub(crate) event_ns: u64,
    pub(crate) bytes: u64,
    pub(crate) disk: u64,
    /// The connection was asked for with it.
    pub(crate) connection: bool,
    /// Bytes that it holds until it ends.
    pub(crate) memory: u64,
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Judged {
    /// Serve it.
    Serve(Admission),
    /// Answer it so, and go on.
    Answer(Box<Response<ResponseBody>>, Option<Refusal>),
    /// It waits until its tenant may have more, and is judged again with what it was charged with then.
    Wait(Waiting),
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    wait: Wait,
    /// What it is charged with when it is admitted; the lane is known then.
    charged: Charged,
}

impl Waiting {
    /// What it was charged with, or why it is refused after all. `account` is the one that it was judged with.
    pub(crate) fn poll(
        &mut self,
        connection: &Connection,
        account: &Account,
        context: &mut Context<'_>,
    ) -> Poll<Result<Charged, Refusal>> {
        let lane = match ready!(Pin::new(&mut self.wait).poll(context)) {
            Ok(lane) => lane,
            Err(refusal) => return Poll::Ready(Err(refusal)),
        };
        // The accounts release the gauges from here on. A reload may have removed the route, and then nothing else would.
        if self.charged.connection {
            connection.account.turn_to(account.tenant());
            connection.account.take_connection();
        }
        account.take_memory(self.charged.memory);
        Poll::Ready(Ok(Charged { lane, connection: false, memory: 0, ..self.charged }))
    }
}

/// What the limiter says to a request.
enum Said {
    Yes(Charged),
    No(Refusal),
    Wait(Waiting),
}

/// The pace of what is read for the tenant of `connection` and goes nowhere.
pub(crate) fn pace_of(connection: &Connection) -> Pace {
    let settings = connection.thread.settings();
    let bandwidth = || settings.bandwidths.get(&*connection.account.tenant_name()).map(Arc::clone);
    Pace::new(if settings.bandwidths.is_empty() { None } else { bandwidth() })
}

/// Decides about a request by its head. `charged` if it has waited for that. It is put on `account`, the connection's own or that
/// of one of its streams.
pub(crate) fn judge(connection: &Connection, account: &Rc<Account>, parts: &Parts, charged: Option<Charged>) -> Judged {
    let thread = &connection.thread;
    let settings = thread.settings();
    let host = host_of(parts);
    let found = destination(connection, &settings, parts, &host);
    if let (Ok(route), None) = (&found, &charged) {
        thread.count_request(*route);
    }
    decide(connection, account, (parts, &host), &settings, &found, charged)
}

/// The same for a request whose head cannot be sent on. It is asked for and charged like any other, whose answer it is.
pub(crate) fn judge_unsound(
    connection: &Connection,
    account: &Rc<Account>,
    parts: &Parts,
    unsound: &Unsound,
    charged: Option<Charged>,
) -> Judged {
    let settings = connection.thread.settings();
    let host = host_of(parts);
    let nowhere = Nowhere { status: unsound.status, error: "http_request_error", detail: unsound.detail };
    decide(connection, account, (parts, &host), &settings, &Err(nowhere), charged)
}

/// Whether there is core time for a last answer on a connection whose client broke the rules or was too slow. It is charged
/// to who pays for the connection; without any the connection is closed, which costs least.
pub(crate) fn may_answer(connection: &Connection) -> bool {
    let account = &connection.account;
    let tenant = account.tenant();
    let (event_ns, verdict) = connection.thread.limiter.with(|limiter| {
        let event_ns = limiter.expected_cost(tenant, Resource::EventTime);
        let costs = [(Resource::Requests, 1), (Resource::EventTime, event_ns)];
        (event_ns, limiter.try_take(tenant, Stage::Request, &costs, meter::now()))
    });
    let admitted = matches!(verdict, Verdict::Admit { .. });
    if admitted {
        account.estimated(Resource::EventTime, event_ns);
    }
    admitted
}

/// Asks for a request that goes to the route that was `found`, or is answered here.
fn decide(
    connection: &Connection,
    account: &Rc<Account>,
    (parts, host): (&Parts, &str),
    settings: &Rc<InForce>,
    found: &Result<usize, Nowhere>,
    charged: Option<Charged>,
) -> Judged {
    let now = meter::now();
    let (tenant, said, bandwidth) =
        ask(connection, settings, (parts, host), found.as_ref().ok().copied(), charged, now);
    // Without TLS the first request tells whose connection it is, refused or not.
    if !connection.origin.tls && connection.requests.get() <= 1 {
        connection.account.become_of(tenant);
    }
    let charged = match said {
        Said::Yes(charged) => charged,
        Said::No(refusal) => return refused(connection, refusal),
        Said::Wait(waiting) => {
            // It pays for what it costs until then, and for where it waits.
            account.turn_to(tenant);
            return Judged::Wait(waiting);
        }
    };
    account.turn_to(tenant);
    // One that carries streams of several tenants stays with whom it was opened for.
    if charged.connection || connection.requests.get() <= 1 {
        connection.account.turn_to(tenant);
    }
    if charged.connection {
        connection.account.take_connection();
    }
    account.take_memory(charged.memory);
    account.estimated(Resource::EventTime, charged.event_ns);
    account.estimated(Resource::NetworkBytes, charged.bytes);
    account.estimated(Resource::DiskBytes, charged.disk);
    match *found {
        Ok(route) => {
            let hop = Hop::begin(&connection.thread, settings, &parts.headers);
            let (account, settings) = (Rc::clone(account), Rc::clone(settings));
            Judged::Serve(Admission { account, settings, route, began: now, lane: charged.lane, bandwidth, hop })
        }
        Err(Nowhere { status, error, detail }) => no(status, error, detail),
    }
}

/// Why a request goes nowhere.
struct Nowhere {
    status: StatusCode,
    /// Its name in `Proxy-Status`.
    error: &'static str,
    detail: &'static str,
}

/// The route that a request for `host` takes.
fn destination(connection: &Connection, settings: &InForce, parts: &Parts, host: &str) -> Result<usize, Nowhere> {
    let no = |status, error, detail| Err(Nowhere { status, error, detail });
    if let Some(sni) = connection.origin.sni.as_deref()
        && settings.tenancy.is_misdirected(sni, host)
    {
        let detail = "This connection is for another host: its certificate does not cover this one.";
        return no(StatusCode::MISDIRECTED_REQUEST, "http_request_error", detail);
    }
    let Ok(path) = PlainPath::new(parts.uri.path()) else {
        return no(StatusCode::BAD_REQUEST, "http_request_error", "The path leaves the root, or hides that it does.");
    };
    let Some(route) = settings.routes.find(host, &path, &parts.method) else {
        return no(StatusCode::NOT_FOUND, "destination_not_found", "No route takes this request.");
    };
    Ok(route)
}

/// The answer to a request for which there is not enough of something.
pub(crate) fn refused(connection: &Connection, refusal: Refusal) -> Judged {
    let headers = connection.thread.settings().config.limits.rate_limit_headers;
    Judged::Answer(Box::new(refuse::refused(&refusal, headers)), Some(refusal))
}

fn no(status: StatusCode, error: &'static str, detail: &str) -> Judged {
    Judged::Answer(Box::new(refuse::plain(status, error, detail)), None)
}

/// Asks the limiter, unless that was done. Whose request it is is known in any case.
fn ask(
    connection: &Connection,
    settings: &Rc<InForce>,
    (parts, host): (&Parts, &str),
    route: Option<usize>,
    charged: Option<Charged>,
    now: Instant,
) -> (Tenant, Said, Option<Arc<SharedBandwidth>>) {
    let rule = route.map(|route| &settings.config.routes[route]);
    let header = settings.tenant_header(connection.origin.client.ip(), &parts.headers);
    let key = settings.tenancy.key(Traits {
        sni: connection.origin.sni.as_deref(),
        host,
        route: rule.map(|rule| (rule.name.as_str(), rule.tenant.as_deref())),
        header,
    });
    let bandwidth = if settings.bandwidths.is_empty() {
        None
    } else {
        settings.bandwidths.get(settings.tenancy.claimant(key).name).map(Arc::clone)
    };
    let (tenant, said) = connection.thread.limiter.with(|limiter| {
        let source = Source::of(connection.origin.client.ip());
        let tenant = connection.whose.tenant(settings, key, source, limiter, now);
        if let Some(charged) = charged {
            return (tenant, Said::Yes(charged));
        }
        let event_ns = limiter.expected_cost(tenant, Resource::EventTime);
        let bytes = limiter.expected_cost(tenant, Resource::NetworkBytes);
        // What is answered here brings nothing to the spool.
        let usual = || limiter.expected_cost(tenant, Resource::DiskBytes);
        let disk = rule.map_or(0, |_| disk_bytes(connection, parts, usual));
        // The first request of a connection without TLS asks for the connection too.
        let new = !connection.account.has_connection();
        // A connection holds what one request at a time needs; each of HTTP/2's many has its own.
        let memory = if parts.version == Version::HTTP_2 { HELD_STREAM } else { 0 };
        let costs = Costs::new()
            .and(Resource::Requests, 1)
            .and(Resource::EventTime, event_ns)
            .and(Resource::NetworkBytes, bytes)
            .and(Resource::Connections, u64::from(new))
            .and(Resource::DiskBytes, disk)
            .and(Resource::Memory, memory);
        let charged = |lane| Charged { lane, event_ns, bytes, disk, connection: new, memory };
        let said = match connection.thread.waits.ask(limiter, tenant, &costs) {
            Asked::Admit(lane) => Said::Yes(charged(lane)),
            Asked::Refuse(refusal) => Said::No(refusal),
            Asked::Wait(wait) => Said::Wait(Waiting { wait, charged: charged(Lane::Overflow) }),
        };
        (tenant, said)
    });
    (tenant, said, bandwidth)
}

/// Bytes that a request's body will move between memory and disk: there and back, if it is long enough to go there. Of one
/// whose length is not known, what the tenant's usually do.
fn disk_bytes(connection: &Connection, parts: &Parts, usual: impl FnOnce() -> u64) -> u64 {
    let spool = connection.thread.spool.borrow();
    let Some(spool) = &*spool else { return 0 };
    match length_of(parts) {
        Length::None => 0,
        Length::Known(length) if length <= spool.above() => 0,
        Length::Known(length) => length.saturating_mul(2),
        Length::Unknown => usual(),
    }
}

/// What a head says of the length of its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Length {
    None,
    Known(u64),
    Unknown,
}

fn length_of(parts: &Parts) -> Length {
    if let Some(length) = parts.headers.get(CONTENT_LENGTH) {
        return length.to_str().ok().and_then(|length| length.parse().ok()).map_or(Length::Unknown, Length::Known);
    }
    // HTTP/2 says so by the stream; a body that a method has no use for is rare.
    let in_stream = parts.version == Version::HTTP_2 && !matches!(parts.method, Method::GET | Method::HEAD);
    if in_stream || parts.headers.contains_key(TRANSFER_ENCODING) { Length::Unknown } else { Length::None }
}

/// The address that lists of the configuration are about.
pub(crate) fn client_of(connection: &Connection, settings: &Settings, parts: &Parts) -> std::net::IpAddr {
    headers::client_of(connection, settings, &parts.headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_whether_there_is_a_body_and_how_long_it_is() {
        let of = |method: &str, version, field: Option<(&str, &str)>| {
            let mut request = http::Request::builder().method(method).uri("/").version(version);
            if let Some((name, value)) = field {
                request = request.header(name, value);
            }
            length_of(&request.body(()).unwrap().into_parts().0)
        };
        assert_eq!(of("GET", Version::HTTP_11, None), Length::None);
        assert_eq!(of("POST", Version::HTTP_11, Some(("content-length", "7"))), Length::Known(7));
        assert_eq!(of("POST", Version::HTTP_11, Some(("transfer-encoding", "chunked"))), Length::Unknown);
        assert_eq!(of("POST", Version::HTTP_2, None), Length::Unknown);
        assert_eq!(of("GET", Version::HTTP_2, None), Length::None);
    }
}
