//! A request's body, read to its end before an upstream is asked.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::task::JoinHandle;

use super::memory::InMemory;
use super::stored::Stored;
use crate::io::account::Account;
use crate::io::body::RequestBody;
use crate::io::limiter::{Cause, Stage};
use crate::io::request::error::BodyError;
use crate::io::settings::Settings;
use crate::io::spool::folder::PIECE;
use crate::io::thread::Connection;

/// A body on disk, read from its beginning. Its room is given back with it: a second try reads it again.
#[derive(Debug)]
pub(crate) struct Spooled {
    file: Arc<Stored>,
    at: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    /// Behind the last byte.
    trailers: Option<HeaderMap>,
    account: Rc<Account>,
}

/// Reads `body` to its end if it is large, and puts it on disk. Small ones, and all if there is no spool, go on as they
/// are.
pub(crate) async fn request(
    connection: &Connection,
    account: &Rc<Account>,
    settings: &Settings,
    body: RequestBody,
) -> Result<RequestBody, BodyError> {
    let stored = match &*connection.thread.spool.borrow() {
        Some(spool) if settings.config.spool.is_some() && !body.is_end_stream() => {
            let is_short = body.size_hint().exact().is_some_and(|length| length <= spool.above);
            (!is_short).then(|| Stored::new(spool, account))
        }
        _ => None,
    };
    let Some(stored) = stored else { return Ok(body) };
    let kept = Box::pin(keep(stored, account, body)).await;
    if let Err(BodyError::Full(_)) = kept {
        connection.thread.limiter.with(|limiter| limiter.refused_elsewhere(account.tenant(), Stage::Request));
    }
    kept
}

async fn keep(mut stored: Stored, account: &Rc<Account>, mut body: RequestBody) -> Result<RequestBody, BodyError> {
    let (above, limit) = (stored.spool().above, stored.most());
    let length = body.size_hint().exact();
    if length.is_some_and(|length| length > limit) {
        return Err(BodyError::TooLong { limit });
    }
    // One that is known to be long goes there piece by piece; another first waits for how long it becomes.
    let first = if length.is_some() { PIECE } else { usize::try_from(above).map_or(PIECE, |above| above.max(PIECE)) };
    let (mut buffer, mut trailers, mut memory) = (BytesMut::new(), None, InMemory::new(account));
    loop {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.transpose()?;
        let ended = frame.is_none();
        match frame.map(Frame::into_data) {
            Some(Ok(data)) => buffer.extend_from_slice(&data),
            Some(Err(other)) => trailers = other.into_trailers().ok(),
            None => {}
        }
        if ended && stored.len() == 0 && trailers.is_none() && buffer.len() as u64 <= above {
            memory.set(buffer.len());
            return Ok(RequestBody::Full(buffer.freeze(), Rc::new(memory)));
        }
        // Whose tenant has no more memory goes to the disk early.
        let fits = memory.try_set(buffer.len());
        let most = if stored.len() == 0 { first } else { PIECE };
        if (ended && !buffer.is_empty()) || buffer.len() >= most || !fits {
            if stored.len() + buffer.len() as u64 > limit {
                return Err(BodyError::TooLong { limit });
            }
            stored = append(account, stored, buffer.split().freeze()).await?;
            memory.set(0);
        }
        if ended {
            let (file, account) = (Arc::new(stored), Rc::clone(account));
            let spooled = Spooled { file, at: 0, reading: None, trailers, account };
            return Ok(RequestBody::Spooled(Box::new(spooled)));
        }
    }
}

async fn append(account: &Account, mut stored: Stored, bytes: Bytes) -> Result<Stored, BodyError> {
    let len = bytes.len() as u64;
    stored.reserve(len).map_err(BodyError::Full)?;
    account.add_disk(len);
    match stored.append(bytes).await {
        Ok(Ok(stored)) => Ok(stored),
        // The same as no room, whatever there should be.
        Ok(Err(_unwritten)) => Err(BodyError::Full(Cause::SystemFull)),
        Err(_gone) => Err(BodyError::Spool),
    }
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
