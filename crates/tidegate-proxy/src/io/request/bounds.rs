//! Bodies within their bounds: of length, and of time.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::io::conn::account::Bill;
use crate::io::conn::meter;
use crate::io::conn::timers::Timer;
use crate::io::request::error::BodyError;
use crate::machine::patience::Patience;

/// A stream's body of at most so many bytes.
#[derive(Debug)]
pub(crate) struct Limited<B> {
    body: B,
    bill: Bill,
    left: u64,
    limit: u64,
    /// If somebody wants to know how much came.
    received: Option<Received>,
}

impl<B> Limited<B> {
    /// `body`, of which more than `limit` bytes are an error, and which is put on `bill`.
    pub(crate) const fn new(body: B, limit: u64, bill: Bill, received: Option<Received>) -> Self {
        Self { body, bill, left: limit, limit, received }
    }
}

impl<B> Body for Limited<B>
where
    B: Body<Data = Bytes> + Unpin,
    BodyError: From<B::Error>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else { return Poll::Ready(None) };
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            this.bill.add_read(data.len() as u64);
            let Some(left) = this.left.checked_sub(data.len() as u64) else {
                return Poll::Ready(Some(Err(BodyError::TooLong { limit: this.limit })));
            };
            this.left = left;
            if let Some(received) = &this.received {
                received.set(received.get() + data.len() as u64);
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body whose pieces come in time.
#[derive(Debug)]
pub(crate) struct Timed<B> {
    body: B,
    timer: Timer,
    patience: Patience,
}

impl<B> Timed<B> {
    /// `body`, whose pieces are waited for with `patience`.
    pub(crate) const fn new(body: B, timer: Timer, patience: Patience) -> Self {
        Self { body, timer, patience }
    }

    /// `body`, of which `idle` may pass between two pieces, however small.
    pub(crate) const fn every(idle: Duration, body: B, timer: Timer) -> Self {
        Self::new(body, timer, Patience::new(idle, None))
    }
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Body for Timed<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.timer.clear();
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            this.patience.moved(data.map_or(0, |data| data.len() as u64), meter::now());
            return Poll::Ready(frame);
        }
        if !this.timer.is_set() {
            this.timer.set(this.patience.wait(meter::now()));
        }
        this.timer.poll(context).map(|()| Some(Err(BodyError::Stalled)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How much of a body came, counted by whoever reads it.
pub(crate) type Received = Rc<Cell<u64>>;
