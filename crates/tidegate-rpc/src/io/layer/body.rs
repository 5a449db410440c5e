//! The bodies of answers: those of the handlers, and the empty ones of refusals.

use core::pin::Pin;
use core::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::answer::forget_others;
use super::headers::{GRANT, write_grant};
use super::running::Running;
use crate::machine::{Done, Server};

pin_project! {
    /// The body of an answer: the handler's, or nothing if the call was refused.
    pub struct CallBody<B, S: Server> {
        #[pin]
        inner: Option<B>,
        // The call, if it runs until its body ends.
        running: Option<Running<S>>,
    }
}

impl<B, S: Server> CallBody<B, S> {
    pub(super) fn empty() -> Self {
        Self { inner: None, running: None }
    }

    pub(super) fn of(inner: B, running: Option<Running<S>>) -> Self {
        Self { inner: Some(inner), running }
    }
}

impl<B: Body, S: Server> Body for CallBody<B, S> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        let mut polled = inner.poll_frame(cx);
        match &mut polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    forget_others(trailers);
                    if let Some(grant) = this.running.take().and_then(|running| running.end(Done::Served)) {
                        trailers.insert(GRANT, write_grant(&grant));
                    }
                }
            }
            Poll::Ready(None | Some(Err(_))) => {
                if let Some(running) = this.running.take() {
                    running.end(Done::Served);
                }
            }
        }
        // Whoever knows the length stops reading after the last byte and would look like a caller that went away.
        if let Some(running) = this.running.take_if(|_| this.inner.as_ref().as_pin_ref().is_some_and(is_over)) {
            running.end(Done::Served);
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

fn is_over<B: Body>(body: Pin<&B>) -> bool {
    body.is_end_stream()
}
