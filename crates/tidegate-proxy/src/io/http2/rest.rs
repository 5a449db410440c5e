//! What of a request comes behind its answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::io::conn::account::Bill;
use crate::io::conn::meter::{self, Metered};
use crate::io::conn::timers::Timers;

/// How long the rest of a request is waited for: its client learns within a round trip that it has its answer.
const WAIT: Duration = Duration::from_secs(1);
/// Bytes of it that are taken: as many as a client may send, by default, before any are.
const TAKEN_MAX: u64 = 64 * 1024;

/// A request's body, which goes back when whoever reads it has no more use for it.
#[derive(Debug)]
pub(crate) struct Lent<B = Incoming> {
    body: Option<B>,
    home: Option<oneshot::Sender<B>>,
}

/// Where it goes back to; nothing if it is read to its end.
#[derive(Debug)]
pub(super) struct Home<B = Incoming>(oneshot::Receiver<B>);

/// Lends `body`.
pub(super) fn lend<B>(body: B) -> (Lent<B>, Home<B>) {
    let (home, back) = oneshot::channel();
    (Lent { body: Some(body), home: Some(home) }, Home(back))
}

impl<B: Body + Unpin> Body for Lent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Some(body) = self.body.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        // Behind an error nothing comes either.
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            self.home = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl<B> Drop for Lent<B> {
    fn drop(&mut self) {
        if let (Some(home), Some(body)) = (self.home.take(), self.body.take()) {
            // Nobody may want it back.
            let _ = home.send(body);
        }
    }
}

impl Home {
    /// The request is answered: takes its rest as [`take`] does, when it comes back.
    pub(super) fn take(mut self, bill: &Bill, timers: &Rc<Timers>) {
        match self.0.try_recv() {
            Ok(body) => take(body, bill, timers),
            Err(oneshot::error::TryRecvError::Closed) => {}
            Err(oneshot::error::TryRecvError::Empty) => {
                let (bill, timers) = (bill.clone(), Rc::clone(timers));
                let account = Rc::clone(bill.stream());
                spawn_local(Metered::new(account, async move {
                    if let Ok(body) = self.0.await {
                        rest(body, bill, &timers).await;
                    }
                }));
            }
        }
    }
}

/// Takes the rest of a request that was answered before it was whole, and puts it on `bill`. Without that its stream is
/// reset. Frames that cross the reset are errors: after some of these the connection ends, with all its streams. And there
/// are clients that forget the answer over the reset (curl 7.88).
pub(super) fn take(body: Incoming, bill: &Bill, timers: &Rc<Timers>) {
    if body.is_end_stream() {
        return;
    }
    let account = Rc::clone(bill.stream());
    spawn_local(Metered::new(account, rest(body, bill.clone(), timers)));
}

fn rest(mut body: Incoming, bill: Bill, timers: &Rc<Timers>) -> impl Future<Output = ()> + use<> {
    let timer = timers.timer();
    timer.set(meter::now() + WAIT);
    let mut left = TAKEN_MAX;
    poll_fn(move |context| {
        while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(context) {
            let Some(Ok(frame)) = frame else { return Poll::Ready(()) };
            let taken = frame.data_ref().map_or(0, |data| data.len() as u64);
            bill.add_read(taken);
            let Some(more) = left.checked_sub(taken) else { return Poll::Ready(()) };
            left = more;
        }
        timer.poll(context)
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[test]
    fn a_body_goes_back_unless_it_was_read_to_its_end() {
        let (lent, mut home) = lend(Full::new(Bytes::from_static(b"rest")));
        assert_eq!(home.0.try_recv().unwrap_err(), oneshot::error::TryRecvError::Empty);
        drop(lent);
        assert!(home.0.try_recv().is_ok_and(|body| !body.is_end_stream()));

        let (mut lent, mut home) = lend(Full::new(Bytes::from_static(b"all")));
        let frame = lent.frame();
        let mut frame = std::pin::pin!(frame);
        assert!(frame.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready());
        // Who asks whether the answer was all of it need not wait for the body to be dropped.
        assert_eq!(home.0.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    }
}
