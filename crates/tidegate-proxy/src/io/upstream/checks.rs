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
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Settings;
use super::endpoint::{Endpoint, check_header};
use super::http2::Local;
use crate::config::{Server, UpstreamProtocol};
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
    /// Ended when it is dropped.
    _tasks: JoinSet<()>,
}

impl Checks {
    /// Begins to ask the servers of every upstream that wants it. Needs a runtime that takes local tasks.
    ///
    /// `verdicts` may hold what earlier checks found; those of servers that are no longer checked are dropped.
    pub(crate) fn start(settings: &[Settings], verdicts: &Arc<watch::Sender<Verdicts>>, seed: u64) -> Self {
        let checked = |(upstream, server): &(String, Server)| {
            settings.iter().any(|settings| {
                settings.health.is_some() && settings.name == *upstream && settings.servers.contains(server)
            })
        };
        verdicts.send_if_modified(|verdicts| {
            if verdicts.0.keys().all(checked) {
                return false;
            }
            Arc::make_mut(&mut verdicts.0).retain(|of, _| checked(of));
            true
        });
        let mut tasks = JoinSet::new();
        let mut rng = Rng::new(seed);
        for settings in settings {
            let Some(config) = &settings.health else { continue };
            for server in &settings.servers {
                let check = Check {
                    upstream: settings.name.clone(),
                    endpoint: Endpoint::new(server.clone()),
                    config: config.clone(),
                    settings: settings.clone(),
                    verdicts: Arc::clone(verdicts),
                };
                tasks.spawn_local(check.run(rng.split()));
            }
        }
        Self { _tasks: tasks }
    }
}

struct Check {
    upstream: String,
    endpoint: Endpoint,
    config: ActiveConfig,
    settings: Settings,
    verdicts: Arc<watch::Sender<Verdicts>>,
}

impl Check {
    async fn run(self, mut rng: Rng) {
        let mut health = ActiveHealth::new(clock::now());
        loop {
            tokio::time::sleep(health.next_timeout() - clock::now()).await;
            health.on_check(&self.config, &mut rng, clock::now());
            let answer = tokio::time::timeout(self.config.timeout, self.ask()).await;
            let well = matches!(answer, Ok(Ok(())));
            let change = health.on_result(well, &self.config);
            let server = self.endpoint.server();
            if let Some(change) = change {
                tracing::info!(upstream = self.upstream, %server, ?change, "a server changed its health");
            }
            self.verdicts.send_if_modified(|verdicts| verdicts.note(&self.upstream, server, health.is_up()));
        }
    }

    async fn ask(&self) -> Result<(), Unwell> {
        let preface = check_header(self.settings.announce);
        let stream = self.endpoint.connect(&preface, self.config.timeout).await.map_err(|_| Unwell)?;
        let Some(path) = &self.config.path else { return Ok(()) };
        let host = self.config.host.clone().unwrap_or_else(|| self.endpoint.server().to_string());
        let request = Request::get(path.as_str()).header(HOST, host).header(USER_AGENT, "tidegate-check");
        let request = request.body(Empty::<Bytes>::new()).map_err(|_| Unwell)?;
        let status = match self.settings.protocol {
            UpstreamProtocol::Http1 => ask_http1(stream, request).await,
            UpstreamProtocol::H2c => ask_http2(stream, request).await,
        };
        let well = self.config.statuses.contains(&status.map_err(|_| Unwell)?.as_u16());
        if well { Ok(()) } else { Err(Unwell) }
    }
}

/// The server did not answer, or not with a status of a server that is well. Which of it was is not told apart.
struct Unwell;

async fn ask_http1(stream: TcpStream, request: Request<Empty<Bytes>>) -> hyper::Result<StatusCode> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn_local(async { drop(connection.await) });
    // The check needs the answer's head only; the connection ends with it.
    Ok(sender.send_request(request).await?.status())
}

async fn ask_http2(stream: TcpStream, mut request: Request<Empty<Bytes>>) -> hyper::Result<StatusCode> {
    // HTTP/2 names the host in the target.
    if let Some(host) = request.headers_mut().remove(HOST)
        && let Ok(host) = host.to_str()
        && let Ok(target) = format!("http://{host}{}", request.uri()).parse()
    {
        *request.uri_mut() = target;
    }
    let (mut sender, connection) = http2::handshake(Local, TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn_local(async { drop(connection.await) });
    Ok(sender.send_request(request).await?.status())
}
