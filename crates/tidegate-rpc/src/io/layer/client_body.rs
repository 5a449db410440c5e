//! The bodies of answers at the client: the server's, whose trailers may carry a grant, and the empty ones of refusals.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::caller::Caller;
use super::headers::read_grant;
use crate::machine::Client;

pin_project! {
    /// The body of an answer: the server's, or nothing if the call was refused here.
    pub struct AnswerBody<B, C> {
        #[pin]
        inner: Option<B>,
        // Who wants to know what the trailers grant.
        caller: Option<Arc<Caller<C>>>,
    }
}

impl<B, C> AnswerBody<B, C> {
    pub(super) fn empty() -> Self {
        Self { inner: None, caller: None }
    }

    pub(super) fn of(inner: B, caller: Option<Arc<Caller<C>>>) -> Self {
        Self { inner: Some(inner), caller }
    }
}

impl<B: Body, C: Client> Body for AnswerBody<B, C> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else { return Poll::Ready(None) };
        let polled = inner.poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(trailers) = frame.trailers_ref()
            && let Some(header) = read_grant(trailers)
            && let Some(caller) = this.caller.take()
        {
            caller.granted(&header);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}
