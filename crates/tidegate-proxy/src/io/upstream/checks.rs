//! Asks servers how they are, for all threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tidegate_core::Rng;
use tidegate_runtime::clock;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::Settings;
use super::endpoint::{ConnectError, Endpoint, check_header};
use super::system::System;
use super::tasks::Tasks;
use super::tls::Tls;
use crate::config::{ProxyProtocolOut, Server, UpstreamProtocol};
use crate::io::conn::server_stream::ServerStream;
use crate::machine::upstream::{ActiveConfig, ActiveHealth};

/// What checks found, for every server that was checked at least once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Verdicts(Arc<BTreeMap<(String, Server), bool>>);

impl Verdicts {
    /// True if the server is up, `None` if nobody asked it yet.
    pub(crate) fn of(&self, upstream: &str, server: &Server) -> Option<bool> {
        self.0.get(&(upstream.to_owned(), server.clone())).copied()
    }

    /// Notes a result; false if it says what is known.
    fn note(&mut self, upstream: &str, server: &Server, up: bool) -> bool {
        if self.of(upstream, server) == Some(up) {
            return false;
        }
        Arc::make_mut(&mut self.0).insert((upstream.to_owned(), server.clone()), up);
        true
    }
}

/// The checks of all servers. Runs on one thread; dropping it ends them.
#[derive(Debug)]
pub(crate) struct Checks {
    verdicts: Arc<watch::Sender<Verdicts>>,
    system: System,
    rng: Rng,
    /// Of every server that is checked.
    pub(super) running: Vec<(Check, AbortHandle)>,
    /// Ended when it is dropped.
    tasks: JoinSet<()>,
}

impl Checks {
    /// Asks nobody yet.
    pub(crate) fn new(verdicts: Arc<watch::Sender<Verdicts>>, system: System, seed: u64) -> Self {
        Self { verdicts, system, rng: Rng::new(seed), running: Vec::new(), tasks: JoinSet::new() }
    }

    /// From now on asks the servers of every upstream that wants it. Needs a runtime that takes local tasks.
    ///
    /// A check whose settings did not change goes on undisturbed. One that did begins with what is known of its server, so
    /// that a reload alone takes nobody down. Verdicts on servers that are no longer checked are dropped.
    pub(crate) fn set(&mut self, settings: &[Settings]) {
        let wanted: Vec<_> = settings.iter().flat_map(Check::all_of).collect();
        self.running.retain(|(check, task)| {
            let stays = wanted.contains(check);
            if !stays {
                task.abort();
            }
            stays
        });
        self.verdicts.send_if_modified(|verdicts| {
            let checked =
                |(upstream, server): &(String, Server)| wanted.iter().any(|check| check.asks(upstream, server));
            if verdicts.0.keys().all(checked) {
                return false;
            }
            Arc::make_mut(&mut verdicts.0).retain(|of, _| checked(of));
            true
        });
        for check in wanted {
            if self.running.iter().any(|(running, _)| *running == check) {
                continue;
            }
            let task = check.clone().run(Arc::clone(&self.verdicts), self.system.clone(), self.rng.split());
            self.running.push((check, self.tasks.spawn_local(task)));
        }
        // What was ended leaves nothing behind.
        while self.tasks.try_join_next().is_some() {}
    }
}

/// How one server is asked.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Check {
    upstream: String,
    server: Server,
    config: ActiveConfig,
    protocol: UpstreamProtocol,
    announce: ProxyProtocolOut,
    tls: Option<Tls>,
}

impl Check {
    fn all_of(settings: &Settings) -> impl Iterator<Item = Self> {
        settings.health.iter().flat_map(|config| {
            settings.servers.iter().map(|server| Self {
                upstream: settings.name.clone(),
                server: server.clone(),
                config: config.clone(),
                protocol: settings.protocol,
                announce: settings.announce,
                tls: settings.tls.clone(),
            })
        })
    }

    fn asks(&self, upstream: &str, server: &Server) -> bool {
        self.upstream == upstream && self.server == *server
    }

    async fn run(self, verdicts: Arc<watch::Sender<Verdicts>>, system: System, mut rng: Rng) {
        let known = verdicts.borrow().of(&self.upstream, &self.server);
        let now = clock::now();
        let mut health = known.map_or_else(|| ActiveHealth::new(now), |up| ActiveHealth::known(up, now));
        let endpoint = Endpoint::new(self.server.clone(), self.tls.clone(), system);
        loop {
            tokio::time::sleep(health.next_timeout() - clock::now()).await;
            health.on_check(&self.config, &mut rng, clock::now());
            let unwell = self.ask(&endpoint).await.err();
            let change = health.on_result(unwell.is_none(), &self.config);
            let (upstream, server) = (&self.upstream, &self.server);
            match (change, unwell) {
                (Some(change), None) => tracing::info!(upstream, %server, ?change, "a server changed its health"),
                (Some(change), Some(reason)) => {
                    tracing::info!(upstream, %server, ?change, %reason, "a server changed its health");
                }
                (None, Some(reason)) => tracing::debug!(upstream, %server, %reason, "a check of a server failed"),
                (None, None) => {}
            }
            verdicts.send_if_modified(|verdicts| verdicts.note(&self.upstream, &self.server, health.is_up()));
        }
    }

    async fn ask(&self, endpoint: &Endpoint) -> Result<(), Unwell> {
        let (began, timeout) = (clock::now(), self.config.timeout);
        let preface = check_header(self.announce);
        let stream = endpoint.connect(&preface, timeout).await?;
        let Some(path) = &self.config.path else { return Ok(()) };
        let left = timeout.saturating_sub(clock::now().since(began));
        let answered = tokio::time::timeout(left, self.exchange(path, stream)).await;
        answered.unwrap_or(Err(Unwell::TimedOut(timeout)))
    }

    async fn exchange(&self, path: &str, stream: ServerStream) -> Result<(), Unwell> {
        let host = self.config.host.clone().unwrap_or_else(|| self.server.configured());
        let request = Request::get(path).header(HOST, &host).header(USER_AGENT, "tidegate-check");
        let request = request.body(Empty::<Bytes>::new())?;
        let status = match self.protocol {
            UpstreamProtocol::Http1 => ask_http1(stream, request).await,
            UpstreamProtocol::H2c | UpstreamProtocol::Http2 => {
                let scheme = if self.tls.is_some() { "https" } else { "http" };
                ask_http2(stream, request, scheme).await
            }
        };
        let status = status?;
        let is_well = self.config.statuses.iter().any(|statuses| statuses.contains(&status.as_u16()));
        match (is_well, status.is_client_error() && self.config.host.is_none()) {
            (true, _) => Ok(()),
            (false, false) => Err(Unwell::Status(status)),
            (false, true) => Err(Unwell::AsStranger { status, host }),
        }
    }
}

/// Why a server is not well.
#[derive(Debug, thiserror::Error)]
enum Unwell {
    /// Its name has no address, or nothing answers there.
    #[error("{source}{because}", because = because(.source))]
    Connect {
        #[from]
        source: ConnectError,
    },
    /// Nobody can ask so.
    #[error("the check cannot be asked: {0}")]
    Request(#[from] http::Error),
    #[error("no answer: {0}")]
    Broken(#[from] hyper::Error),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("it answered {0}")]
    Status(StatusCode),
    /// Perhaps for the name alone, which nobody has set.
    #[error("it answered {status}, asked as {host}; if it knows other names, set health.host")]
    AsStranger { status: StatusCode, host: String },
}

/// What lies behind an error, for the log.
fn because(error: &ConnectError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(String::new(), |text, cause| format!("{text}: {cause}"))
}

async fn ask_http1(stream: ServerStream, request: Request<Empty<Bytes>>) -> hyper::Result<StatusCode> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn_local(async { drop(connection.await) });
    // The check needs the answer's head only; the connection ends with it.
    Ok(sender.send_request(request).await?.status())
}

async fn ask_http2(
    stream: ServerStream,
    mut request: Request<Empty<Bytes>>,
    scheme: &str,
) -> hyper::Result<StatusCode> {
    // HTTP/2 names the host in the target.
    if let Some(host) = request.headers_mut().remove(HOST)
        && let Ok(host) = host.to_str()
        && let Ok(target) = format!("{scheme}://{host}{}", request.uri()).parse()
    {
        *request.uri_mut() = target;
    }
    let (mut sender, connection) = http2::handshake(Tasks::new(None), TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn_local(async { drop(connection.await) });
    Ok(sender.send_request(request).await?.status())
}
