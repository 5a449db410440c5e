//! Large bodies wait on disk, so that a slow peer costs neither memory nor a connection to an upstream.
//!
//! A request's body above the configured size is read to its end before the upstream is asked. Files have no name: they
//! vanish with the process. A pool of a few threads reads and writes; each body has one operation under way at most.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::Body;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::account::Account;
use super::body::{BodyError, RequestBody};
use super::settings::Settings;
use super::thread::Connection;
use crate::config;

/// Bytes that one operation reads or writes.
const PIECE: usize = 128 * 1024;

/// The folder, its threads, and how much is in it.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: PathBuf,
    above: u64,
    max_bytes: u64,
    used: AtomicU64,
    threads: Handle,
    names: AtomicU64,
}

/// A body on disk, read from its beginning.
#[derive(Debug)]
pub(crate) struct Spooled {
    file: Arc<Stored>,
    at: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    account: Rc<Account>,
}

/// A file of one body, and the room it takes.
#[derive(Debug)]
struct Stored {
    file: File,
    len: u64,
    spool: Arc<Spool>,
    reserved: u64,
}

impl Spool {
    /// The folder that `config` names, made if it is not there. Operations run on `threads`.
    pub(crate) fn open(config: &config::Spool, threads: Handle) -> io::Result<Arc<Self>> {
        std::fs::create_dir_all(&config.directory)?;
        Ok(Arc::new(Self {
            directory: config.directory.clone(),
            above: config.above,
            max_bytes: config.max_bytes,
            used: AtomicU64::new(0),
            threads,
            names: AtomicU64::new(0),
        }))
    }

    fn reserve(&self, bytes: u64) -> bool {
        let reserved = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= self.max_bytes)
        });
        reserved.is_ok()
    }

    /// A file that is gone with its last handle.
    fn create(&self) -> io::Result<File> {
        let name = format!("{}-{}", std::process::id(), self.names.fetch_add(1, Ordering::Relaxed));
        let path = self.directory.join(name);
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.spool.used.fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

/// Reads `body` to its end if it is large, and puts it on disk. Small ones, and all if there is no spool, go on as they
/// are.
pub(crate) async fn request(
    connection: &Connection,
    settings: &Settings,
    mut body: RequestBody,
) -> Result<RequestBody, BodyError> {
    let (Some(spool), false) = (&connection.thread.spool, body.is_end_stream()) else { return Ok(body) };
    let Some(above) = settings.config.spool.as_ref().map(|_| spool.above) else { return Ok(body) };
    if body.size_hint().exact().is_some_and(|length| length <= above) {
        return Ok(body);
    }
    let mut stored =
        Stored { file: spool.create().map_err(|_| BodyError::Spool)?, len: 0, spool: Arc::clone(spool), reserved: 0 };
    let mut buffer = BytesMut::new();
    loop {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.transpose()?;
        let ended = frame.is_none();
        if let Some(data) = frame.and_then(|frame| frame.into_data().ok()) {
            buffer.extend_from_slice(&data);
        }
        if ended && stored.len == 0 && buffer.len() as u64 <= above {
            return Ok(RequestBody::Full(buffer.freeze()));
        }
        if (ended && !buffer.is_empty()) || buffer.len() >= PIECE {
            stored = append(connection, stored, buffer.split().freeze()).await?;
        }
        if ended {
            let account = Rc::clone(&connection.account);
            return Ok(RequestBody::Spooled(Spooled { file: Arc::new(stored), at: 0, reading: None, account }));
        }
    }
}

async fn append(connection: &Connection, mut stored: Stored, bytes: Bytes) -> Result<Stored, BodyError> {
    let len = bytes.len() as u64;
    if !stored.spool.reserve(len) {
        return Err(BodyError::Spool);
    }
    stored.reserved += len;
    connection.account.add_disk(len);
    let threads = stored.spool.threads.clone();
    let written = threads.spawn_blocking(move || {
        stored.file.write_all_at(&bytes, stored.len)?;
        stored.len += bytes.len() as u64;
        io::Result::Ok(stored)
    });
    written.await.ok().and_then(Result::ok).ok_or(BodyError::Spool)
}

impl Spooled {
    /// The same body from its beginning.
    pub(crate) fn again(&self) -> Self {
        Self { file: Arc::clone(&self.file), at: 0, reading: None, account: Rc::clone(&self.account) }
    }

    /// Bytes that are still to come.
    pub(crate) fn left(&self) -> u64 {
        self.file.len - self.at
    }

    /// The next piece.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.left() == 0 {
            return Poll::Ready(None);
        }
        let (file, at) = (&self.file, self.at);
        let len = usize::try_from(self.file.len - at).map_or(PIECE, |left| left.min(PIECE));
        let reading = self.reading.get_or_insert_with(|| {
            let file = Arc::clone(file);
            let threads = file.spool.threads.clone();
            threads.spawn_blocking(move || {
                let mut piece = vec![0; len];
                file.file.read_exact_at(&mut piece, at)?;
                Ok(Bytes::from(piece))
            })
        });
        let read = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        let Some(piece) = read.ok().and_then(Result::ok) else { return Poll::Ready(Some(Err(BodyError::Spool))) };
        self.at += piece.len() as u64;
        self.account.add_disk(piece.len() as u64);
        Poll::Ready(Some(Ok(piece)))
    }
}
