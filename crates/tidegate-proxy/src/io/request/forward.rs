//! One request to an upstream, and its answer back.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};

use super::gate::Pass;
use super::headers::Trailers;
use super::service::{self, Admission};
use super::{grpc, headers, refuse, trace};
use crate::config::{Config, ProxyProtocolOut, Route};
use crate::io::conn::limiter::{Refusal, Stage};
use crate::io::conn::meter;
use crate::io::http1::client::{ExchangeError, Outward, Patience};
use crate::io::listen::settings::Settings;
use crate::io::listen::thread::{Connection, Total};
use crate::io::request::body::RequestBody;
use crate::io::request::error::BodyError;
use crate::io::request::response::ResponseBody;
use crate::io::spool;
use crate::io::upstream::send::{Outbound, SendError};
use crate::io::upstream::{Announced, ConnectError, Target, key_of};
use crate::machine::rate_limit::Rejection;
use crate::machine::upstream;

/// An answer on its way to the client.
#[derive(Debug)]
pub(crate) struct Answer {
    /// What the client gets.
    pub(crate) response: Response<ResponseBody>,
    /// Leave to be inside the route's gate; to be kept until the last byte is sent.
    pub(crate) pass: Option<Pass>,
    /// How it came about.
    pub(crate) story: Story,
}

/// What the access log tells about an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    /// Waiting for the route's gate.
    pub(crate) queued: Duration,
    /// Until the server's first byte.
    pub(crate) first_byte: Duration,
    /// The route's gate said no.
    pub(crate) rejected: Option<Rejection>,
    /// There was no time for it.
    pub(crate) refused: Option<Refusal>,
    /// The upstream had no server, or no room, for it.
    pub(crate) shed: bool,
    /// The client's body broke off, and no answer would be read.
    pub(crate) gone: bool,
}

impl Story {
    /// A limit said no, or there was no room.
    pub(crate) const fn is_refused(&self) -> bool {
        self.rejected.is_some() || self.refused.is_some() || self.shed
    }
}

/// Sends an admitted request to its upstream; one beyond its tenant's share when it is the tenant's turn in the overflow
/// lane. One within it waits for nobody, though its connection may still be there.
pub(crate) async fn forward(
    connection: &Connection,
    admission: &Admission,
    parts: &mut Parts,
    body: RequestBody,
) -> Answer {
    send(connection, admission, parts, body).await
}

/// The same in a box of the size that it comes to: of one connection of HTTP/2 a hundred may wait. HTTP/1 has one, and goes
/// without.
pub(crate) fn boxed<'a>(
    connection: &'a Connection,
    admission: &'a Admission,
    parts: &'a mut Parts,
    body: RequestBody,
) -> Pin<Box<dyn Future<Output = Answer> + 'a>> {
    Box::pin(send(connection, admission, parts, body))
}

async fn send(connection: &Connection, admission: &Admission, parts: &mut Parts, body: RequestBody) -> Answer {
    let settings = &admission.settings;
    let route = &settings.config.routes[admission.route];
    let mut story = Story::default();
    let pass = match enter(connection, admission, route, parts).await {
        Ok((pass, waited)) => {
            story.queued = waited;
            pass
        }
        Err(rejection) => return rejected(connection, admission, route, rejection),
    };
    // Before the headers are changed that may tell.
    let client = if settings.config.upstreams[route.upstream].wants_client() {
        service::client_of(connection, settings, parts)
    } else {
        connection.origin.client.ip()
    };
    let http2 = settings.config.upstreams[route.upstream].protocol.is_http2();
    let trailers = if http2 && parts.version == Version::HTTP_2 { Trailers::GoOn } else { Trailers::EndHere };
    let Ok(upgrade) = headers::strip_request(&mut parts.headers, trailers) else {
        let response =
            refuse::plain(StatusCode::BAD_REQUEST, "http_request_error", "Connection lists too many options.");
        return Answer { response, pass, story };
    };
    tell_upstream(connection, admission, route, parts);
    let body = match kept(connection, admission, &parts.headers, body).await {
        Ok(body) => body,
        Err(error) => return failed(&ExchangeError::Request(error), pass, story),
    };
    let target = target_of(route, parts);
    let timeouts = &settings.config.timeouts;
    let by = settings.config.upstreams[route.upstream].hash_by.as_ref();
    let outbound = Outbound {
        head: Outward { method: &parts.method, target: &target, headers: &parts.headers, upgrade },
        patience: Patience { first_byte: timeouts.upstream_first_byte, idle: timeouts.upstream_idle },
        account: &admission.account,
        is_stream: parts.version == Version::HTTP_2,
        client,
        key: by.and_then(|by| key_of(by, client, &target, parts)),
        announced: announced(connection, admission, route.upstream),
        timers: &connection.thread.timers,
    };
    let upstream = Target { index: route.upstream, name: &settings.config.upstreams[route.upstream].name };
    let asked = meter::now();
    match connection.thread.upstreams.send(upstream, &outbound, body).await {
        Ok(answer) => {
            story.first_byte = meter::now().since(admission.began);
            let head_time = meter::now().since(asked);
            connection.thread.times.borrow_mut().add_head(route.upstream, upstream.name, head_time);
            answered(connection, admission, answer, pass, story)
        }
        Err(SendError::Exchange(error)) => failed(&error, pass, story),
        Err(SendError::Connect(error)) => Answer { response: unreachable_answer(&error), pass, story },
        Err(SendError::Refused(refusal)) => shed(refusal, (&settings.config, route), pass, story),
        Err(SendError::Http2(_)) => failed(&ExchangeError::Closed, pass, story),
        Err(SendError::NoWebSocket) => Answer { response: no_websocket(), pass, story },
        Err(SendError::Target(_)) => {
            let detail = "The upstream cannot be asked for this target.";
            let response = refuse::plain(StatusCode::BAD_REQUEST, "http_request_error", detail);
            Answer { response, pass, story }
        }
    }
}

/// The answer to a request that the gate of its `route` does not let in.
fn rejected(connection: &Connection, admission: &Admission, route: &Route, rejection: Rejection) -> Answer {
    if rejection.is_of_a_limit() {
        let tenant = admission.account.tenant();
        connection.thread.limiter.with(|limiter| limiter.refused_elsewhere(tenant, Stage::Queue));
    }
    let headers = admission.settings.config.limits.rate_limit_headers;
    // Only a gate rejects, and only a route with a rule has one.
    let rule = route.rate_limit.as_ref().expect("a route whose gate rejected has a rule");
    let story = Story { rejected: Some(rejection), ..Story::default() };
    Answer { response: refuse::rejected(&rejection, rule, headers), pass: None, story }
}

/// The body, kept in the spool if it is large. A call of gRPC may be answered before its end, and its client may wait for
/// that before it goes on.
async fn kept(
    connection: &Connection,
    admission: &Admission,
    headers: &HeaderMap,
    body: RequestBody,
) -> Result<RequestBody, BodyError> {
    if admission.settings.config.spool.is_none() || grpc::is_call(headers) {
        return Ok(body);
    }
    spool::request(connection, &admission.account, &admission.settings, body).await
}

/// Tells the upstream where the request came from and which trace it belongs to, and changes what the `route` says.
fn tell_upstream(connection: &Connection, admission: &Admission, route: &Route, parts: &mut Parts) {
    let settings = &admission.settings;
    headers::add_forwarded(connection, settings, parts);
    headers::drop_lookalikes(&mut parts.headers, own_names(settings, route));
    trace::tell(admission.hop.as_ref(), &mut parts.headers);
    headers::edit(&mut parts.headers, &route.request_headers);
    headers::complete_host(&mut parts.headers, &settings.config.upstreams[route.upstream].servers);
}

/// Fields of requests that the configuration writes, takes away or tells tenants apart by.
fn own_names<'a>(settings: &'a Settings, route: &'a Route) -> impl Iterator<Item = &'a HeaderName> {
    let edits = &route.request_headers;
    let waited = route.rate_limit.as_ref().and_then(|rule| rule.header.as_ref());
    edits.set.iter().map(|(name, _)| name).chain(&edits.remove).chain(waited).chain(&settings.tenant_header)
}

/// The answer to a request for which time is up before there is one.
pub(crate) fn out_of_time(connection: &Connection) -> Answer {
    connection.thread.count(Total::TimedOut);
    let detail = "The request took too long.";
    let response = refuse::plain(StatusCode::GATEWAY_TIMEOUT, "http_response_timeout", detail);
    Answer { response, pass: None, story: Story::default() }
}

/// Waits for leave of the route's gate, and tells the upstream how long that took if it wants to know. What is to be
/// left at the request's end, and the wait.
async fn enter(
    connection: &Connection,
    admission: &Admission,
    route: &Route,
    parts: &mut Parts,
) -> Result<(Option<Pass>, Duration), Rejection> {
    let gate = &admission.settings.route_gates[admission.route];
    let (Some(gate), Some(rule)) = (gate, &route.rate_limit) else { return Ok((None, Duration::ZERO)) };
    let client = service::client_of(connection, &admission.settings, parts);
    let (pass, waited) = if rule.connections {
        (None, connection.tracked.enter(gate, client).await?)
    } else {
        let pass = gate.enter(client).await?;
        let waited = pass.waited;
        (Some(pass), waited)
    };
    if let Some(name) = &rule.header {
        // Only the proxy knows how long it was: what a client says of it is worth nothing.
        parts.headers.remove(name);
        if !waited.is_zero() {
            let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            parts.headers.insert(name.clone(), HeaderValue::from(millis));
        }
    }
    Ok((pass, waited))
}

/// What the upstream is asked for, in the form that the method wants.
fn target_of(route: &Route, parts: &Parts) -> String {
    let path = parts.uri.path();
    let rewritten = route.rewritten(path);
    let path = rewritten.as_deref().unwrap_or(path);
    let path = if path.is_empty() { "/" } else { path };
    match parts.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

fn announced(connection: &Connection, admission: &Admission, upstream: usize) -> Option<Rc<Announced>> {
    let wanted = admission.settings.config.upstreams[upstream].proxy_protocol;
    (wanted != ProxyProtocolOut::Off).then(|| {
        let (source, destination) = (connection.origin.client, connection.origin.local);
        Rc::new(Announced { source, destination, authority: connection.origin.sni.as_deref().map(Rc::from) })
    })
}

/// The upstream's answer, as the client gets it.
fn answered(
    connection: &Connection,
    admission: &Admission,
    answer: Response<ResponseBody>,
    pass: Option<Pass>,
    story: Story,
) -> Answer {
    let (mut head, body) = answer.into_parts();
    if headers::strip_response(head.status.as_u16(), &mut head.headers).is_err() {
        return failed(&ExchangeError::Malformed("its Connection lists too many options"), pass, story);
    }
    headers::edit(&mut head.headers, &admission.settings.config.routes[admission.route].response_headers);
    let body = match head.status {
        StatusCode::SWITCHING_PROTOCOLS => body,
        _ => spool::response(connection, &admission.account, body),
    };
    Answer { response: Response::from_parts(head, body), pass, story }
}

fn failed(error: &ExchangeError, pass: Option<Pass>, mut story: Story) -> Answer {
    let response = match error {
        ExchangeError::Request(broken) => refuse::broken_body(broken).unwrap_or_else(|| {
            story.gone = true;
            refuse::plain(StatusCode::BAD_REQUEST, "http_request_error", "The body broke off.")
        }),
        ExchangeError::TimedOut => {
            let detail = "The upstream did not answer in time.";
            refuse::plain(StatusCode::GATEWAY_TIMEOUT, "http_response_timeout", detail)
        }
        ExchangeError::Malformed(_) => {
            let detail = "The upstream's answer is malformed.";
            refuse::plain(StatusCode::BAD_GATEWAY, "http_protocol_error", detail)
        }
        ExchangeError::Closed | ExchangeError::Io(_) => {
            let detail = "The upstream closed the connection without an answer.";
            refuse::plain(StatusCode::BAD_GATEWAY, "connection_terminated", detail)
        }
    };
    Answer { response, pass, story }
}

fn no_websocket() -> Response<ResponseBody> {
    let detail = "The upstream speaks HTTP/2 and opens no WebSocket over it.";
    refuse::plain(StatusCode::BAD_GATEWAY, "http_upgrade_failed", detail)
}

fn unreachable_answer(error: &ConnectError) -> Response<ResponseBody> {
    let (status, name, detail) = match error {
        ConnectError::TimedOut { .. } => {
            (StatusCode::GATEWAY_TIMEOUT, "connection_timeout", "There is no connection to the upstream in time.")
        }
        ConnectError::Resolve { source, .. } if source.kind() == std::io::ErrorKind::TimedOut => {
            (StatusCode::GATEWAY_TIMEOUT, "dns_timeout", "The upstream's name is not looked up in time.")
        }
        ConnectError::Resolve { .. } => (StatusCode::BAD_GATEWAY, "dns_error", "The upstream's name has no address."),
        ConnectError::Refused { .. } => {
            (StatusCode::BAD_GATEWAY, "connection_refused", "The upstream accepts no connection.")
        }
        ConnectError::Tls { source, .. } => {
            let name = match source.get_ref().and_then(|inner| inner.downcast_ref()) {
                Some(rustls::Error::InvalidCertificate(_)) => "tls_certificate_error",
                Some(rustls::Error::AlertReceived(_)) => "tls_alert_received",
                _ => "tls_protocol_error",
            };
            (StatusCode::BAD_GATEWAY, name, "There is no TLS with the upstream.")
        }
    };
    refuse::plain(status, name, detail)
}

/// No server of the upstream has room.
fn shed(
    refusal: upstream::Refusal,
    (config, route): (&Config, &Route),
    pass: Option<Pass>,
    mut story: Story,
) -> Answer {
    story.shed = true;
    Answer { response: no_slot(refusal, config, route), pass, story }
}

fn no_slot(refusal: upstream::Refusal, config: &Config, route: &Route) -> Response<ResponseBody> {
    let (name, detail) = match refusal {
        upstream::Refusal::NoServer => ("destination_unavailable", "No server of the upstream is well."),
        upstream::Refusal::QueueFull => {
            ("connection_limit_reached", "The upstream's servers are busy, and so is their queue.")
        }
        upstream::Refusal::TimedOut => ("connection_limit_reached", "The upstream's servers are busy."),
    };
    let retry_after = match refusal {
        // If one is well now, so many good answers say so.
        upstream::Refusal::NoServer => {
            let health = config.upstreams[route.upstream].health.as_ref();
            health.map(|health| health.interval.saturating_mul(health.rise))
        }
        // Whoever is in the queue now has a server by then, or gave up.
        upstream::Refusal::QueueFull | upstream::Refusal::TimedOut => Some(config.timeouts.upstream_connect),
    };
    let status = StatusCode::SERVICE_UNAVAILABLE;
    refuse::answer(refuse::Problem { status, kind: None, detail, error: name, retry_after })
}
