//! An upgrade: a successor is started, gets the listening sockets, and this process drains when it serves.

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use tidegate_broker::config::Address;
use tidegate_proxy::io::{Passed, Ports};
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::process;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::Signal;

use super::handover::{Named, Offer, Outcome, Peer};
use crate::failure::Failure;
use crate::servers::Bound;
use crate::signals;

/// The option that makes a process a successor.
const OPTION: &str = "--take-over";
/// What ports are called, each with its number and its address in the file.
const LISTEN: &str = "listen ";
/// After an error: one that stays, as when there are no files left, is not to be met at once again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often it is looked whether a successor that was started has ended.
const LOOK: Duration = Duration::from_millis(200);

/// What this process gives to a successor.
#[derive(Clone)]
pub(crate) struct Given {
    ports: Ports,
    /// Of the admin API and the console.
    servers: Vec<(String, Arc<TcpListener>)>,
    passes_on: bool,
}

impl Given {
    /// These ports. Servers are added to them only if they can ever be passed on: a socket stays open with each copy.
    pub(super) fn new(ports: Ports, passes_on: bool) -> Self {
        Self { ports, servers: Vec::new(), passes_on }
    }

    /// Adds the socket of a server at an address, as the file has it.
    pub(super) fn add(&mut self, role: &str, at: Option<SocketAddr>, bound: &Bound) -> Result<(), Failure> {
        let Some(at) = at.filter(|_| self.passes_on) else { return Ok(()) };
        let socket = bound.socket().map_err(|error| Failure::new("cannot keep a socket").because(error))?;
        self.servers.extend(socket.map(|socket| (format!("{role} {at}"), Arc::new(socket))));
        Ok(())
    }

    fn now(&self) -> Vec<Named<Arc<TcpListener>>> {
        let ports = self.ports.open().into_iter().enumerate();
        let ports = ports.map(|(n, (at, sockets))| Named { name: format!("{LISTEN}{n} {at}"), sockets });
        let servers = self.servers.iter();
        let servers = servers.map(|(name, socket)| Named { name: name.clone(), sockets: vec![Arc::clone(socket)] });
        ports.chain(servers).collect()
    }
}

/// What this process takes over from another one, if it does.
#[derive(Default)]
pub(crate) struct Taken {
    sockets: Vec<Named<OwnedFd>>,
    /// Who waits to hear whether this process serves.
    from: Option<Peer>,
}

impl Taken {
    /// What the process gives that waits at this socket.
    pub(super) fn from(socket: &Path) -> Result<Self, Failure> {
        let taken = Peer::at(socket).and_then(|peer| Ok(Self { sockets: peer.take()?, from: Some(peer) }));
        taken.map_err(|error| {
            Failure::new(format!("cannot take over from the proxy at {}", socket.display()))
                .help("is this proxy.upgrade_socket of a proxy that runs, as the same user? without --take-over it starts anew")
                .because(error)
        })
    }

    /// Whether somebody waits to hear that this process serves.
    pub(super) fn is_from_another(&self) -> bool {
        self.from.is_some()
    }

    /// Its ports.
    pub(super) fn ports(&mut self) -> Vec<Passed> {
        let ports = self.sockets.extract_if(.., |named| named.name.starts_with(LISTEN));
        ports
            .filter_map(|Named { name, sockets }| {
                let configured = name.rsplit_once(' ')?.1.parse().ok()?;
                Some(Passed { configured, sockets: sockets.into_iter().map(TcpListener::from).collect() })
            })
            .collect()
    }

    /// The socket of a server in this role, taken or new.
    pub(super) async fn bind(&mut self, role: &str, at: SocketAddr) -> Result<Bound, Failure> {
        let (name, address) = (format!("{role} {at}"), Address::Tcp { host: at.ip().to_string(), port: at.port() });
        let taken = self.sockets.extract_if(.., |named| named.name == name).flat_map(|named| named.sockets).next();
        match taken {
            Some(socket) => Bound::taken(socket, &address)
                .map_err(|error| Failure::new(format!("cannot take over {at}")).because(error)),
            None => Bound::bind(&address).await,
        }
    }

    /// Tells the other process that this one serves, and has its word that it stops.
    pub(super) fn serve_instead(&mut self) -> Result<(), Failure> {
        // What it had and the configuration of this process has not.
        self.sockets.clear();
        let Some(peer) = self.from.take() else { return Ok(()) };
        peer.ready().map_err(|error| Failure::new("the process to take over from keeps serving").because(error))?;
        tracing::info!(from = peer.pid.as_raw_nonzero().get(), "it serves; the process before it stops");
        Ok(())
    }

    /// Tells the other process why this one does not start.
    pub(super) fn give_up(&mut self, failure: &Failure) {
        if let Some(peer) = self.from.take() {
            peer.failed(&with_causes(failure));
        }
    }
}

/// Starts successors at SIGUSR2, and waits for them.
pub(super) struct Upgrades {
    asked: Signal,
    offer: Option<AsyncFd<Offer>>,
    /// One that was started and does not serve yet.
    started: Option<Child>,
}

impl Upgrades {
    /// Takes the signal over.
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self { asked: signals::upgrades()?, offer: None, started: None })
    }

    /// Lets successors connect at `socket`.
    pub(super) fn open(&mut self, socket: Option<&Path>, is_heir: bool) -> Result<(), Failure> {
        let Some(path) = socket else { return Ok(()) };
        #[expect(deprecated, reason = "the successor is unsafe for kinds of descriptors that this one is not of")]
        let offer = Offer::open(path, is_heir).and_then(|offer| AsyncFd::with_interest(offer, Interest::READABLE));
        self.offer = Some(offer.map_err(|error| {
            Failure::new(format!("cannot open the upgrade socket {}", path.display()))
                .help("proxy.upgrade_socket needs a folder that this user may write to, such as /run/tidegate")
                .because(error)
        })?);
        Ok(())
    }

    /// Returns when a successor serves. Until then this process goes on, whatever becomes of those that try.
    pub(super) async fn wait(&mut self, given: &Given) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let peer = tokio::select! {
                Some(()) = self.asked.recv() => {
                    self.start();
                    continue;
                }
                _ = looks.tick(), if self.started.is_some() => {
                    self.look();
                    continue;
                }
                peer = next(self.offer.as_ref()) => peer,
            };
            let outcome = match peer {
                Ok(peer) => give(peer, given.now()).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok((pid, Outcome::Ready)) => {
                    tracing::info!(pid, "a successor serves: this process takes no more connections");
                    return;
                }
                Ok((pid, Outcome::Failed(why))) => {
                    tracing::error!(pid, why, "a successor does not start; this process keeps serving");
                }
                Err(error) => {
                    tracing::error!(%error, "nobody took over; this process keeps serving");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Starts a successor: the program that is there now, with the command line of this process.
    fn start(&mut self) {
        self.look();
        let Some(offer) = &self.offer else {
            return tracing::error!("there is no upgrade: set proxy.upgrade_socket and start the proxy again");
        };
        if let Some(started) = &self.started {
            return tracing::warn!(pid = started.id(), "a successor starts already");
        }
        let mut line = std::env::args_os();
        let program = line.next().unwrap_or_else(|| "tidegate".into());
        let command = Command::new(&program).args(successor_args(line, offer.get_ref().path())).spawn();
        match command {
            Ok(child) => {
                tracing::info!(pid = child.id(), "a successor starts");
                self.started = Some(child);
            }
            Err(error) => {
                tracing::error!(%error, program = %program.display(), "no successor starts; this process keeps serving");
            }
        }
    }

    /// Whether one that was started has ended.
    fn look(&mut self) {
        let Some(child) = &mut self.started else { return };
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => {
                tracing::error!(pid = child.id(), %status, "a successor ended; this process keeps serving");
                self.started = None;
            }
            Err(_) => self.started = None,
        }
    }
}

/// The next process that connects.
async fn next(offer: Option<&AsyncFd<Offer>>) -> io::Result<Peer> {
    let Some(offer) = offer else { return std::future::pending().await };
    loop {
        let mut ready = offer.readable().await?;
        match ready.try_io(|offer| offer.get_ref().accept()) {
            Ok(accepted) => return accepted,
            Err(_would_block) => {}
        }
    }
}

/// Gives everything to `peer`, and waits until it serves. Then systemd knows it as the service, and it is told so.
async fn give(peer: Peer, all: Vec<Named<Arc<TcpListener>>>) -> io::Result<(i32, Outcome)> {
    let talk = move || {
        let pid = peer.pid.as_raw_nonzero().get();
        let outcome = peer.give(&all)?;
        if outcome == Outcome::Ready {
            // Only what this process says counts until then.
            notify_main_process(pid.unsigned_abs());
            if let Err(error) = peer.go() {
                notify_main_process(std::process::id());
                return Err(error);
            }
        }
        Ok((pid, outcome))
    };
    tokio::task::spawn_blocking(talk).await.map_err(io::Error::other)?
}

fn notify_main_process(pid: u32) {
    if let Err(error) = process::notify_main_process(pid) {
        tracing::warn!(%error, "the supervisor could not be told");
    }
}

/// The arguments of a process, as its successor at `socket` gets them.
fn successor_args(line: impl Iterator<Item = OsString>, socket: &Path) -> Vec<OsString> {
    let (mut all, mut is_value) = (Vec::new(), false);
    for argument in line {
        let is_option = argument == OPTION;
        let is_both = argument.as_encoded_bytes().starts_with(b"--take-over=");
        if !std::mem::replace(&mut is_value, is_option) && !is_option && !is_both {
            all.push(argument);
        }
    }
    all.extend([OPTION.into(), PathBuf::from(socket).into()]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_of_a_successor_has_the_option_once() {
        let line = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let wanted = line("proxy -c a.toml --take-over /run/b");
        for before in ["proxy -c a.toml", "proxy --take-over /run/a -c a.toml", "proxy -c a.toml --take-over=/run/a"] {
            assert_eq!(successor_args(line(before).into_iter(), Path::new("/run/b")), wanted);
        }
    }
}
