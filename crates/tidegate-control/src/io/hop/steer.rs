//! A running hop.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use tidegate_runtime::access::Guard;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::admin;
use super::book::{Authority, Book, BookError, TOPICS_MAX};
use super::config::{Config, Source};
use super::control::{self, ControlClient};
use super::figures::Figures;
use super::file::{self, FileError, Stamp, read_placements};
use super::session::{Row, Session};
use crate::machine::hop::identity::Identities;

/// After a connection could not be accepted: without descriptors the next one could not either.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Why a hop does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SteerError {
    /// The port is taken, or the address is another machine's.
    #[error("cannot listen on {address}")]
    Listen {
        /// As configured.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file of placements cannot be followed.
    #[error(transparent)]
    Placements(#[from] FileError),
    /// The placements cannot be followed together.
    #[error("the placements cannot be followed")]
    Book(#[from] BookError),
}

/// What all connections of a hop share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) book: Arc<Book>,
    pub(super) figures: Arc<Figures>,
    identities: Mutex<Identities>,
    rows: Mutex<BTreeMap<u64, Row>>,
    /// Becomes true when the hop is to end.
    pub(super) draining: watch::Sender<bool>,
}

impl Shared {
    pub(super) fn identities(&self) -> MutexGuard<'_, Identities> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the admin API shows of each session; no more than there are producers.
    pub(super) fn rows(&self) -> MutexGuard<'_, BTreeMap<u64, Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running hop. Dropping it ends its connections at once; [`Steer::drain`] lets them end.
#[derive(Debug)]
pub struct Steer {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: JoinHandle<bool>,
    following: Option<JoinHandle<()>>,
}

impl Steer {
    /// Listens, and serves producers on the runtime that this is called in. `token` is for the control plane.
    ///
    /// # Errors
    /// If the port cannot be had, or the file of placements cannot be followed.
    pub async fn start(config: Config, token: Option<&str>) -> Result<Self, SteerError> {
        let figures = Arc::new(Figures::default());
        let (wanted, asked) = mpsc::channel(TOPICS_MAX);
        let authority = match &config.source {
            Source::Nodes => Authority::Nodes,
            Source::File(_) => Authority::File,
            Source::Control(_) => Authority::Control(wanted),
        };
        let book = Arc::new(Book::new(&config.nodes, authority)?);
        let listen = |source| SteerError::Listen { address: config.listen.clone(), source };
        let listener = TcpListener::bind(&config.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let following = match &config.source {
            Source::Nodes => None,
            Source::File(file) => {
                // Before it is read, so that no change is missed.
                let stamp = Stamp::of(file);
                book.replace(read_placements(file)?)?;
                Some(tokio::spawn(file::follow(Arc::clone(&book), Arc::clone(&figures), file.clone(), stamp)))
            }
            Source::Control(base) => {
                let client = ControlClient::new(base, token);
                Some(tokio::spawn(control::follow(Arc::clone(&book), client, Arc::clone(&figures), asked)))
            }
        };
        let shared = Arc::new(Shared {
            config,
            book,
            figures,
            identities: Mutex::default(),
            rows: Mutex::default(),
            draining: watch::Sender::new(false),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared, address, accepting, following })
    }

    /// Where producers connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The admin API: `GET /api/v1/steer`, `/metrics` and `/healthz`.
    pub fn router(&self, guard: Guard) -> Router {
        admin::router(Arc::clone(&self.shared), guard)
    }

    /// Takes no more producers and no more commands, has open commands answered for as long as the configuration says,
    /// and ends. True if all were answered.
    pub async fn drain(mut self) -> bool {
        self.shared.draining.send_replace(true);
        // The task ends by itself; an error is a panic in it, and then nothing is known.
        (&mut self.accepting).await.unwrap_or(false)
    }
}

impl Drop for Steer {
    fn drop(&mut self) {
        self.accepting.abort();
        if let Some(following) = &self.following {
            following.abort();
        }
    }
}

/// Returns when the hop is to end.
pub(super) async fn told(draining: &mut watch::Receiver<bool>) {
    // An error means that nobody is left to say it, which is the same.
    let _ = draining.wait_for(|draining| *draining).await;
}

/// Serves producers until the hop is to end, and then until they have ended. True if none was cut off.
async fn accept(listener: TcpListener, shared: Arc<Shared>) -> bool {
    let mut draining = shared.draining.subscribe();
    let mut sessions = JoinSet::new();
    let mut numbers = 0..;
    loop {
        tokio::select! {
            () = told(&mut draining) => break,
            Some(_) = sessions.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) => {
                    if sessions.len() >= shared.config.max_producers {
                        shared.figures.turned_away.add(1);
                        drop(stream);
                        continue;
                    }
                    let number = numbers.next().unwrap_or(u64::MAX);
                    let session = Session::new(Arc::clone(&shared), number, stream, remote);
                    sessions.spawn(session.run(shared.draining.subscribe()));
                }
                Err(error) => {
                    tracing::debug!(%error, "a producer could not be accepted");
                    sleep(ACCEPT_REST).await;
                }
            },
        }
    }
    drop(listener);
    let all = async { while sessions.join_next().await.is_some() {} };
    timeout(shared.config.drain_timeout, all).await.is_ok()
}
