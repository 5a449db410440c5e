//! One producer: its socket, the sockets to brokers, and the machine between them.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::nsq::TopicName;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::figures::{Counted, Open};
use super::steer::{Shared, told};
use crate::machine::hop::identity::Identity;
use crate::machine::hop::{Counts, Hop, NodeId, Order};

/// Unread answers above which a producer is not read.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// How long a broker may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// A broker whose machine does not acknowledge bytes for this long has failed.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// How long a producer may take to read the last answers, once all are with the system.
const LINGER: Duration = Duration::from_secs(1);
/// How long it may take until they are: one that reads nothing must not keep its place.
const UNREAD: Duration = Duration::from_secs(5);
/// Silence after which the system asks whether a producer's machine is still there; one that wants no heartbeats and
/// vanishes without a word is found so.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How often a session asks again for topics that are not followed, and for how many: junk of one producer must not keep the
/// others busy.
const AGAIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: usize = 8;
/// Pieces that go to the system in one call.
const PIECES: usize = 32;

/// Bytes that wait for a socket. As many as the machine has open commands for; see [`ANSWER_BYTES_MAX`] for answers.
#[derive(Debug, Default)]
struct Outbox {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Outbox {
    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push_back(piece);
    }

    /// Writes what the socket takes; true if it took something.
    fn write(&mut self, stream: &mut TcpStream, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut has_written = false;
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            match Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    self.advance(bytes);
                    has_written = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        Ok(has_written)
    }

    fn advance(&mut self, mut bytes: usize) {
        self.bytes -= bytes;
        while bytes > 0 {
            let Some(first) = self.pieces.front_mut() else { return };
            if first.len() > bytes {
                first.advance(bytes);
                return;
            }
            bytes -= first.len();
            self.pieces.pop_front();
        }
    }
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// A connection to a broker.
enum Link {
    Connecting(Connecting),
    Open { stream: TcpStream, out: Outbox, _counted: Counted },
}

/// A topic that the machine asked about.
struct Joined {
    /// Whether its placement is followed.
    is_followed: bool,
    /// Of the placement that the machine was told; `None` before the first.
    version: Option<u64>,
}

/// What the admin API shows of a session.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) identity: String,
    pub(super) remote: String,
    pub(super) places: Vec<(TopicName, Option<NodeId>)>,
}

/// Why the session stopped waiting.
enum Turn {
    /// All is done.
    Over,
    /// The next timeout came nearer.
    Rearm,
}

/// A producer that is connected.
pub(super) struct Session {
    shared: Arc<Shared>,
    number: u64,
    hop: Hop,
    stream: TcpStream,
    out: Outbox,
    links: BTreeMap<NodeId, Link>,
    topics: BTreeMap<TopicName, Joined>,
    identity: Option<Identity>,
    remote: String,
    counted: Counts,
    shown: u64,
    /// When the machine is called next, as the timer knows it.
    armed: Option<Instant>,
    /// When to ask again for topics that are not followed, and where to begin.
    again: Option<(Instant, TopicName)>,
    is_eof: bool,
    /// When the machine ended the connection.
    ended: Option<Instant>,
    is_broken: bool,
    _open: Counted,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, number: u64, stream: TcpStream, remote: std::net::SocketAddr) -> Self {
        let hop = Hop::new(shared.config.hop, &remote.ip().to_string(), clock::now());
        let open = Counted::new(&shared.figures, Open::Producer);
        // Without it answers may wait for each other; a socket that refuses it is slow, not broken.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE));
        Self {
            shared,
            number,
            hop,
            stream,
            out: Outbox::default(),
            links: BTreeMap::new(),
            topics: BTreeMap::new(),
            identity: None,
            remote: remote.to_string(),
            counted: Counts::default(),
            shown: 0,
            armed: None,
            again: None,
            is_eof: false,
            ended: None,
            is_broken: false,
            _open: open,
        }
    }

    /// Serves the producer until it, or the hop, ends the connection.
    pub(super) async fn run(mut self, mut draining: watch::Receiver<bool>) {
        let mut placements = self.shared.book.changes();
        let mut is_draining = false;
        loop {
            self.armed = self.due();
            let due = self.armed.map(|due| due.since(clock::now()));
            let timer = async {
                match due {
                    Some(span) => sleep(span).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                turn = poll_fn(|cx| self.poll(cx)) => match turn {
                    Turn::Over => break,
                    Turn::Rearm => {}
                },
                news = placements.changed() => match news {
                    Ok(()) => self.on_changes(),
                    Err(_) => break,
                },
                () = told(&mut draining), if !is_draining => {
                    is_draining = true;
                    self.hop.on_drain(clock::now());
                }
                () = timer => {
                    if self.ended.is_some_and(|ended| ended + UNREAD <= clock::now()) {
                        tracing::debug!(remote = self.remote, "the producer does not read its answers");
                        return;
                    }
                    self.join_again();
                    self.hop.on_timeout(clock::now());
                }
            }
        }
        self.links.clear();
        if !self.is_broken {
            self.linger().await;
        }
    }

    /// When to go on if nothing happens.
    fn due(&self) -> Option<Instant> {
        let again = self.again.as_ref().map(|(at, _)| *at);
        let next = || [self.hop.next_timeout(), again].into_iter().flatten().min();
        self.ended.map_or_else(next, |ended| Some(ended + UNREAD))
    }

    /// Lets the producer read the last answers: with unread bytes of it a closed socket would take them back.
    async fn linger(&mut self) {
        let read = async {
            self.stream.shutdown().await?;
            let mut rest = [0; 4096];
            while self.stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // Whoever has not read them by then has gone, or never will.
        let _ = timeout(LINGER, read).await;
    }

    /// Does all that can be done now.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        loop {
            let mut is_busy = self.poll_producer(cx);
            is_busy |= self.poll_links(cx);
            is_busy |= self.carry_out();
            is_busy |= self.write(cx);
            self.account();
            if self.is_broken || (self.ended.is_some() && self.out.pieces.is_empty()) {
                return Poll::Ready(Turn::Over);
            }
            if !is_busy {
                let due = self.due();
                let is_nearer = due.is_some_and(|due| self.armed.is_none_or(|armed| due < armed));
                return if is_nearer { Poll::Ready(Turn::Rearm) } else { Poll::Pending };
            }
        }
    }

    /// Reads the producer if the machine wants it; true if something came.
    fn poll_producer(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_eof || !self.hop.wants_bytes() || self.out.bytes >= ANSWER_BYTES_MAX {
            return false;
        }
        // Room is made only when something is there: an idle producer holds none.
        if self.stream.poll_read_ready(cx).is_pending() {
            return false;
        }
        let Poll::Ready(read) = read(&mut self.stream, self.hop.read_buffer(), cx) else { return false };
        match read {
            Ok(0) => {
                self.is_eof = true;
                self.hop.on_eof(clock::now());
            }
            Ok(_) => self.hop.on_bytes(clock::now()),
            Err(error) => {
                tracing::debug!(remote = self.remote, %error, "the producer's connection broke");
                self.is_broken = true;
            }
        }
        true
    }

    /// Connects to brokers and reads them; true if something came.
    fn poll_links(&mut self, cx: &mut Context<'_>) -> bool {
        let mut is_busy = false;
        let mut gone = Vec::new();
        for (node, link) in &mut self.links {
            let result: io::Result<()> = match link {
                Link::Connecting(connecting) => match connecting.as_mut().poll(cx) {
                    Poll::Pending => continue,
                    Poll::Ready(Ok(stream)) => {
                        let counted = Counted::new(&self.shared.figures, Open::Upstream);
                        *link = Link::Open { stream, out: Outbox::default(), _counted: counted };
                        self.hop.on_connected(*node, clock::now());
                        Ok(())
                    }
                    Poll::Ready(Err(error)) => Err(error),
                },
                Link::Open { stream, .. } => {
                    if stream.poll_read_ready(cx).is_pending() {
                        continue;
                    }
                    let Some(buffer) = self.hop.node_buffer(*node) else { continue };
                    match read(stream, buffer, cx) {
                        Poll::Pending => continue,
                        Poll::Ready(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
                        Poll::Ready(Ok(_)) => {
                            self.hop.on_node_bytes(*node, clock::now());
                            Ok(())
                        }
                        Poll::Ready(Err(error)) => Err(error),
                    }
                }
            };
            is_busy = true;
            if let Err(error) = result {
                gone.push((*node, error));
            }
        }
        for (node, error) in gone {
            self.lose(node, &error);
        }
        is_busy
    }

    /// The connection to a broker is gone.
    fn lose(&mut self, node: NodeId, error: &io::Error) {
        let name = self.shared.book.name(node);
        tracing::debug!(remote = self.remote, broker = name.as_deref(), %error, "a broker's connection ended");
        self.links.remove(&node);
        self.hop.on_node_closed(node, clock::now());
    }

    /// Does what the machine orders; true if there was something.
    fn carry_out(&mut self) -> bool {
        let mut is_busy = false;
        while let Some(order) = self.hop.poll_output() {
            is_busy = true;
            match order {
                Order::Answer(bytes) => self.out.push(bytes),
                Order::Write(node, bytes) => {
                    if let Some(Link::Open { out, .. }) = self.links.get_mut(&node) {
                        out.push(bytes);
                    }
                }
                Order::Name(base) => self.name(&base),
                Order::Place(topic) => self.join(&topic),
                Order::Forget(topic) => self.leave(&topic),
                Order::Connect(node) => {
                    let address = self.shared.book.address(node);
                    self.links.insert(node, Link::Connecting(Box::pin(connect(address))));
                }
                Order::Close(node) => _ = self.links.remove(&node),
                Order::End => {
                    self.ended = Some(clock::now());
                    self.links.clear();
                }
            }
        }
        is_busy
    }

    fn name(&mut self, base: &str) {
        let identity = self.shared.identities().take(base);
        let home = self.shared.book.home(identity.as_str());
        tracing::debug!(remote = self.remote, identity = identity.as_str(), "a producer is there");
        self.hop.on_named(identity.as_str(), home, clock::now());
        self.identity = Some(identity);
        self.show();
    }

    fn join(&mut self, topic: &TopicName) {
        let is_followed = self.shared.book.join(topic);
        self.topics.insert(topic.clone(), Joined { is_followed, version: None });
        if !is_followed {
            self.again.get_or_insert((clock::now() + AGAIN, topic.clone()));
        }
        self.look(topic);
    }

    /// Asks again for topics for which there was no place, or which lost it to another one; from where it stopped last.
    fn join_again(&mut self) {
        let Some((_, from)) = self.again.take_if(|(at, _)| *at <= clock::now()) else { return };
        let unfollowed = |(_, joined): &(&TopicName, &Joined)| !joined.is_followed;
        let order = self.topics.range(from.clone()..).chain(self.topics.range(..from));
        let mut again = order.filter(unfollowed).map(|(topic, _)| topic.clone());
        let now: Vec<TopicName> = again.by_ref().take(AGAIN_MAX).collect();
        let next = again.next();
        for topic in &now {
            if self.shared.book.join(topic) {
                if let Some(joined) = self.topics.get_mut(topic) {
                    joined.is_followed = true;
                }
                self.look(topic);
            }
        }
        let still = now.into_iter().find(|topic| self.topics.get(topic).is_some_and(|joined| !joined.is_followed));
        self.again = next.or(still).map(|topic| (clock::now() + AGAIN, topic));
    }

    fn leave(&mut self, topic: &TopicName) {
        if self.topics.remove(topic).is_some_and(|joined| joined.is_followed) {
            self.shared.book.leave(topic);
        }
    }

    /// Tells the machine where `topic` goes, if that is known and news.
    fn look(&mut self, topic: &TopicName) {
        let Some(joined) = self.topics.get_mut(topic) else { return };
        let identity = self.identity.as_ref().map_or("", Identity::as_str);
        let Some(look) = self.shared.book.look(topic, identity) else { return };
        if joined.version != Some(look.version) {
            joined.version = Some(look.version);
            self.hop.on_place(topic, look.candidates, clock::now());
        }
    }

    /// Some placement changed.
    fn on_changes(&mut self) {
        let is_old = |(topic, joined): &(&TopicName, &Joined)| joined.version != Some(self.shared.book.version(topic));
        let old: Vec<TopicName> = self.topics.iter().filter(is_old).map(|(topic, _)| topic.clone()).collect();
        for topic in old {
            let is_forgotten = !self.shared.book.follows(&topic);
            if let Some(joined) = self.topics.get_mut(&topic).filter(|joined| joined.is_followed && is_forgotten) {
                joined.is_followed = false;
                self.again.get_or_insert((clock::now() + AGAIN, topic.clone()));
            }
            self.look(&topic);
        }
    }

    /// Writes what sockets take; true if the machine may go on.
    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut gone = Vec::new();
        for (node, link) in &mut self.links {
            if let Link::Open { stream, out, .. } = link
                && let Err(error) = out.write(stream, cx)
            {
                gone.push((*node, error));
            }
        }
        let is_busy = !gone.is_empty();
        for (node, error) in gone {
            self.lose(node, &error);
        }
        let was_full = self.out.bytes >= ANSWER_BYTES_MAX;
        match self.out.write(&mut self.stream, cx) {
            Ok(has_written) => is_busy || (was_full && has_written),
            Err(error) => {
                tracing::debug!(remote = self.remote, %error, "the producer's connection broke");
                self.is_broken = true;
                true
            }
        }
    }

    /// Adds what the machine counted to the figures of all.
    fn account(&mut self) {
        let counts = self.hop.counts();
        if counts != self.counted {
            self.shared.figures.add(self.counted, counts);
            self.counted = counts;
        }
        if self.shown != self.hop.place_changes() {
            self.show();
        }
    }

    fn show(&mut self) {
        let Some(identity) = &self.identity else { return };
        self.shown = self.hop.place_changes();
        let row = Row {
            identity: identity.as_str().to_owned(),
            remote: self.remote.clone(),
            places: self.hop.places().map(|(topic, node)| (topic.clone(), node)).collect(),
        };
        self.shared.rows().insert(self.number, row);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for (topic, joined) in &self.topics {
            if joined.is_followed {
                self.shared.book.leave(topic);
            }
        }
        if let Some(identity) = &self.identity {
            self.shared.identities().release(identity);
        }
        self.shared.rows().remove(&self.number);
    }
}

/// Reads once, behind what the buffer holds.
fn read(stream: &mut TcpStream, buffer: &mut BytesMut, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    // It keeps nothing between two polls: a read that finds nothing has only asked to be woken.
    pin!(stream.read_buf(buffer)).poll(cx)
}

async fn connect(address: Option<Arc<str>>) -> io::Result<TcpStream> {
    let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
    let stream = timeout(CONNECT, TcpStream::connect(&*address)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_counts_what_a_socket_took() {
        let mut out = Outbox::default();
        for piece in ["abc", "de", "fghi"] {
            out.push(Bytes::from_static(piece.as_bytes()));
        }
        out.advance(4);
        assert_eq!((out.bytes, out.pieces.len(), &out.pieces[0][..]), (5, 2, &b"e"[..]));
        out.advance(5);
        assert_eq!((out.bytes, out.pieces.len()), (0, 0));
    }
}
