//! A whole broker: shard threads, HTTP servers and background tasks, started and stopped in order.

use std::path::Path;
use std::sync::Arc;

use tidegate_broker::config::{Address, Config, TlsRequired};
use tidegate_broker::io::admin::{self, Access, AdminState, LimitStore, LimitStoreError, Limits, Phase, Target};
use tidegate_broker::io::broker::{Broker, Extras, StartError, StartingLimit};
use tidegate_broker::io::handle::{BrokerHandle, Notice};
use tidegate_broker::io::http::client::{HttpClient, Trust};
use tidegate_broker::io::http::serve::Bounds;
use tidegate_broker::io::http::{self, ApiState, Listening, Live, NSQD_VERSION, Node, access};
use tidegate_broker::io::lookupd::{Identity, Lookupd, Patience};
use tidegate_broker::io::{statsd, tls};
use tidegate_broker::machine::limiter::{Contract, Source};
use tidegate_runtime::clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::failure::Failure;
use crate::servers::{AdminAt, Bound, Servers};
use crate::settings;
use crate::token::Token;

/// What a broker is started with.
pub(crate) struct Setup {
    pub(crate) config: Arc<Config>,
    /// The limits of the configuration file.
    pub(crate) limits: Vec<(Target, Contract)>,
    /// Where limits that are set live outlast the process.
    pub(crate) store: Arc<dyn LimitStore>,
    /// What writers to the admin API must show; without one, nobody writes.
    pub(crate) token: Option<Token>,
}

/// A broker that runs. [`Self::stop`] saves its messages; dropping it does not.
pub(crate) struct Running {
    broker: Arc<Broker>,
    /// nsqd's HTTP API.
    servers: Servers,
    /// The admin API, which answers until every message is saved.
    admin_servers: Servers,
    /// Keeps nsqlookupds up to date.
    keeper: JoinHandle<()>,
    /// Pushes figures to statsd, if an address is configured; ends when the phase is draining.
    statsd: Option<JoinHandle<()>>,
    phase: watch::Sender<Phase>,
    /// The limits in force.
    pub(crate) limits: Limits,
    /// What can change while it runs.
    pub(crate) live: Live,
    /// Where clients connect; the port is the real one.
    pub(crate) tcp: Address,
    /// Where nsqd's HTTP API listens.
    pub(crate) http: Option<Address>,
    /// Where the admin API is; `None` too if it is a unix socket.
    pub(crate) admin: Option<AdminAt>,
}

impl Running {
    /// Starts everything, or nothing: ports are taken before the data folder is touched.
    pub(crate) async fn start(setup: Setup) -> Result<Self, Failure> {
        let Setup { config, limits, store, token } = setup;
        let server_tls = tls::server_config(&config.tls).map_err(|error| Failure::config(&error).because(error))?;
        let http = bind(config.http_address.as_ref()).await?;
        let https = bind(config.https_address.as_ref().filter(|_| server_tls.is_some())).await?;
        let admin = bind(config.admin_address.as_ref()).await?;

        let http_token = match config.http_token_file.clone() {
            Some(file) => Some(blocking(move || http_token(&file)).await?),
            None => None,
        };

        // In force before the first client connects.
        let unread = |error: LimitStoreError| Failure::new("cannot read the limits that were set live").because(error);
        let stored = store.limits().await.map_err(unread)?;
        let of = |source| move |(target, contract)| starting_limit(target, contract, source);
        let limits_at_start =
            limits.iter().cloned().map(of(Source::File)).chain(stored.into_iter().map(of(Source::Admin))).collect();
        let http_client = http_client(&config)?;
        let extras = Extras {
            limits: limits_at_start,
            http: http_client.clone(),
            tls: server_tls.clone(),
            runtime: tokio::runtime::Handle::current(),
        };
        let starting = Arc::clone(&config);
        let mut broker = blocking(move || Broker::start(&starting, extras)).await.map_err(not_started)?;
        let notices = broker.take_notices();
        let broker = Arc::new(broker);
        let (limits, _) = Limits::start(broker.handle(), store, limits).await.map_err(unread)?;

        let tcp = broker.tcp_address().clone();
        let node = Node {
            hostname: settings::host().name,
            tcp: listening(&tcp),
            http: http.as_ref().map_or(Listening::Nowhere, |bound| bound.listening),
            started: clock::now(),
            start_time_s: clock::realtime_ns() / 1_000_000_000,
        };
        let live = Live::new(&config);
        let directory = directory(&config, &node, http_client, broker.handle(), &live);
        let phase = watch::Sender::new(Phase::Starting);
        let statsd = start_statsd(&config, &node, broker.handle(), phase.subscribe());
        let mut running = Self {
            keeper: tokio::spawn(follow_topics(notices, directory)),
            servers: Servers::new(),
            admin_servers: Servers::new(),
            statsd,
            phase,
            limits: limits.clone(),
            live: live.clone(),
            tcp,
            http: http.as_ref().map(|bound| bound.address.clone()),
            admin: None,
            broker,
        };
        running.serve_nsqd_api(&config, &node, http_token, http, https.map(|bound| (bound, server_tls)));
        if let Some(bound) = admin {
            let state = AdminState {
                broker: running.broker.handle(),
                limits,
                config,
                node: Arc::new(node),
                live,
                phase: running.phase.subscribe(),
            };
            running.serve_admin_api(state, bound, token.as_ref()).await?;
        }
        running.phase.send_replace(Phase::Serving);
        Ok(running)
    }

    fn serve_nsqd_api(
        &mut self,
        config: &Arc<Config>,
        node: &Node,
        token: Option<Token>,
        http: Option<Bound>,
        https: Option<(Bound, Option<Arc<rustls::ServerConfig>>)>,
    ) {
        let api = ApiState::new(self.broker.handle(), Arc::clone(config), node.clone(), self.live.clone());
        let https_port = match https.as_ref().map(|(bound, _)| bound.listening) {
            Some(Listening::Port(port)) => port,
            _ => 0,
        };
        let token = token.map(|token| access::Token::new(token.reveal()));
        let guarded =
            |router, bound: &Bound| access::guarded(router, access::guard_of(config, &bound.address, token.clone()));
        let bounds = Bounds { connections: config.http_max_connections, ..Bounds::default() };
        if let Some(bound) = http {
            let everything = config.tls.required != TlsRequired::Yes;
            let router = if everything {
                guarded(http::router(api.clone()), &bound)
            } else {
                http::tls_required_router(https_port)
            };
            self.servers.serve_within(bounds, bound, None, router);
        }
        if let Some((bound, tls)) = https {
            let router = guarded(http::router(api), &bound);
            self.servers.serve_within(bounds, bound, tls, router);
        }
    }

    async fn serve_admin_api(&mut self, state: AdminState, bound: Bound, token: Option<&Token>) -> Result<(), Failure> {
        let token = token.map(|token| admin::Token::new(token.reveal()));
        let reach = admin::reach_of(&bound.address);
        let router = |reach| admin::router(state.clone(), Access { token: token.clone(), reach });
        self.admin = self.admin_servers.serve_admin(bound, reach, router).await?;
        Ok(())
    }

    /// Returns the number of a shard once it has ended though it was not told to.
    pub(crate) async fn shard_ended(&self) -> usize {
        self.broker.shard_ended().await
    }

    /// From now on the admin API says that the broker is draining.
    pub(crate) fn begin_stop(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Takes no more work, finishes what is under way, saves every message, and ends. The admin API answers until the
    /// messages are saved.
    pub(crate) async fn stop(self) -> Result<(), Failure> {
        self.begin_stop();
        self.servers.stop().await;
        self.keeper.abort();
        let _ = self.keeper.await;
        if let Some(statsd) = self.statsd {
            // It sends what is under way, and ends.
            let _ = statsd.await;
        }
        let broker = Arc::into_inner(self.broker).expect("nobody else holds it");
        let stopped = broker.stop().await;
        self.admin_servers.stop().await;
        stopped.map_err(|error| {
            Failure::new("not everything was saved").because(error).help("is there space on the disk of data_path?")
        })
    }
}

async fn bind(address: Option<&Address>) -> Result<Option<Bound>, Failure> {
    match address {
        Some(address) => Bound::bind(address).await.map(Some),
        None => Ok(None),
    }
}

fn starting_limit(target: Target, contract: Contract, source: Source) -> StartingLimit {
    StartingLimit { topic: target.topic, channel: target.channel, contract, source }
}

fn not_started(error: StartError) -> Failure {
    let help = match &error {
        StartError::Listen { .. } => "is another broker running? tcp_address says where this one listens",
        StartError::DataFolder { .. } => "data_path needs to be a folder of this broker alone that it may write",
        _ => "the error below says what the system refused",
    };
    Failure::new(&error).help(help).because(error)
}

fn listening(address: &Address) -> Listening {
    match address {
        Address::Unix(_) => Listening::Unix,
        Address::Tcp { port, .. } => Listening::Port(*port),
    }
}

/// What asks AUTH servers and nsqlookupds. `tls_root_ca_file` says who may vouch for a server, else the system does,
/// but only where some server speaks HTTPS: a machine without authorities is no reason not to start.
fn http_client(config: &Config) -> Result<HttpClient, Failure> {
    let roots = match &config.tls.root_ca {
        Some(file) => Some(tls::authorities(file).map_err(|error| Failure::config(&error).because(error))?),
        None if config.auth_http_addresses.iter().any(|address| address.starts_with("https://")) => None,
        None => Some(rustls::RootCertStore::empty()),
    };
    let trust = roots.map_or(Trust::System, |roots| {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Trust::Configured(Box::new(client))
    });
    HttpClient::new(config.http_client_connect_timeout, config.http_client_request_timeout, trust)
        .map_err(|error| Failure::new("cannot read the system's certificate authorities").because(error))
}

/// The port that others are told: as configured, or the one we listen on.
fn announced(configured: Option<u16>, listening: Listening) -> u16 {
    match (configured, listening) {
        (Some(port), _) | (None, Listening::Port(port)) => port,
        (None, Listening::Unix | Listening::Nowhere) => 0,
    }
}

fn start_statsd(
    config: &Config,
    node: &Node,
    broker: BrokerHandle,
    mut phase: watch::Receiver<Phase>,
) -> Option<JoinHandle<()>> {
    let options = config.statsd.clone();
    let address = options.address.clone()?;
    let port = announced(config.broadcast_http_port, node.http);
    let prefix = statsd::prefix(&options.prefix, &config.broadcast_address, port);
    let stop = async move {
        // An error means that the broker is gone, which is the same.
        let _ = phase.wait_for(|phase| *phase == Phase::Draining).await;
    };
    Some(tokio::spawn(statsd::run(options, address, prefix, config.e2e_percentiles.clone(), broker, stop)))
}

/// Tells nsqlookupds about this broker, those too that are named later, while it runs.
fn directory(config: &Config, node: &Node, http: HttpClient, broker: BrokerHandle, live: &Live) -> Lookupd {
    let identity = Identity {
        broadcast_address: config.broadcast_address.clone(),
        tcp_port: announced(config.broadcast_tcp_port, node.tcp),
        http_port: announced(config.broadcast_http_port, node.http),
        hostname: node.hostname.clone(),
        version: NSQD_VERSION.to_owned(),
    };
    // Its task ends with the last handle on it, which is the follower's.
    Lookupd::start(identity, Patience::default(), http, broker, live.lookupd_addresses.subscribe()).0
}

/// Tells nsqlookupds whenever topics or channels change. Nothing here waits, so that notices do not pile up.
async fn follow_topics(notices: Option<mpsc::UnboundedReceiver<Notice>>, directory: Lookupd) {
    let Some(mut notices) = notices else { return };
    while let Some(notice) = notices.recv().await {
        directory.observe(&notice);
    }
}

/// The token that writes over nsqd's HTTP API must show.
fn http_token(file: &Path) -> Result<Token, Failure> {
    Token::load_or_create(file).map_err(|error| {
        let help = error.remedy();
        Failure::new(&error).help(help).because(error)
    })
}

/// Runs `work`, which waits for a disk, where waiting holds nobody up.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("it returns its errors")
}
