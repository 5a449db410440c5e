//! What the access log says about a request, gathered while it is served. Without a log nothing is gathered.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode, Version};
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::trace_context::{SpanId, TraceId, TraceParent};

use super::access_log::{Entry, Refused};
use super::forward::{Answer, Story};
use super::service::{self, Admission};
use super::trace::{self, Hop};
use crate::config::PlainPath;
use crate::config::tenancy::Traits;
use crate::io::conn::limiter::{Cause, Lane, Refusal};
use crate::io::conn::meter;
use crate::io::listen::settings::Settings;
use crate::io::listen::thread::{Connection, Thread, Total};
use crate::io::request::bounds::Received;
use crate::io::request::host::host_of;
use crate::machine::rate_limit::Rejection;
use crate::machine::sampling::{Draw, End, Sampling};

/// A line in the making.
#[derive(Debug)]
pub(crate) struct Record {
    connection: Rc<Connection>,
    client: IpAddr,
    at_ns: i64,
    began: Instant,
    /// Bytes of the request's body that came.
    received: Received,
    method: http::Method,
    host: String,
    target: String,
    version: Version,
    referer: String,
    user_agent: String,
    tenant: String,
    lane: &'static str,
    route: String,
    upstream: String,
    /// `None` while there is no answer.
    status: Option<StatusCode>,
    refused: Option<Refused<'static>>,
    story: Story,
    sampling: Sampling,
    draw: Draw,
    ids: Ids,
}

/// The trace that a request belongs to.
#[derive(Clone, Copy, Default, Debug)]
struct Ids {
    trace: Option<TraceId>,
    /// The proxy's.
    span: Option<SpanId>,
    /// The client's.
    parent: Option<SpanId>,
}

impl Ids {
    fn of(caller: Option<TraceParent>, hop: Option<&Hop>) -> Self {
        let told = hop.map(|hop| hop.told);
        Self {
            trace: told.or(caller).map(|parent| parent.trace_id),
            span: told.map(|told| told.span_id),
            parent: caller.map(|caller| caller.span_id),
        }
    }
}

impl Record {
    /// The beginning of the line of a request that is answered here; `None` if it has none.
    pub(crate) fn begin(connection: &Rc<Connection>, parts: &Parts, began: Instant) -> Option<Box<Self>> {
        Self::of(connection, parts, began, None)
    }

    /// The same of one that was admitted.
    pub(crate) fn admitted(
        connection: &Rc<Connection>,
        parts: &Parts,
        began: Instant,
        admission: &Admission,
    ) -> Option<Box<Self>> {
        let mut record = Self::of(connection, parts, began, admission.hop.as_ref())?;
        record.lane = match admission.lane {
            Lane::Share => "share",
            Lane::Overflow => "overflow",
        };
        Some(record)
    }

    fn of(connection: &Rc<Connection>, parts: &Parts, began: Instant, hop: Option<&Hop>) -> Option<Box<Self>> {
        let thread = &connection.thread;
        thread.lines.borrow().as_ref()?;
        let settings = thread.settings();
        let sampling = sampling_of(&settings);
        let caller = hop.map_or_else(|| trace::caller(&parts.headers), |hop| hop.caller);
        let chance = hop.and_then(|hop| hop.chance).unwrap_or_else(|| sampling.choose(&mut thread.rng.borrow_mut()));
        let draw = sampling.draw(chance, caller);
        if !sampling.may_be_written(draw) {
            thread.count(Total::Unlogged);
            return None;
        }
        let text = |headers: &HeaderMap, name: HeaderName| {
            headers.get(name).map_or_else(String::new, |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let host = host_of(parts).into_owned();
        let path = PlainPath::new(parts.uri.path());
        let route = path.ok().and_then(|path| settings.routes.find(&host, &path, &parts.method));
        let route = route.map(|route| &settings.config.routes[route]);
        let header = settings.tenant_header(connection.origin.client.ip(), &parts.headers);
        let tenant = settings.tenancy.of_request(Traits {
            sni: connection.origin.sni.as_deref(),
            host: &host,
            route: route.map(|route| (route.name.as_str(), route.tenant.as_deref())),
            header,
        });
        Some(Box::new(Self {
            connection: Rc::clone(connection),
            client: service::client_of(connection, &settings, parts),
            at_ns: clock::realtime_ns(),
            began,
            received: Received::default(),
            method: parts.method.clone(),
            target: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            version: parts.version,
            referer: text(&parts.headers, http::header::REFERER),
            user_agent: text(&parts.headers, http::header::USER_AGENT),
            tenant: tenant.name.to_owned(),
            lane: "",
            route: route.map_or_else(String::new, |route| route.name.clone()),
            upstream: route.map_or_else(String::new, |route| settings.config.upstreams[route.upstream].name.clone()),
            host,
            status: None,
            refused: None,
            story: Story::default(),
            sampling,
            draw,
            ids: Ids::of(caller, hop),
        }))
    }

    /// Where to count the bytes of the request's body.
    pub(crate) fn received(&self) -> Received {
        Rc::clone(&self.received)
    }

    /// The limiter, or a rule of the proxy, refused it with `status`.
    pub(crate) fn refused(mut self: Box<Self>, status: StatusCode, refusal: Option<Refusal>) -> Box<Self> {
        self.status = Some(status);
        self.refused = Some(if let Some(refusal) = refusal {
            of_limiter("request", &refusal)
        } else {
            let cause = match status {
                StatusCode::NOT_FOUND => "no_route",
                StatusCode::MISDIRECTED_REQUEST => "misdirected",
                _ => "malformed",
            };
            Refused { stage: "request", resource: "", cause, retry_after: None }
        });
        self
    }

    /// There is an answer.
    pub(crate) fn answered(mut self: Box<Self>, answer: &Answer) -> Box<Self> {
        self.status = Some(answer.response.status());
        self.story = answer.story.clone();
        self.refused = answer.story.rejected.map(|rejection| Refused {
            stage: "queue",
            resource: "rate_limit",
            cause: "rate_limit",
            retry_after: rejection.retry_after,
        });
        if let Some(refusal) = &answer.story.refused {
            self.refused = Some(of_limiter("request", refusal));
        }
        self
    }

    /// How it ended.
    fn end(&self) -> End {
        // What no route takes, or is malformed, is for want of nothing.
        let is_limited = self.refused.is_some_and(|refused| !refused.resource.is_empty());
        match self.status {
            _ if is_limited || self.story.is_refused() => End::Refused,
            Some(status) if status.is_server_error() => End::ServerError,
            _ => End::Other,
        }
    }

    /// It has ended; `bytes` of the answer's body were sent.
    pub(crate) fn write(self: Box<Self>, bytes: u64) {
        let thread = &self.connection.thread;
        let Some(sample) = self.sampling.probability(self.draw, self.end()) else {
            return thread.count(Total::Unlogged);
        };
        let entry = Entry {
            at_ns: self.at_ns,
            client: self.client,
            method: self.method.as_str(),
            host: &self.host,
            target: &self.target,
            version: name(self.version),
            status: self.status.map_or(0, |status| status.as_u16()),
            request_bytes: self.received.get(),
            response_bytes: bytes,
            tenant: &self.tenant,
            lane: self.lane,
            route: &self.route,
            upstream: &self.upstream,
            refused: self.refused,
            total: meter::now().since(self.began),
            queued: self.story.queued,
            first_byte: self.story.first_byte,
            referer: &self.referer,
            user_agent: &self.user_agent,
            trace_id: self.ids.trace,
            span_id: self.ids.span,
            parent_id: self.ids.parent,
            sample,
        };
        if let Some(lines) = thread.lines.borrow_mut().as_mut() {
            lines.write(&entry);
        }
    }
}

/// The rule in force. A log is there from the start or not at all; but settings are read again.
fn sampling_of(settings: &Settings) -> Sampling {
    settings.config.access_log.as_ref().map_or(Sampling::ALL, |log| log.sampling)
}

/// What the limiter refused, and where.
fn of_limiter(stage: &'static str, refusal: &Refusal) -> Refused<'static> {
    let cause = match refusal.cause {
        Cause::OverShare => "over_share",
        Cause::SystemFull => "system_full",
    };
    Refused { stage, resource: refusal.resource.name(), cause, retry_after: Some(refusal.retry_after) }
}

fn name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// A line about a connection that was refused before its first request.
pub(crate) fn refused_hello(thread: &Thread, client: IpAddr, sni: &str, refusal: &Refusal) {
    hello(thread, client, sni, of_limiter("hello", refusal));
}

/// A line about a connection that a rule for its name refused.
pub(crate) fn rejected_hello(thread: &Thread, client: IpAddr, sni: &str, rejection: &Rejection) {
    let (resource, cause, retry_after) = ("rate_limit", "rate_limit", rejection.retry_after);
    hello(thread, client, sni, Refused { stage: "hello", resource, cause, retry_after });
}

/// A line about a connection for a name that no certificate is for.
pub(crate) fn unknown_name(thread: &Thread, client: IpAddr, sni: &str) {
    hello(thread, client, sni, Refused { stage: "hello", resource: "", cause: "unknown_name", retry_after: None });
}

fn hello(thread: &Thread, client: IpAddr, sni: &str, refused: Refused<'static>) {
    let mut lines = thread.lines.borrow_mut();
    let Some(lines) = lines.as_mut() else { return };
    let sampling = sampling_of(&thread.settings());
    let draw = sampling.draw(sampling.choose(&mut thread.rng.borrow_mut()), None);
    let Some(sample) = sampling.probability(draw, End::Refused) else { return thread.count(Total::Unlogged) };
    lines.write(&Entry {
        at_ns: clock::realtime_ns(),
        client,
        host: sni,
        tenant: sni,
        refused: Some(refused),
        total: Duration::ZERO,
        sample,
        ..Entry::default()
    });
}
