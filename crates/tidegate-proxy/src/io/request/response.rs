//! A response's body, as the client gets it.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::io::http1::client::AnswerBody;
use crate::io::request::bounds::Timed;
use crate::io::request::error::BodyError;
use crate::io::spool::Spooling;
use crate::io::upstream::{Leased, Opened};

/// A response's body, as the client gets it.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// None.
    Empty,
    /// All of it.
    Full(Bytes),
    /// From an upstream, as it comes.
    Upstream(Box<AnswerBody>),
    /// From an upstream that speaks HTTP/2, as it comes.
    Upstream2(Box<Timed<Leased<crate::io::http1::client::Link>>>),
    /// Waiting for a slow client, in memory and on disk.
    Spooling(Rc<RefCell<Spooling>>),
    /// No body: an upstream that speaks HTTP/2 opened a tunnel.
    Tunnel(Box<Opened<crate::io::http1::client::Link>>),
}

impl ResponseBody {
    /// Takes what the upstream gives while the client takes nothing.
    pub(crate) fn poll_ahead(&mut self, context: &mut Context<'_>) {
        if let Self::Spooling(body) = self {
            body.borrow_mut().poll_ahead(context);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Empty | Self::Tunnel(_) => Poll::Ready(None),
            full @ Self::Full(_) => Poll::Ready(match std::mem::replace(full, Self::Empty) {
                Self::Full(bytes) if !bytes.is_empty() => Some(Ok(Frame::data(bytes))),
                _ => None,
            }),
            Self::Upstream(body) => body.poll_piece(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
            Self::Upstream2(body) => Pin::new(body).poll_frame(context),
            Self::Spooling(body) => body.borrow_mut().poll_piece(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty | Self::Tunnel(_) => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Upstream(body) => body.is_done(),
            Self::Upstream2(body) => body.is_end_stream(),
            Self::Spooling(body) => body.borrow().is_done(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty | Self::Tunnel(_) => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Upstream(body) => body.left().map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Upstream2(body) => body.size_hint(),
            Self::Spooling(body) => body.borrow().left().map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
