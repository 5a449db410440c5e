//! Asks servers how they are, for all threads.

use std::collections::BTreeMap;
use std::sync::Arc;

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
use super::endpoint::{Endpoint, check_header};
use super::http2::Local;
use super::tls::Tls;
use crate::config::{ProxyProtocolOut, Server, UpstreamProtocol};
use crate::io::server_stream::ServerStream;
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
    rng: Rng,
    /// Of every server that is checked.
    pub(super) running: Vec<(Check, AbortHandle)>,
    /// Ended when it is dropped.
    tasks: JoinSet<()>,
}

impl Checks {
    /// Asks nobody yet.
    pub(crate) fn new(verdicts: Arc<watch::Sender<Verdicts>>, seed: u64) -> Self {
        Self { verdicts, rng: Rng::new(seed), running: Vec::new(), tasks: JoinSet::new() }
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
            let task = check.clone().run(Arc::clone(&self.verdicts), self.rng.split());
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

    async fn run(self, verdicts: Arc<watch::Sender<Verdicts>>, mut rng: Rng) {
        let known = verdicts.borrow().of(&self.upstream, &self.server);
        let now = clock::now();
        let mut health = known.map_or_else(|| ActiveHealth::new(now), |up| ActiveHealth::known(up, now));
        let endpoint = Endpoint::new(self.server.clone(), self.tls.clone());
        loop {
            tokio::time::sleep(health.next_timeout() - clock::now()).await;
            health.on_check(&self.config, &mut rng, clock::now());
            let answer = tokio::time::timeout(self.config.timeout, self.ask(&endpoint)).await;
            let well = matches!(answer, Ok(Ok(())));
            let change = health.on_result(well, &self.config);
            if let Some(change) = change {
                tracing::info!(upstream = self.upstream, server = %self.server, ?change, "a server changed its health");
            }
            verdicts.send_if_modified(|verdicts| verdicts.note(&self.upstream, &self.server, health.is_up()));
        }
    }

    async fn ask(&self, endpoint: &Endpoint) -> Result<(), Unwell> {
        let preface = check_header(self.announce);
        let stream = endpoint.connect(&preface, self.config.timeout).await.map_err(|_| Unwell)?;
        let Some(path) = &self.config.path else { return Ok(()) };
        let host = self.config.host.clone().unwrap_or_else(|| self.server.configured());
        let request = Request::get(path.as_str()).header(HOST, host).header(USER_AGENT, "tidegate-check");
        let request = request.body(Empty::<Bytes>::new()).map_err(|_| Unwell)?;
        let status = match self.protocol {
            UpstreamProtocol::Http1 => ask_http1(stream, request).await,
            UpstreamProtocol::H2c | UpstreamProtocol::Http2 => {
                let scheme = if self.tls.is_some() { "https" } else { "http" };
                ask_http2(stream, request, scheme).await
            }
        };
        let well = self.config.statuses.contains(&status.map_err(|_| Unwell)?.as_u16());
        if well { Ok(()) } else { Err(Unwell) }
    }
}

/// The server did not answer, or not with a status of a server that is well. Which of it was is not told apart.
struct Unwell;

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
    let (mut sender, connection) = http2::handshake(Local, TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn_local(async { drop(connection.await) });
    Ok(sender.send_request(request).await?.status())
}
