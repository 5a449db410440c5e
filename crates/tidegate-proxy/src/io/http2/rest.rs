//! What crosses a refusal on its way.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http_body::Body as _;
use hyper::body::Incoming;
use tokio::task::spawn_local;

use crate::io::account::Bill;
use crate::io::meter::{self, Metered};
use crate::io::timers::Timers;

/// How long the rest of a refused request is waited for: its client learns that it is refused within a round trip.
const WAIT: Duration = Duration::from_secs(1);
/// Bytes of it that are taken: as many as a client may send, by default, before any are.
const TAKEN_MAX: u64 = 64 * 1024;

/// Takes the rest of a request that was refused before it was whole, and puts it on `bill`. Without that its stream is
/// reset, and frames that cross the reset are errors: after some of these the connection ends, with all its streams.
pub(super) fn take(mut body: Incoming, bill: &Bill, timers: &Rc<Timers>) {
    if body.is_end_stream() {
        return;
    }
    let (bill, timer) = (bill.clone(), timers.timer());
    timer.set(meter::now() + WAIT);
    let account = Rc::clone(bill.stream());
    let mut left = TAKEN_MAX;
    let rest = poll_fn(move |context| {
        while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(context) {
            let Some(Ok(frame)) = frame else { return Poll::Ready(()) };
            let taken = frame.data_ref().map_or(0, |data| data.len() as u64);
            bill.add_read(taken);
            let Some(more) = left.checked_sub(taken) else { return Poll::Ready(()) };
            left = more;
        }
        timer.poll(context)
    });
    spawn_local(Metered::new(account, rest));
}
