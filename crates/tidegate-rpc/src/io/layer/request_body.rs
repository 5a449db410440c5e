//! The bodies of requests as handlers see them, so that a wait for the client is not taken for work.

use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll};
use std::sync::Arc;

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a request: the same bytes, and a note of whether its reader waits for more of them.
    pub struct RequestBody<B> {
        #[pin]
        inner: B,
        hunger: Option<Hunger>,
    }
}

/// Whether the one who reads a body waits for bytes that the client has not sent.
#[derive(Clone, Debug)]
pub(super) struct Hunger(Arc<AtomicBool>);

impl Hunger {
    pub(super) fn is_felt(&self) -> bool {
        // Relaxed, here and below: the flag stands alone, no other memory is read because of it.
        self.0.load(Ordering::Relaxed)
    }
}

impl<B: Body> RequestBody<B> {
    /// Nobody waits for a body that is over: then there is nothing to note.
    pub(super) fn of(inner: B) -> (Self, Option<Hunger>) {
        let hunger = (!inner.is_end_stream()).then(|| Hunger(Arc::default()));
        (Self { inner, hunger: hunger.clone() }, hunger)
    }
}

impl<B> RequestBody<B> {
    /// The body as it came. Whoever reads it waits unnoticed: his wait counts as service.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

impl<B: Body> Body for RequestBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let polled = this.inner.poll_frame(cx);
        if let Some(Hunger(felt)) = this.hunger {
            felt.store(polled.is_pending(), Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
