//! Answers and tunnels that hold their server's slot until they end.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;

use crate::io::request::error::BodyError;
use crate::io::upstream::broken::Broken;
use crate::io::upstream::{Keep, Lease};

/// A tunnel that a server opened, and its slot, held as long.
#[derive(Debug)]
pub(crate) struct Opened<C: Keep> {
    pub(crate) upgraded: Upgraded,
    pub(crate) lease: Lease<C>,
}

/// The body of an answer that holds a slot of its server until it ends or is dropped.
#[derive(Debug)]
pub(crate) struct Leased<C: Keep> {
    body: Incoming,
    lease: Option<Lease<C>>,
    /// Of the request's body, which may still be sent.
    broken: Broken,
}

impl<C: Keep> Leased<C> {
    pub(super) fn new(body: Incoming, lease: Lease<C>, broken: Broken) -> Self {
        let lease = if body.is_end_stream() { None } else { Some(lease) };
        Self { body, lease, broken }
    }
}

impl<C: Keep> Body for Leased<C>
where
    Self: Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(frame) = &frame {
            match (frame, &self.lease) {
                (Some(Ok(_)), _) => {}
                (Some(Err(_)), Some(lease)) => {
                    if self.broken.take().is_none() {
                        lease.fail();
                    }
                    self.lease = None;
                }
                _ => self.lease = None,
            }
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(BodyError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
