//! The admin API of an RPC server, and a console in front of it, both on loopback.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Serialize;
use tidegate_broker::config::Address;
use tidegate_console::ConsoleConfig;

use super::admin::{self, Source};
use crate::failure::Failure;
use crate::servers::{Bound, Servers};

/// Where the figures are asked for; `None` where they are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) console: Option<SocketAddr>,
}

impl Wanted {
    /// Fails if either could be reached from elsewhere.
    pub(crate) fn check(self) -> Result<(), Failure> {
        let Some(at) = [self.admin, self.console].into_iter().flatten().find(|at| !at.ip().is_loopback()) else {
            return Ok(());
        };
        Err(Failure::usage(format!("{at} is not on loopback"))
            .help("the figures are for this machine alone; use 127.0.0.1 and, from elsewhere, a tunnel or a proxy"))
    }
}

/// Where the figures are; absent if nobody asked for them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    console: Option<String>,
}

/// Serves `source` where it is wanted; the admin API where the system likes if only a console is asked for.
///
/// Both only read, and neither asks who reads: so they stay on this machine.
pub(crate) async fn show(wanted: Wanted, source: Source) -> Result<(Servers, Shown), Failure> {
    wanted.check()?;
    let Wanted { admin, console } = wanted;
    let mut servers = Servers::new();
    let mut shown = Shown::default();
    let Some(at) = admin.or(console.map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))) else {
        return Ok((servers, shown));
    };
    // All ports are taken before anything is served.
    let bound = bind(at).await?;
    let page = match console {
        Some(at) => Some(bind(at).await?),
        None => None,
    };
    shown.admin = bound.local_authority().map(|authority| format!("http://{authority}"));
    servers.serve(bound, None, admin::router(source));
    if let Some(page) = page {
        shown.console = page.local_authority().map(|authority| format!("http://{authority}/rpc"));
        let config =
            ConsoleConfig { rpc: shown.admin.clone(), stop: Some(servers.stopping()), ..ConsoleConfig::default() };
        servers.serve(page, None, tidegate_console::router(config));
    }
    Ok((servers, shown))
}

async fn bind(at: SocketAddr) -> Result<Bound, Failure> {
    Bound::bind(&Address::Tcp { host: at.ip().to_string(), port: at.port() }).await
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;
    use tidegate_rpc::config::Scheme;

    use super::*;
    use crate::rpc_watch::Watched;

    fn source() -> Source {
        let (_, watch) = Watched::new(Scheme::default().server(1, Instant::ZERO), Instant::ZERO);
        Source { scheme: "tidegate", watches: vec![watch] }
    }

    #[tokio::test]
    async fn figures_are_not_shown_to_the_network() {
        let everywhere = Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        for wanted in
            [Wanted { admin: everywhere, ..Wanted::default() }, Wanted { console: everywhere, ..Wanted::default() }]
        {
            let error = show(wanted, source()).await.err().unwrap();
            assert_eq!(error.to_string(), "0.0.0.0:0 is not on loopback");
        }
    }

    #[tokio::test]
    async fn a_console_brings_its_admin_api_along() {
        let console = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let (servers, shown) = show(Wanted { console, ..Wanted::default() }, source()).await.unwrap();
        assert!(shown.admin.unwrap().starts_with("http://127.0.0.1:"));
        assert!(shown.console.unwrap().ends_with("/rpc"));
        servers.stop().await;
        let (servers, shown) = show(Wanted::default(), source()).await.unwrap();
        assert_eq!(shown, Shown::default());
        servers.stop().await;
    }
}
