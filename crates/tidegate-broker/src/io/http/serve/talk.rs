//! What a connection waits for: its client, or us.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use axum::body::{Body as AxumBody, Bytes};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Bounds;

/// A connection's state, shared by its streams and bodies, its timer and the table of places.
#[derive(Debug)]
pub(super) struct Talk {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    /// When the phase began.
    since: Instant,
    /// When the client began the request under way, or the wait for one began.
    request_since: Instant,
    /// When the client last took nothing of an answer, if it still does not.
    stalled_since: Option<Instant>,
    is_ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The client owes nothing: it may send a request.
    Idle,
    /// It has begun one.
    Head,
    /// It owes bytes of the body that we want.
    Body,
    /// It owes nothing: we work.
    Work,
}

impl Talk {
    pub(super) fn new(now: Instant) -> Self {
        let state = State { phase: Phase::Idle, since: now, request_since: now, stalled_since: None, is_ended: false };
        Self { state: Mutex::new(state), ended: Notify::new() }
    }

    /// Since when we have waited for the client; `None` while it waits for us. A client that sends its request bit by
    /// bit has been waited for since it began.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        let state = self.lock();
        match state.phase {
            Phase::Work => state.stalled_since,
            _ => Some(state.request_since),
        }
    }

    /// When the client's time is up.
    fn deadline(&self, bounds: &Bounds) -> Option<Instant> {
        let state = self.lock();
        let phase = match state.phase {
            Phase::Idle => Some(state.since + bounds.idle),
            Phase::Head => Some(state.since + bounds.head),
            Phase::Body => Some((state.since + bounds.body_gap).min(state.request_since + bounds.body)),
            Phase::Work => None,
        };
        let stalled = state.stalled_since.map(|since| since + bounds.write_stall);
        [phase, stalled].into_iter().flatten().min()
    }

    /// Its place is wanted for another connection.
    pub(super) fn end(&self) {
        self.lock().is_ended = true;
        self.ended.notify_one();
    }

    /// Ready once its place is wanted.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    #[cfg(test)]
    pub(super) fn is_ended(&self) -> bool {
        self.lock().is_ended
    }

    /// Bytes came.
    fn hear(&self, now: Instant) {
        let mut state = self.lock();
        if state.phase == Phase::Idle {
            (state.phase, state.since, state.request_since) = (Phase::Head, now, now);
        }
    }

    /// A head is whole.
    pub(super) fn begin_request(&self, now: Instant) {
        let mut state = self.lock();
        if state.phase != Phase::Head {
            state.request_since = now; // It came with the bytes of the last one.
        }
        (state.phase, state.since) = (Phase::Work, now);
    }

    /// The handler wants more of the body than there is.
    pub(super) fn await_body(&self, now: Instant) {
        let mut state = self.lock();
        if state.phase != Phase::Body {
            (state.phase, state.since) = (Phase::Body, now);
        }
    }

    /// It has got some.
    fn take_body(&self, now: Instant) {
        let mut state = self.lock();
        (state.phase, state.since) = (Phase::Work, now);
    }

    /// All of an answer is handed over.
    fn end_answer(&self, now: Instant) {
        let mut state = self.lock();
        (state.phase, state.since, state.request_since) = (Phase::Idle, now, now);
    }

    /// Whether the client's socket takes bytes.
    fn write(&self, stalled: bool, now: Instant) {
        let mut state = self.lock();
        state.stalled_since = if stalled { state.stalled_since.or(Some(now)) } else { None };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Runs `connection`, whose streams and bodies tell `talk`, as long as its client keeps to `bounds`; `None` if it does
/// not.
pub(super) async fn within<F: Future + Unpin>(mut connection: F, talk: &Talk, bounds: &Bounds) -> Option<F::Output> {
    let mut timer = std::pin::pin!(sleep(bounds.head));
    let mut armed: Option<Instant> = None;
    std::future::poll_fn(|context| {
        if let Poll::Ready(ended) = Pin::new(&mut connection).poll(context) {
            return Poll::Ready(Some(ended));
        }
        loop {
            // What moves the deadline happened while the connection was polled, or at its next poll.
            let Some(until) = talk.deadline(bounds) else { return Poll::Pending };
            let now = Instant::now();
            if until <= now {
                return Poll::Ready(None);
            }
            if armed.is_none_or(|armed| until < armed) {
                timer.set(sleep(until - now));
                armed = Some(until);
            }
            ready!(timer.as_mut().poll(context));
            armed = None;
        }
    })
    .await
}

/// A client's stream.
pub(super) struct Heard<S> {
    pub(super) stream: S,
    pub(super) talk: Arc<Talk>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        if into.filled().len() > before {
            self.talk.hear(Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.talk.write(written.is_pending(), Instant::now());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.talk.write(written.is_pending(), Instant::now());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // A TLS stream has bytes of its own to write.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.talk.write(flushed.is_pending(), Instant::now());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A request's body.
pub(super) struct Asked {
    pub(super) body: Incoming,
    pub(super) talk: Arc<Talk>,
}

impl Body for Asked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match &frame {
            Poll::Pending => self.talk.await_body(Instant::now()),
            Poll::Ready(_) => self.talk.take_body(Instant::now()),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body. It is dropped when all of it is handed over.
pub(super) struct Answered {
    body: AxumBody,
    talk: Arc<Talk>,
}

impl Answered {
    pub(super) fn new(body: AxumBody, talk: Arc<Talk>) -> Self {
        // The handler may not have wanted the body that it was waiting for.
        talk.take_body(Instant::now());
        Self { body, talk }
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.talk.end_answer(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        connections: 2,
        idle: Duration::from_secs(100),
        head: Duration::from_secs(10),
        body_gap: Duration::from_secs(30),
        body: Duration::from_secs(50),
        write_stall: Duration::from_secs(20),
        handshake: Duration::from_secs(10),
        drain: Duration::from_secs(5),
        head_bytes: 64 << 10,
    };

    #[test]
    fn each_phase_has_its_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let talk = Talk::new(start);
        let seen = || {
            let seconds = |at: Instant| (at - start).as_secs();
            (talk.waits_since().map(seconds), talk.deadline(&BOUNDS).map(seconds))
        };
        assert_eq!(seen(), (Some(0), Some(100)), "nothing sent");
        talk.hear(at(5));
        talk.hear(at(9));
        assert_eq!(seen(), (Some(5), Some(15)), "a head's time begins with its first byte");
        talk.begin_request(at(10));
        assert_eq!(seen(), (None, None), "we work");
        talk.await_body(at(11));
        talk.await_body(at(12));
        assert_eq!(seen(), (Some(5), Some(41)));
        talk.take_body(at(40));
        talk.await_body(at(41));
        assert_eq!(seen(), (Some(5), Some(55)), "all of a body has a time too");
        talk.take_body(at(50));
        talk.write(true, at(51));
        talk.write(true, at(60));
        assert_eq!(seen(), (Some(51), Some(71)), "the client does not read");
        talk.write(false, at(61));
        talk.end_answer(at(61));
        assert_eq!(seen(), (Some(61), Some(161)));
        // The next request had come already.
        talk.begin_request(at(62));
        talk.await_body(at(62));
        assert_eq!(seen(), (Some(62), Some(92)));
    }

    #[tokio::test]
    async fn a_client_gets_the_time_of_its_phase_and_no_more() {
        let bounds = Bounds { idle: Duration::from_millis(1), ..BOUNDS };
        let talk = Talk::new(Instant::now());
        assert!(within(std::future::pending::<()>(), &talk, &bounds).await.is_none());
        assert!(talk.waits_since().is_some_and(|since| since.elapsed() >= bounds.idle));
        assert_eq!(within(std::future::ready(7), &talk, &bounds).await, Some(7));
    }
}
