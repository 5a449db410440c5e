//! An agent that runs, with its admin API: started, reloaded, stopped.

use tidegate_broker::config::Address;
use tidegate_console::{ConsoleConfig, ShaperSource};
use tidegate_runtime::access::{self, Guard, Reach};
use tidegate_runtime::causes::with_causes;
use tidegate_shaper::config::Config;
use tidegate_shaper::error::ShaperError;
use tidegate_shaper::io::agent::{Agent, AgentHandle};
use tidegate_shaper::io::{admin, loader};
use tidegate_shaper::machine::device::{Device, Mode};

use crate::failure::Failure;
use crate::output;
use crate::servers::{AdminAt, Bound, Servers};
use crate::token::Token;

/// Devices that the screen names; more are only counted.
const SHOWN: usize = 8;

/// An agent that runs, with its admin API.
pub(crate) struct ShaperRunning {
    agent: Agent,
    config: Config,
    servers: Servers,
    admin: Option<AdminAt>,
}

/// Puts a file that was read again in force.
pub(crate) struct ShaperReload {
    agent: AgentHandle,
    config: Config,
}

impl ShaperRunning {
    /// Starts everything, or nothing.
    pub(crate) async fn start(config: Config, token: &Token) -> Result<Self, Failure> {
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        // The port is taken before a device is touched.
        let bound = match config.admin {
            Some(at) => Some((Bound::bind(&Address::Tcp { host: at.ip().to_string(), port: at.port() }).await?, at)),
            None => None,
        };
        let starting = config.clone();
        let agent = tokio::task::spawn_blocking(move || Agent::start(starting, loader::loader())).await;
        let agent = agent.expect("it returns its errors").map_err(failed)?;
        let mut servers = Servers::new();
        let mut at = None;
        if let Some((bound, address)) = bound {
            let (handle, token) = (agent.handle(), access::Token::new(token.reveal()));
            let router = |reach| admin::router(handle.clone(), Guard { token: Some(token.clone()), reach });
            at = servers.serve_admin(bound, Reach::of_host(&address.ip().to_string()), router).await?;
        }
        Ok(Self { agent, config, servers, admin: at })
    }

    /// Asks its agent.
    pub(crate) fn handle(&self) -> AgentHandle {
        self.agent.handle()
    }

    /// How a console finds it; `None` without an admin API.
    pub(crate) fn console_source(&self, token: &Token) -> Option<ShaperSource> {
        let admin_url = format!("http://{}", self.admin.as_ref()?.here);
        Some(ShaperSource { admin_url, token: Some(token.reveal().to_owned()) })
    }

    /// Serves a console of its own on `bound`, and returns where.
    pub(super) fn show(&mut self, bound: Bound, token: &Token) -> Result<String, Failure> {
        let Some(source) = self.console_source(token) else {
            return Err(Failure::usage("a console needs the shaper's admin API").help("give shaper.admin_address"));
        };
        let address = bound.local_authority().unwrap_or_default();
        let config = ConsoleConfig {
            shaper: Some(source),
            write_token: token.reveal().to_owned(),
            stop: Some(self.servers.stopping()),
            ..ConsoleConfig::default()
        };
        self.servers.serve(bound, None, tidegate_console::router(config));
        Ok(address)
    }

    /// Says on standard output what there is.
    pub(crate) fn introduce(&self) -> Result<(), Failure> {
        if let Some(at) = &self.admin {
            output::line(format_args!("shaper   {at}"))?;
        }
        for device in self.config.devices.iter().take(SHOWN) {
            output::line(format_args!("device   {}", described(device)))?;
        }
        let more = self.config.devices.len().saturating_sub(SHOWN);
        if more > 0 { output::line(format_args!("         and {more} more devices")) } else { Ok(()) }
    }

    /// What puts a file that was read again in force.
    pub(crate) fn reload(&self) -> ShaperReload {
        ShaperReload { agent: self.agent.handle(), config: self.config.clone() }
    }

    /// Ends it. The trees stay, and their rates hold.
    pub(crate) async fn stop(self) {
        self.servers.stop().await;
        let agent = self.agent;
        tokio::task::spawn_blocking(move || drop(agent)).await.expect("it ends by itself");
    }
}

fn described(device: &Device) -> String {
    let namespace = device.namespace.as_ref().map(|path| format!(" in {}", path.display())).unwrap_or_default();
    let tree = match device.mode {
        Mode::Own => "our tree",
        Mode::Attach => "somebody else's tree",
    };
    let classes = match device.classes.len() {
        1 => "1 class".to_owned(),
        more => format!("{more} classes"),
    };
    let rate = device.rate.map(|rate| format!(", {rate}")).unwrap_or_default();
    format!("{}{namespace}: {tree}, {classes}{rate}", device.name)
}

impl ShaperReload {
    /// Puts the section of a file that was read again in force, and returns how much of it changed.
    pub(crate) async fn reload(&mut self, config: Option<Config>) -> usize {
        let Some(config) = config else {
            tracing::warn!("[shaper] is gone from the file: that holds from the next start");
            return 1;
        };
        if config.admin != self.config.admin {
            tracing::warn!("shaper.admin_address has changed in the file: it holds from the next start");
        }
        for warning in config.warnings.iter().filter(|warning| !self.config.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        // Also one that is the same: it takes back what was changed live.
        match self.agent.reload(config.clone()).await {
            Ok(()) if config == self.config => 0,
            Ok(()) => {
                tracing::info!(devices = config.devices.len(), "SIGHUP: [shaper] of the file changed");
                self.config = config;
                1
            }
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "SIGHUP: the shaper stays as it is");
                1
            }
        }
    }
}

/// With what to do about it.
pub(super) fn failed(error: ShaperError) -> Failure {
    let help = error.remedy();
    Failure::new(&error).help(help).because(error)
}
