//! A request's body, read to its end before an upstream is asked.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

use super::memory::InMemory;
use super::stored::Stored;
use crate::io::conn::account::Account;
use crate::io::conn::limiter::{Cause, Stage};
use crate::io::listen::settings::Settings;
use crate::io::listen::thread::Connection;
use crate::io::request::body::RequestBody;
use crate::io::request::error::BodyError;
use crate::io::spool::folder::PIECE;
use crate::io::spool::spooled::Spooled;

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
