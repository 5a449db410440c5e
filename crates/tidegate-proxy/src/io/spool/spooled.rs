//! A body on disk, as it is read back.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::task::JoinHandle;

use crate::io::conn::account::Account;
use crate::io::request::error::BodyError;
use crate::io::spool::stored::Stored;

/// A body on disk, read from its beginning. Its room is given back with it: a second try reads it again.
#[derive(Debug)]
pub(crate) struct Spooled {
    pub(super) file: Arc<Stored>,
    pub(super) at: u64,
    pub(super) reading: Option<JoinHandle<io::Result<Bytes>>>,
    /// Behind the last byte.
    pub(super) trailers: Option<HeaderMap>,
    pub(super) account: Rc<Account>,
}

impl Spooled {
    /// The same body from its beginning.
    pub(crate) fn again(&self) -> Self {
        let (file, trailers) = (Arc::clone(&self.file), self.trailers.clone());
        Self { file, at: 0, reading: None, trailers, account: Rc::clone(&self.account) }
    }

    /// True if nothing more comes.
    pub(crate) fn is_done(&self) -> bool {
        self.left() == 0 && self.trailers.is_none()
    }

    /// Bytes that are still to come.
    pub(crate) fn left(&self) -> u64 {
        self.file.len() - self.at
    }

    /// The next piece, and behind the last one the trailers.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.left() == 0 {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let (file, at) = (&self.file, self.at);
        let reading = self.reading.get_or_insert_with(|| {
            let file = Arc::clone(file);
            let threads = file.spool().threads.clone();
            threads.spawn_blocking(move || file.read(at))
        });
        let read = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        let Some(piece) = read.ok().and_then(Result::ok) else { return Poll::Ready(Some(Err(BodyError::Spool))) };
        self.at += piece.len() as u64;
        self.account.add_disk(piece.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}
