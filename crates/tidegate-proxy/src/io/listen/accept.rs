//! Takes connections off the ports.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use tidegate_runtime::clock;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::hello::{self, Accepted, FIRST_BYTES_MAX, Place};
use super::ports::Entrance;
use super::thread::{Thread, Total};
use crate::io::conn::meter;
use crate::io::listen::bind::BACKLOG;
use crate::io::listen::tuning::{BATCH, BATCH_NS};

/// What it costs to refuse one at its hello is learnt from so many at once at least: nearly all of these are refused.
const LEARNT_FROM: u32 = 6;

/// Of those that are refused, so many are ended when files run out: more than are taken until the next look at that.
const ENDS_FOR_ROOM: usize = 2 * BATCH;
/// How long a thread waits before it tries again when it gets no file descriptor.
const OUT_OF_FILES_PAUSE: Duration = Duration::from_millis(20);
/// How often a port that closes waits so for room; then it closes all the same.
const DRAIN_PAUSES_MAX: u32 = 50;

/// Takes connections until the port closes or the thread drains, and then those that the kernel has for it.
pub(crate) async fn accept(thread: Rc<Thread>, listener: Arc<TcpListener>, entrance: Rc<Entrance>) -> io::Result<()> {
    let listening = listener.local_addr()?;
    #[expect(deprecated, reason = "the successor is unsafe for kinds of descriptors that this one is not of")]
    let listener = AsyncFd::with_interest(listener, Interest::READABLE)?;
    let scratch = vec![0; FIRST_BYTES_MAX];
    let mut port = Port { thread: Rc::clone(&thread), listening, entrance, scratch, taken: 0, spare: spare() };
    while port.is_open() {
        let mut ready = None;
        // Otherwise there is work to do, whether or not somebody comes.
        if thread.refused.is_empty_at(port.entrance.slot()) {
            tokio::select! {
                guard = listener.readable() => ready = Some(guard?),
                () = thread.changed.notified() => continue,
            }
        }
        if !port.is_open() {
            break;
        }
        let took = match port.take(listener.get_ref()) {
            Ok(took) => took,
            Err(error) => {
                // Nobody comes back for them.
                hello::end_refused_at(&thread, port.entrance.slot(), usize::MAX);
                return Err(error);
            }
        };
        if let (Took::All, Some(ready)) = (took, &mut ready) {
            ready.clear_ready();
        }
        port.end_refused(took);
        // What was refused is nobody's time, but for what it is charged for; the tasks that began pay for themselves from
        // here on.
        port.learn(meter::stamp());
        match took {
            Took::Pause => tokio::time::sleep(OUT_OF_FILES_PAUSE).await,
            _ => tokio::task::yield_now().await,
        }
    }
    let rest = port.take_rest(listener.get_ref()).await;
    hello::end_refused_at(&thread, port.entrance.slot(), usize::MAX);
    rest
}

/// A port's part of a thread.
struct Port {
    thread: Rc<Thread>,
    listening: SocketAddr,
    entrance: Rc<Entrance>,
    scratch: Vec<u8>,
    /// Connections that were taken since the clock was last read.
    taken: u32,
    /// Given up for a moment when no other is left, so that the connection that waits can be taken and ended.
    spare: Option<OwnedFd>,
}

/// Why no more connections are taken for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Took {
    /// There are no more.
    All,
    /// It is others' turn.
    Enough,
    /// There is no room.
    Crowded,
    /// There was an error that will pass.
    Pause,
}

impl Port {
    fn is_open(&self) -> bool {
        !self.thread.draining.get() && !self.entrance.is_closed()
    }

    /// Takes connections that wait; an error if the port is none any more.
    fn take(&mut self, listener: &TcpListener) -> io::Result<Took> {
        let (began, door) = (clock::now(), self.entrance.door());
        for taken in 0..BATCH {
            if taken > 0 && clock::now().nanos_since(began) >= BATCH_NS {
                break;
            }
            if self.thread.seats.is_crowded() {
                return Ok(Took::Crowded);
            }
            match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((socket, peer)) => {
                    let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else { continue };
                    self.thread.count(Total::Accepted);
                    self.taken += 1;
                    let (local, door) = (local_of(&socket, self.listening), Rc::clone(&door));
                    let place = Place { peer, local, door };
                    hello::meet(&self.thread, Accepted { socket, place }, &mut self.scratch);
                }
                Err(Errno::AGAIN) => return Ok(Took::All),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return Ok(self.make_room(listener)),
                Err(error) => match after(error) {
                    After::Next => {}
                    After::Pause => return Ok(Took::Pause),
                    After::End => return Err(error.into()),
                },
            }
        }
        Ok(Took::Enough)
    }

    /// Takes those that the kernel holds when the port closes: their clients have sent what they want, and a port that
    /// closes resets them. No more than it may hold, so that those who come meanwhile do not keep the port open.
    async fn take_rest(&mut self, listener: &TcpListener) -> io::Result<()> {
        let mut left = BACKLOG.unsigned_abs();
        let mut pauses = 0;
        while left > 0 {
            let took = self.take(listener)?;
            left = left.saturating_sub(self.taken.max(1));
            self.end_refused(took);
            self.learn(meter::stamp());
            match took {
                Took::All => break,
                Took::Enough => tokio::task::yield_now().await,
                Took::Crowded | Took::Pause if pauses == DRAIN_PAUSES_MAX => break,
                Took::Crowded | Took::Pause => {
                    pauses += 1;
                    tokio::time::sleep(OUT_OF_FILES_PAUSE).await;
                }
            }
        }
        Ok(())
    }

    /// Learns what one connection costs from the `spent` nanoseconds in which some were taken, and others ended.
    fn learn(&mut self, spent: u64) {
        let taken = std::mem::take(&mut self.taken);
        let tls = self.entrance.door().listener.tls;
        let (cost, least) = if tls { (&self.thread.refusal_ns, LEARNT_FROM) } else { (&self.thread.taking_ns, 1) };
        if taken >= least {
            let (known, one) = (cost.get(), spent / u64::from(taken));
            cost.set(if known == 0 { one } else { known - known / 8 + one / 8 });
        }
    }

    /// Files or memory ran out: those go first that are refused, then those of whom something is awaited.
    fn make_room(&mut self, listener: &TcpListener) -> Took {
        self.thread.count(Total::OutOfFiles);
        if !self.thread.refused.is_empty() {
            hello::end_refused(&self.thread, ENDS_FOR_ROOM);
            return Took::Enough;
        }
        if self.thread.seats.shrink() {
            return Took::Enough;
        }
        self.spare = end_one(listener, self.spare.take());
        Took::Pause
    }

    /// Ends those of this port that were refused whose time has come.
    fn end_refused(&self, took: Took) {
        let (thread, slot) = (&self.thread, self.entrance.slot());
        let due = thread.refused.due(slot, took != Took::Enough, thread.seats.most(), meter::now());
        hello::end_refused_at(thread, slot, due);
    }
}

/// What to do after an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    /// It was that connection's; the next one is there.
    Next,
    /// Try again, but not at once.
    Pause,
    /// It is the port's, and stays.
    End,
}

/// A port is given up only if it is none: accept(2) reports what befell a connection while it waited, and what a firewall
/// forbids.
fn after(error: Errno) -> After {
    match error {
        Errno::CONNABORTED
        | Errno::INTR
        | Errno::PROTO
        | Errno::NOPROTOOPT
        | Errno::NETDOWN
        | Errno::NETUNREACH
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::NONET => After::Next,
        Errno::BADF | Errno::INVAL | Errno::NOTSOCK => After::End,
        _ => After::Pause,
    }
}

/// The address that the client connected to: a port that is open on all addresses does not know.
fn local_of(socket: &OwnedFd, listening: SocketAddr) -> SocketAddr {
    if !listening.ip().is_unspecified() {
        return listening;
    }
    let own = rustix::net::getsockname(socket).ok().and_then(|own| SocketAddr::try_from(own).ok());
    own.unwrap_or(listening)
}

fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Ends the connection that has waited longest: its client learns at once, and not by a time-out.
fn end_one(listener: &TcpListener, spare_before: Option<OwnedFd>) -> Option<OwnedFd> {
    drop(spare_before);
    if let Ok((socket, _)) = acceptfrom_with(listener, SocketFlags::CLOEXEC) {
        // It ends whether or not it can be told so.
        let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    }
    spare()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::io::listen::bind::listen;

    #[test]
    fn only_what_is_no_port_ends_one() {
        for (errors, wanted) in [
            (&[Errno::CONNABORTED, Errno::NETUNREACH, Errno::HOSTDOWN, Errno::NONET][..], After::Next),
            (&[Errno::PERM, Errno::OPNOTSUPP, Errno::TIMEDOUT], After::Pause),
            (&[Errno::BADF, Errno::INVAL, Errno::NOTSOCK], After::End),
        ] {
            assert!(errors.iter().all(|&error| after(error) == wanted), "{wanted:?}");
        }
    }

    #[test]
    fn a_port_on_all_addresses_knows_which_one_its_client_took() {
        let everywhere = listen("0.0.0.0:0".parse().unwrap()).unwrap();
        let listening = everywhere.local_addr().unwrap();
        let target: SocketAddr = ([127, 0, 0, 1], listening.port()).into();
        let mut client = std::net::TcpStream::connect(target).unwrap();
        client.write_all(b"GET").unwrap();
        everywhere.set_nonblocking(false).unwrap();
        let (socket, _) = everywhere.accept().unwrap();
        assert_eq!(local_of(&OwnedFd::from(socket), listening), target);
        drop(client);
        let other: SocketAddr = "192.0.2.1:80".parse().unwrap();
        assert_eq!(local_of(&OwnedFd::from(everywhere), other), other);
    }
}
