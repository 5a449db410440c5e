//! A request's body, as an upstream reads it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::io::conn::pace::{Paced, Sent};
use crate::io::http1::request::ClientBody;
use crate::io::http2::rest::Lent;
use crate::io::request::bounds::{Limited, Timed};
use crate::io::request::error::BodyError;
use crate::io::spool::{InMemory, Spooled};

/// A request's body up to this length comes with its head, or soon behind it.
const SHORT: u64 = 64 * 1024;

/// A request's body, as an upstream reads it. What is rare and large is in a box: a request's task has room for some of
/// these.
#[derive(Debug)]
pub(crate) enum RequestBody {
    /// None.
    Empty,
    /// All of it, and what it holds.
    Full(Bytes, Rc<InMemory>),
    /// Read from an HTTP/1 client as it comes.
    Http1(ClientBody),
    /// Read from an HTTP/2 client as it comes.
    Http2(Box<Timed<Limited<Lent>>>),
    /// Waiting on disk.
    Spooled(Box<Spooled>),
    /// As it comes, but not faster than it may.
    Paced(Box<Paced<RequestBody>>),
}

impl RequestBody {
    /// A second copy for a second try; `None` once bytes were taken that cannot be had again.
    pub(crate) fn again(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Full(bytes, held) => Some(Self::Full(bytes.clone(), Rc::clone(held))),
            Self::Spooled(spooled) => Some(Self::Spooled(Box::new(spooled.again()))),
            Self::Http1(_) | Self::Http2(_) | Self::Paced(_) => None,
        }
    }

    /// If its client may take long to send it, since it is read as it comes and not short: what `sent` gives is told when
    /// the end has come.
    pub(crate) fn count_when_sent(&mut self, sent: impl FnOnce() -> Rc<dyn Sent>) {
        let is_short = |length| length <= SHORT;
        // What is not short has a pace.
        if let Self::Paced(body) = self
            && !body.is_end_stream()
            && !body.size_hint().exact().is_some_and(is_short)
        {
            body.tell(sent());
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            // What it holds is held until it is sent.
            Self::Full(bytes, _) => Poll::Ready(whole(std::mem::take(bytes))),
            Self::Http1(body) => body.poll_piece(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
            Self::Http2(body) => Pin::new(body).poll_frame(context),
            Self::Spooled(body) => body.poll_piece(context),
            Self::Paced(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes, _) => bytes.is_empty(),
            Self::Http1(body) => body.is_done(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Spooled(body) => body.is_done(),
            Self::Paced(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes, _) => SizeHint::with_exact(bytes.len() as u64),
            Self::Http1(body) => body.left().map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Http2(body) => body.size_hint(),
            Self::Spooled(body) => SizeHint::with_exact(body.left()),
            Self::Paced(body) => body.size_hint(),
        }
    }
}

fn whole(bytes: Bytes) -> Option<Result<Frame<Bytes>, BodyError>> {
    (!bytes.is_empty()).then(|| Ok(Frame::data(bytes)))
}
