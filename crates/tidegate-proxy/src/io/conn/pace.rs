//! Bodies and tunnels that go on when they may: at their tenant's `bandwidth`, and within its share of what is short.
//!
//! A piece that has come is kept until it may go on, and nothing is read meanwhile: the sender feels it through the
//! kernel's buffers. What waits for nothing passes with a look at two numbers.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tidegate_core::Instant;
use tokio::sync::Notify;

use super::account::Account;
use super::meter;
use super::timers::{Timer, Timers};
use super::waits::{self, Onward, Wait};
use crate::io::request::error::BodyError;
use crate::machine::bandwidth::{Bandwidth, Counts, Tuning};

/// Fineness of pacing: what the runtime's own timers have.
const TICK: Duration = Duration::from_millis(1);
/// When a body asks again for which there was no room among those that wait.
const LATER: Duration = Duration::from_millis(20);

thread_local! {
    static PACES: RefCell<Option<Rc<Paces>>> = const { RefCell::new(None) };
}

/// The `bandwidth` of a tenant, as all threads share it. It is of the whole proxy, so threads of different cores meet at
/// this lock; only pieces of bodies of tenants that have such a number do, and each holds it for some ten nanoseconds.
#[derive(Debug)]
pub(crate) struct SharedBandwidth(Mutex<Bandwidth>);

impl SharedBandwidth {
    /// So many bytes per second from now on.
    pub(crate) fn new(bytes_per_s: u64, now: Instant) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Bandwidth::new(bytes_per_s, Tuning::default(), now))))
    }

    /// Another number, or none.
    pub(crate) fn set_rate(&self, bytes_per_s: Option<u64>, now: Instant) {
        self.with(|bandwidth| bandwidth.set_rate(bytes_per_s, now));
    }

    /// What was counted.
    pub(crate) fn counts(&self) -> Counts {
        self.with(|bandwidth| bandwidth.counts())
    }

    /// A panic under the lock is a broken invariant of the machine, whose numbers are still the best there are.
    fn with<R>(&self, ask: impl FnOnce(&mut Bandwidth) -> R) -> R {
        ask(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The timers of a thread's bodies that wait.
#[derive(Debug)]
struct Paces {
    timers: Rc<Timers>,
    /// When the driver looks next.
    armed: Cell<Instant>,
    sooner: Notify,
}

impl Paces {
    fn timer(&self, at: Instant) -> Timer {
        let timer = self.timers.timer();
        timer.set(at);
        if at < self.armed.get() {
            self.sooner.notify_one();
        }
        timer
    }
}

/// Bodies of this thread can wait from now on.
pub(crate) fn begin() {
    let timers = Timers::of_tick(TICK, meter::now());
    PACES.set(Some(Rc::new(Paces { timers, armed: Cell::new(Instant::MAX), sooner: Notify::new() })));
}

/// Wakes those whose time has come. Never ends; nothing to do on a thread without bodies.
pub(crate) async fn drive() {
    let Some(paces) = PACES.with_borrow(Clone::clone) else { return };
    loop {
        let next = paces.timers.next_timeout();
        paces.armed.set(next.unwrap_or(Instant::MAX));
        match next {
            Some(next) => tokio::select! {
                () = tokio::time::sleep(next - meter::now()) => {}
                () = paces.sooner.notified() => {}
            },
            None => paces.sooner.notified().await,
        }
        meter::stamp();
        paces.timers.turn(meter::now());
    }
}

fn timer(at: Instant) -> Timer {
    PACES.with_borrow(|paces| paces.as_ref().expect("threads that serve begin with it").timer(at))
}

/// The pace of one body, or of one direction of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    bandwidth: Option<Arc<SharedBandwidth>>,
    waiting: Option<Box<Waiting>>,
}

/// A piece that waits.
#[derive(Debug)]
struct Waiting {
    /// Empty of a tunnel, which has it itself.
    piece: Bytes,
    /// Until its tokens are there, or until it asks again.
    timer: Option<Timer>,
    /// For the next part of its tenant's share.
    part: Option<Wait>,
}

impl Pace {
    /// At most at `bandwidth`, if there is one, and within the share of whoever pays.
    pub(crate) const fn new(bandwidth: Option<Arc<SharedBandwidth>>) -> Self {
        Self { bandwidth, waiting: None }
    }

    /// Whether a piece has come that may not go on yet.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether nothing but its tenant's share holds it up, and nothing does now.
    pub(crate) const fn is_free(&self) -> bool {
        self.bandwidth.is_none() && self.waiting.is_none()
    }

    /// So many bytes have come, for which `account` pays: whether they may go on. If not, see [`poll`](Self::poll).
    #[inline]
    pub(crate) fn pass(&mut self, bytes: usize, account: &Account) -> bool {
        if self.bandwidth.is_none() && !account.needs_part() {
            return true;
        }
        self.hold(bytes, account)
    }

    #[cold]
    fn hold(&mut self, bytes: usize, account: &Account) -> bool {
        let now = meter::now();
        let due = self
            .bandwidth
            .as_ref()
            .map_or(now, |bandwidth| bandwidth.with(|bandwidth| bandwidth.pass(bytes as u64, now)));
        if due <= now && !account.needs_part() {
            return true;
        }
        let timer = (due > now).then(|| timer(due));
        self.waiting = Some(Box::new(Waiting { piece: Bytes::new(), timer, part: None }));
        false
    }

    /// Ready when what has come may go on, with the piece if it is here.
    pub(crate) fn poll(&mut self, account: &Account, context: &mut Context<'_>) -> Poll<Bytes> {
        let Some(waiting) = self.waiting.as_mut() else { return Poll::Ready(Bytes::new()) };
        ready!(waiting.poll(account, context));
        let piece = std::mem::take(&mut waiting.piece);
        self.waiting = None;
        Poll::Ready(piece)
    }

    /// The next frame of a body, when it may go on; `read` gives it when it comes.
    #[inline]
    pub(crate) fn poll_frame(
        &mut self,
        account: &Account,
        context: &mut Context<'_>,
        read: impl FnOnce(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_waiting() {
            return self.poll(account, context).map(|piece| Some(Ok(Frame::data(piece))));
        }
        let frame = ready!(read(context));
        let Some(Ok(Some(data))) = frame.as_ref().map(|frame| frame.as_ref().map(Frame::data_ref)) else {
            return Poll::Ready(frame);
        };
        if data.is_empty() || self.pass(data.len(), account) {
            return Poll::Ready(frame);
        }
        if let (Some(waiting), Some(Ok(frame))) = (self.waiting.as_mut(), frame) {
            waiting.piece = frame.into_data().unwrap_or_default();
        }
        self.poll(account, context).map(|piece| Some(Ok(Frame::data(piece))))
    }
}

impl Waiting {
    fn poll(&mut self, account: &Account, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(timer) = &self.timer {
                ready!(timer.poll(context));
                self.timer = None;
            }
            // Another body on the same account may have got it meanwhile.
            if !account.needs_part() {
                return Poll::Ready(());
            }
            let told = if let Some(part) = self.part.as_mut() {
                let told = ready!(Pin::new(&mut *part).poll(context));
                let costs = *part.costs();
                self.part = None;
                told.map(|_| costs).ok()
            } else {
                let costs = account.next_part();
                match waits::go_on(account.tenant(), &costs) {
                    Onward::Go => Some(costs),
                    Onward::Wait(wait) => {
                        self.part = Some(wait);
                        continue;
                    }
                    Onward::Later => None,
                }
            };
            match told {
                Some(costs) => {
                    account.begin_part(&costs);
                    return Poll::Ready(());
                }
                None => self.timer = Some(timer(meter::now() + LATER)),
            }
        }
    }
}

/// Wants to know when a client has sent all of a body.
pub(crate) trait Sent {
    /// The end has come.
    fn sent(&self);
}

impl std::fmt::Debug for dyn Sent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Sent")
    }
}

/// A body with its pace. `B` is read when the piece before has gone on.
#[derive(Debug)]
pub(crate) struct Paced<B> {
    body: B,
    pace: Pace,
    account: Rc<Account>,
    sent: Option<Rc<dyn Sent>>,
}

impl<B> Paced<B> {
    /// `body`, for which `account` pays.
    pub(crate) const fn new(body: B, pace: Pace, account: Rc<Account>) -> Self {
        Self { body, pace, account, sent: None }
    }

    /// `sent` is told of its end.
    pub(crate) fn tell(&mut self, sent: Rc<dyn Sent>) {
        self.sent = Some(sent);
    }
}

impl<B: http_body::Body<Data = Bytes, Error = BodyError> + Unpin> http_body::Body for Paced<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(
            this.pace.poll_frame(&this.account, context, |context| Pin::new(&mut this.body).poll_frame(context))
        );
        // Who knows from the last piece that it is that one does not ask for another.
        if (frame.is_none() || this.is_end_stream())
            && let Some(sent) = this.sent.take()
        {
            sent.sent();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        !self.pace.is_waiting() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
