//! What the access log says about a request, gathered while it is served. Without a log nothing is gathered.

use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode, Version};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::access_log::{Entry, Refused};
use super::forward::{Answer, Story};
use super::limiter::{Cause, Lane, Refusal};
use super::meter;
use super::service::{self, Admission};
use super::thread::Connection;
use crate::config::tenancy::Traits;

/// A line in the making.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    connection: &'a Connection,
    at_ns: i64,
    began: Instant,
    totals: (u64, u64),
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
    status: StatusCode,
    refused: Option<Refused<'static>>,
    story: Story,
}

impl<'a> Record<'a> {
    /// The beginning of a line; `None` if there is no log.
    pub(crate) fn begin(connection: &'a Connection, parts: &Parts, began: Instant) -> Option<Box<Self>> {
        connection.thread.lines.borrow().as_ref()?;
        let text = |headers: &HeaderMap, name: HeaderName| {
            headers.get(name).map_or_else(String::new, |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        Some(Box::new(Self {
            connection,
            at_ns: clock::realtime_ns(),
            began,
            totals: connection.account.totals(),
            method: parts.method.clone(),
            host: service::host_of(parts).into_owned(),
            target: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            version: parts.version,
            referer: text(&parts.headers, http::header::REFERER),
            user_agent: text(&parts.headers, http::header::USER_AGENT),
            tenant: String::new(),
            lane: "",
            route: String::new(),
            upstream: String::new(),
            status: StatusCode::OK,
            refused: None,
            story: Story::default(),
        }))
    }

    /// It was admitted.
    pub(crate) fn admitted(mut self: Box<Self>, admission: &Admission) -> Box<Self> {
        let settings = &admission.settings;
        let route = &settings.config.routes[admission.route];
        self.tenant = settings
            .tenancy
            .of_request(Traits {
                sni: self.connection.origin.sni.as_deref(),
                host: &self.host,
                route: Some((&route.name, route.tenant.as_deref())),
                header: None,
            })
            .into_owned();
        self.route.clone_from(&route.name);
        self.upstream.clone_from(&settings.config.upstreams[route.upstream].name);
        self.lane = match admission.lane {
            Lane::Share => "share",
            Lane::Overflow => "overflow",
        };
        self
    }

    /// The limiter, or a rule of the proxy, refused it.
    pub(crate) fn refused(mut self: Box<Self>, refusal: Option<Refusal>) -> Box<Self> {
        self.status = StatusCode::NOT_FOUND;
        self.refused = Some(match refusal {
            Some(refusal) => Refused {
                stage: "request",
                resource: refusal.resource.name(),
                cause: match refusal.cause {
                    Cause::OverShare => "over_share",
                    Cause::SystemFull => "system_full",
                },
                retry_after: Some(refusal.retry_after),
            },
            None => Refused { stage: "request", resource: "", cause: "no_route", retry_after: None },
        });
        if let Some(refusal) = refusal {
            self.status = match refusal.cause {
                Cause::OverShare => StatusCode::TOO_MANY_REQUESTS,
                Cause::SystemFull => StatusCode::SERVICE_UNAVAILABLE,
            };
        }
        self
    }

    /// There is an answer.
    pub(crate) fn answered(mut self: Box<Self>, answer: &Answer) -> Box<Self> {
        self.status = answer.response.status();
        self.story = answer.story.clone();
        self.refused = answer.story.rejected.map(|rejection| Refused {
            stage: "queue",
            resource: "rate_limit",
            cause: "rate_limit",
            retry_after: rejection.retry_after,
        });
        self
    }

    /// Its last byte was sent; the answer's body had `bytes`.
    pub(crate) fn write(self: Box<Self>, bytes: u64) {
        let (read, _) = self.connection.account.totals();
        let entry = Entry {
            at_ns: self.at_ns,
            client: self.connection.origin.client.ip(),
            method: self.method.as_str(),
            host: &self.host,
            target: &self.target,
            version: name(self.version),
            status: self.status.as_u16(),
            request_bytes: read.saturating_sub(self.totals.0),
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
            ..Entry::default()
        };
        if let Some(lines) = self.connection.thread.lines.borrow_mut().as_mut() {
            lines.write(&entry);
        }
    }
}

fn name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// A line about a connection that was refused before its first request.
pub(crate) fn refused_hello(
    lines: &mut super::access_log::Lines,
    client: std::net::IpAddr,
    sni: &str,
    refusal: &Refusal,
) {
    lines.write(&Entry {
        at_ns: clock::realtime_ns(),
        client,
        host: sni,
        tenant: sni,
        refused: Some(Refused {
            stage: "hello",
            resource: refusal.resource.name(),
            cause: match refusal.cause {
                Cause::OverShare => "over_share",
                Cause::SystemFull => "system_full",
            },
            retry_after: Some(refusal.retry_after),
        }),
        total: Duration::ZERO,
        ..Entry::default()
    });
}
