//! Bodies of requests, read within bounds.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::Refusal;

/// What the bodies of all requests together may hold at a time, in bytes: a dozen of nsqd's largest, which is more
/// than the shards leave waiting when they keep up.
const ALL_BODIES_BYTES: usize = 64 << 20;

/// The room that all bodies share.
#[derive(Clone, Debug)]
pub(super) struct Bodies(Arc<Semaphore>);

/// A body and the room it takes, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ALL_BODIES_BYTES)))
    }

    /// Reads `body`, of at most `limit` bytes, as announced in `headers` or not; `too_big` otherwise. Room is taken as
    /// bytes arrive, so that a sender who is slow or only announces takes none.
    pub(super) async fn read(
        &self,
        headers: &HeaderMap,
        mut body: Body,
        limit: u32,
        too_big: &Refusal,
    ) -> Result<Taken, Refusal> {
        let limit = u64::from(limit);
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limit) {
            return Err(too_big.clone());
        }
        let mut taken = Taken { bytes: Vec::new(), room: None };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::INTERNAL)?;
            let Some(part) = frame.data_ref() else { continue };
            if (taken.bytes.len() + part.len()) as u64 > limit {
                return Err(too_big.clone());
            }
            taken.grow(part, &self.0)?;
        }
        Ok(taken)
    }
}

impl Taken {
    fn grow(&mut self, part: &[u8], room: &Arc<Semaphore>) -> Result<(), Refusal> {
        let bytes = u32::try_from(part.len()).map_err(|_| Refusal::INTERNAL)?;
        let more = Arc::clone(room)
            .try_acquire_many_owned(bytes)
            .map_err(|_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "BUSY"))?;
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}
