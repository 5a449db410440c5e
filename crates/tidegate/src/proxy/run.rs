//! A proxy that runs, with its admin API.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_broker::config::Host;
use tidegate_console::{ConsoleConfig, ProxySource};
use tidegate_proxy::config::Config;
use tidegate_proxy::error::ProxyError;
use tidegate_proxy::io::Proxy;
use tidegate_proxy::io::admin::{self, Source};
use tidegate_runtime::access::{self, Guard, Reach};
use tidegate_runtime::causes::with_causes;

use tidegate_runtime::config::Document;
use tokio::time::{MissedTickBehavior, interval};

use super::screen;
use super::upgrade::{Given, Taken};
use super::watch::{Follower, Watched};
use crate::failure::Failure;
use crate::output;
use crate::reload::Reload;
use crate::servers::{AdminAt, Bound, Servers};
use crate::settings::{self, Settings};
use crate::signals::Hangups;
use crate::token::Token;

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a successor waits for the addresses of names.
const NAMES_MAX: Duration = Duration::from_secs(5);

/// A proxy that runs. [`Self::stop`] lets requests end; dropping it does not.
pub(crate) struct ProxyRunning {
    proxy: Proxy,
    source: Arc<dyn Source>,
    servers: Servers,
    origin: Origin,
    follower: Follower,
    /// Where its admin API is.
    pub(crate) admin: Option<AdminAt>,
    /// Where its own console is, as `host:port`.
    console: Option<String>,
    /// What a successor gets.
    given: Given,
}

impl ProxyRunning {
    /// Starts everything, or nothing. If `config` comes from a file, that was entered in `file` before it was read. What is
    /// `inherited` is not opened again, and then no connections are taken before [`Self::accept`].
    pub(crate) async fn start(
        config: Config,
        file: Option<Watched>,
        token: Option<&Token>,
        inherited: &mut Taken,
    ) -> Result<Self, Failure> {
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        // Ports are taken before threads start.
        let bound = match config.admin {
            Some(at) => Some((inherited.bind("admin", at).await?, Reach::of_host(&at.ip().to_string()))),
            None => None,
        };
        let path = file.as_ref().and_then(Watched::first);
        let mut watched = file.unwrap_or_default();
        enter_certificates(&config, &mut watched);
        let (passed, passes_on) = (inherited.ports(), config.upgrade_socket.is_some());
        let proxy = tokio::task::spawn_blocking(|| Proxy::prepare(config, passed));
        let proxy = proxy.await.expect("it returns its errors");
        let proxy = proxy.map_err(not_started)?;
        let source = proxy.source();
        let follower = Follower::new(watched);
        let given = Given::new(proxy.ports(), passes_on);
        let servers = Servers::new();
        let origin = Origin { file: path, beside_broker: false };
        let mut this = Self { proxy, source, servers, origin, follower, admin: None, console: None, given };
        if !inherited.is_from_another() {
            this.accept();
        }
        if let Some((bound, reach)) = bound {
            this.given.add("admin", this.source.config().admin, &bound)?;
            this.serve_admin_api(bound, reach, token).await?;
        }
        Ok(this)
    }

    /// The same beside a broker, which cannot hand over.
    pub(crate) async fn start_beside_broker(
        config: Config,
        file: Option<Watched>,
        token: Option<&Token>,
    ) -> Result<Self, Failure> {
        let mut this = Self::start(beside_broker(config), file, token, &mut Taken::default()).await?;
        this.origin.beside_broker = true;
        Ok(this)
    }

    async fn serve_admin_api(&mut self, bound: Bound, reach: Reach, token: Option<&Token>) -> Result<(), Failure> {
        let token = token.map(|token| access::Token::new(token.reveal()));
        let router = |reach| admin::router(Arc::clone(&self.source), Guard { token: token.clone(), reach });
        self.admin = self.servers.serve_admin(bound, reach, router).await?;
        Ok(())
    }

    /// Waits until the names of all servers have addresses, so that a process before this one is not replaced by one
    /// that reaches nobody.
    pub(crate) async fn has_names(&self) -> Result<(), Failure> {
        let missing = self.proxy.names_missing(NAMES_MAX).await;
        if missing.is_empty() {
            return Ok(());
        }
        let all = missing.iter().map(|(upstream, name)| format!("{name} of upstream {upstream}"));
        let all = all.collect::<Vec<_>>().join(", ");
        Err(Failure::new(format!("no address was found within {NAMES_MAX:?} for {all}"))
            .help("try again when the name servers answer, or take the name out of the file: what runs goes on"))
    }

    /// Takes connections from now on.
    pub(crate) fn accept(&self) {
        self.proxy.accept();
    }

    /// Where it listens, in the order of the configuration.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.proxy.addresses()
    }

    /// How a console finds it; `None` without an admin API.
    pub(crate) fn console_source(&self, token: Option<&Token>) -> Option<ProxySource> {
        let admin = &self.admin.as_ref()?.here;
        let token = token.map(|token| token.reveal().to_owned());
        Some(ProxySource { name: "local".to_owned(), admin_url: format!("http://{admin}"), token })
    }

    /// Serves a console of its own at `address`.
    pub(crate) async fn show(
        &mut self,
        address: &str,
        token: Option<&Token>,
        inherited: &mut Taken,
    ) -> Result<(), Failure> {
        let Some(source) = self.console_source(token) else {
            return Err(Failure::usage("a console needs the proxy's admin API").help("give proxy.admin_address"));
        };
        let at: SocketAddr = address.parse().map_err(|error| {
            Failure::usage(format!("{address:?} is no address")).help("such as 127.0.0.1:7070").because(error)
        })?;
        let bound = inherited.bind("console", at).await?;
        self.given.add("console", Some(at), &bound)?;
        let authority = bound.local_authority().unwrap_or_default();
        self.console = Some(authority);
        let config = ConsoleConfig {
            proxies: vec![source],
            write_token: token.map_or("", Token::reveal).to_owned(),
            stop: Some(self.servers.stopping()),
            ..ConsoleConfig::default()
        };
        self.servers.serve(bound, None, tidegate_console::router(config));
        Ok(())
    }

    /// Says on standard output what there is; `token` is what its own console wants for changes, and its file.
    pub(crate) fn introduce(&self, token: Option<(&Token, &Path)>) -> Result<(), Failure> {
        let config = self.source.config();
        let admin = self.admin.as_ref().map(ToString::to_string);
        let lines = screen::lines(&config, &self.addresses(), admin.as_deref());
        lines.into_iter().try_for_each(output::line)?;
        self.console.iter().try_for_each(|authority| output::console(&format!("{authority}/"), token))
    }

    /// Follows its files and SIGHUP until `end`; at a SIGHUP the broker beside it, if there is one, reads its file too.
    pub(crate) async fn serve_until<T>(
        &mut self,
        hangups: &mut Hangups,
        mut broker: Option<&mut Reload>,
        end: impl Future<Output = T>,
    ) -> T {
        let mut end = std::pin::pin!(end);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                ended = &mut end => return ended,
                () = hangups.wait() => true,
                _ = looks.tick(), if self.origin.file.is_some() => false,
            };
            if let Some(broker) = broker.as_mut().filter(|_| asked) {
                tokio::select! {
                    ended = &mut end => return ended,
                    () = broker.hangup() => {}
                }
            }
            if self.follower.look() || asked {
                let (proxy, source, origin) = (&self.proxy, &self.source, &self.origin);
                self.follower.read(|watched| reload(proxy, source.as_ref(), origin, watched));
            }
        }
    }

    /// Takes no more connections, lets requests end for as long as the configuration permits, and ends.
    pub(crate) async fn stop(self) {
        let Self { proxy, servers, given, .. } = self;
        drop(given);
        // Until then supervisors are told that it is not ready.
        tell(tokio::task::spawn_blocking(move || proxy.drain()).await);
        servers.stop().await;
    }

    /// What a successor gets.
    pub(crate) fn given(&self) -> Given {
        self.given.clone()
    }

    /// The same, where a successor serves: it answers for the proxy at once.
    pub(crate) async fn hand_over(self) {
        let Self { proxy, servers, given, .. } = self;
        drop(given);
        let drained = tokio::task::spawn_blocking(move || proxy.hand_over());
        servers.stop().await;
        tell(drained.await);
    }
}

fn tell(drained: Result<bool, tokio::task::JoinError>) {
    match drained {
        Ok(true) => tracing::info!("every request has ended"),
        Ok(false) => tracing::warn!("time is up: requests under way were cut off"),
        Err(error) => tracing::error!(%error, "the proxy did not end well"),
    }
}

/// Puts what the file says now in the place of what it said; if that is wrong, nothing changes. True if it is in force.
/// Every file is entered in `watched` before it is read.
fn reload(proxy: &Proxy, source: &dyn Source, origin: &Origin, watched: &mut Watched) -> bool {
    proxy.reopen_log();
    let config = match origin.read(&source.config(), watched) {
        Ok(config) => config,
        Err(error) => {
            proxy.reload_failed();
            tracing::error!(%error, "the proxy stays as it is");
            return false;
        }
    };
    enter_certificates(&config, watched);
    let warnings = config.warnings.clone();
    if let Err(error) = proxy.reload(config) {
        tracing::error!(error = %with_causes(&error), "the proxy stays as it is");
        return false;
    }
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!("the new configuration is in force");
    true
}

/// Where the configuration of a proxy comes from.
struct Origin {
    /// If from a file.
    file: Option<PathBuf>,
    beside_broker: bool,
}

impl Origin {
    /// What it says now, where `config` is in force. If the file leaves `threads` to the default, those that run stay: the
    /// processors, or the quota, may be others by now.
    fn read(&self, config: &Config, watched: &mut Watched) -> Result<Config, String> {
        // Without a file, certificates and the access log are opened again.
        let Some(file) = &self.file else { return Ok(config.clone()) };
        watched.enter(file);
        let host = Host { cpus: config.threads, ..settings::host() };
        let settings = Document::read(file).and_then(|document| Settings::from_document(&document, &host));
        let proxy = settings.map_err(|error| with_causes(&error))?.proxy;
        let config = proxy.ok_or_else(|| "the file has no [proxy] any more".to_owned())?;
        Ok(if self.beside_broker { beside_broker(config) } else { config })
    }
}

/// `config` without what only a proxy can do that is alone in its process.
fn beside_broker(mut config: Config) -> Config {
    if config.upgrade_socket.take().is_some() {
        let warning = "proxy.upgrade_socket is for `tidegate proxy` alone: the broker beside it cannot hand over";
        config.warnings.push(warning.to_owned());
    }
    config
}

fn enter_certificates(config: &Config, watched: &mut Watched) {
    for one in &config.certificates {
        watched.enter(&one.cert);
        watched.enter(&one.key);
        one.ocsp.iter().for_each(|ocsp| watched.enter(ocsp));
    }
    config.ticket_keys.iter().for_each(|key| watched.enter(key));
    for tls in config.upstreams.iter().filter_map(|upstream| upstream.tls.as_ref()) {
        tls.files().for_each(|(_, file)| watched.enter(file));
    }
}

/// What to do about it.
pub(crate) fn remedy(error: &ProxyError) -> &'static str {
    match error {
        ProxyError::Listen { .. } => "something listens there already, or the address is another machine's",
        ProxyError::Pem { .. } | ProxyError::Certificate { .. } => {
            "cert is a PEM file of the chain, the server's own certificate first; key is its PEM key"
        }
        ProxyError::SystemRoots { .. } => "most systems have a package ca-certificates",
        ProxyError::ServerName { .. } => "a name is letters, digits, `-` and `.`; an address is one without a port",
        ProxyError::Ocsp { .. } => {
            "ocsp is a DER file of the authority's answer about cert; leave it out to staple nothing"
        }
        ProxyError::TicketKey { .. } => {
            "each of proxy.ticket_keys is a file of 80 random bytes, as `openssl rand 80` writes"
        }
        _ => "the error below says what the system refused",
    }
}

fn not_started(error: ProxyError) -> Failure {
    let help = remedy(&error);
    let failure = match error {
        ProxyError::Pem { .. }
        | ProxyError::Certificate { .. }
        | ProxyError::ServerName { .. }
        | ProxyError::Ocsp { .. }
        | ProxyError::TicketKey { .. } => Failure::config(&error),
        _ => Failure::new(&error),
    };
    failure.help(help).because(error)
}
