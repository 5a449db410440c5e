//! HTTP servers that stop together.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use axum::Router;
use rustls::ServerConfig;
use tidegate_broker::config::Address;
use tidegate_broker::io::http::Listening;
use tidegate_broker::io::http::serve::{self, Bounds, Listener};
use tidegate_runtime::access::Reach;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::failure::Failure;

/// A socket that waits for its router: ports are taken before anything else starts, so that a taken one ends the start.
pub(crate) struct Bound {
    listener: Listener,
    pub(crate) listening: Listening,
    /// With the port that the system picked, if it was asked to.
    pub(crate) address: Address,
}

impl Bound {
    pub(crate) async fn bind(address: &Address) -> Result<Self, Failure> {
        match Listener::bind(address).await {
            Ok((listener, listening)) => Ok(Self { listener, listening, address: with_port(address, listening) }),
            Err(error) => {
                let failure = Failure::new(format!("cannot listen on {address}"));
                Err(match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        failure.help("something listens there already: stop it, or give this one another address")
                    }
                    _ => failure,
                }
                .because(error))
            }
        }
    }

    /// The socket of another process that listened at `address`, as the file has it.
    pub(crate) fn taken(socket: OwnedFd, address: &Address) -> io::Result<Self> {
        let socket = std::net::TcpListener::from(socket);
        socket.set_nonblocking(true)?;
        let listening = Listening::Port(socket.local_addr()?.port());
        let listener = Listener::Tcp(tokio::net::TcpListener::from_std(socket)?);
        Ok(Self { listener, listening, address: with_port(address, listening) })
    }

    /// The same socket once more, for a successor; `None` for a unix socket.
    pub(crate) fn socket(&self) -> io::Result<Option<std::net::TcpListener>> {
        match &self.listener {
            Listener::Tcp(listener) => listener.as_fd().try_clone_to_owned().map(|socket| Some(socket.into())),
            Listener::Unix(_) => Ok(None),
        }
    }

    /// Where this machine reaches it, as `host:port`; for addresses of all interfaces too. `None` for a unix socket.
    pub(crate) fn local_authority(&self) -> Option<String> {
        let Address::Tcp { host, port } = &self.address else { return None };
        Some(match host.as_str() {
            "0.0.0.0" | "" => format!("127.0.0.1:{port}"),
            "::" => format!("[::1]:{port}"),
            host if host.contains(':') => format!("[{host}]:{port}"),
            host => format!("{host}:{port}"),
        })
    }
}

fn with_port(address: &Address, listening: Listening) -> Address {
    match (address, listening) {
        (Address::Tcp { host, .. }, Listening::Port(port)) => Address::Tcp { host: host.clone(), port },
        _ => address.clone(),
    }
}

/// Where an admin API is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AdminAt {
    /// As `host:port`, by this machine, which reads without the token.
    pub(crate) here: String,
    /// By others, who need the token also to read.
    outside: Option<Address>,
}

impl fmt::Display for AdminAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(outside) = &self.outside {
            write!(f, "http://{outside} with the token; from this machine ")?;
        }
        write!(f, "http://{}", self.here)
    }
}

/// The servers that run.
pub(crate) struct Servers {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Servers {
    pub(crate) fn new() -> Self {
        Self { tasks: JoinSet::new(), stop: watch::Sender::new(false) }
    }

    /// Becomes true when they are to stop; for answers that would otherwise never end.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Serves `router` on `bound`, with TLS if there is some, until [`Self::stop`].
    pub(crate) fn serve(&mut self, bound: Bound, tls: Option<Arc<ServerConfig>>, router: Router) {
        self.serve_within(Bounds::default(), bound, tls, router);
    }

    /// The same with bounds of its own.
    pub(crate) fn serve_within(
        &mut self,
        bounds: Bounds,
        bound: Bound,
        tls: Option<Arc<ServerConfig>>,
        router: Router,
    ) {
        let mut stopping = self.stopping();
        let stopped = async move {
            // An error means that nobody is left to say it, which is the same.
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        self.tasks.spawn(serve::serve(bound.listener, tls, router, bounds, stopped));
    }

    /// Serves an admin API, made for who reaches it, and says where; `None` for a unix socket.
    ///
    /// From the network, reads need the token. The console and commands read without one, on a port of loopback beside it.
    pub(crate) async fn serve_admin(
        &mut self,
        bound: Bound,
        reach: Reach,
        router: impl Fn(Reach) -> Router,
    ) -> Result<Option<AdminAt>, Failure> {
        let mut at = bound.local_authority().map(|here| AdminAt { here, outside: None });
        if reach == Reach::Network {
            let inside = Bound::bind(&Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 }).await?;
            let outside = Some(bound.address.clone());
            at = inside.local_authority().map(|here| AdminAt { here, outside });
            self.serve(inside, None, router(Reach::Loopback));
        }
        self.serve(bound, None, router(reach));
        Ok(at)
    }

    /// Takes no more requests, finishes those under way, and returns.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_named_with_what_to_do() {
        let any = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let first = Bound::bind(&any).await.unwrap();
        let error = Bound::bind(&first.address).await.err().unwrap();
        assert_eq!(error.to_string(), format!("cannot listen on {}", first.address));
        assert!(format!("{:?}", miette::Report::new(error)).contains("something listens there already"));
    }

    #[tokio::test]
    async fn an_admin_api_for_the_network_has_a_port_for_this_machine_beside_it() {
        let mut servers = Servers::new();
        for (host, reach) in [("127.0.0.1", Reach::Loopback), ("0.0.0.0", Reach::Network)] {
            let bound = Bound::bind(&Address::Tcp { host: host.to_owned(), port: 0 }).await.unwrap();
            let address = bound.address.clone();
            let at = servers.serve_admin(bound, reach, |_| Router::new()).await.unwrap().unwrap();
            let here = at.here.clone();
            let wanted = match reach {
                Reach::Network => format!("http://{address} with the token; from this machine http://{here}"),
                _ => format!("http://{address}"),
            };
            assert_eq!(at.to_string(), wanted);
        }
        servers.stop().await;
    }

    #[tokio::test]
    async fn all_interfaces_are_reached_over_loopback() {
        let all = Address::Tcp { host: "0.0.0.0".to_owned(), port: 0 };
        let authority = Bound::bind(&all).await.unwrap().local_authority().unwrap();
        assert!(authority.starts_with("127.0.0.1:") && !authority.ends_with(":0"), "{authority}");
    }
}
