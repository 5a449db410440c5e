//! Large bodies wait on disk, so that a slow peer costs neither memory nor a connection to an upstream.
//!
//! A request's body above the configured size is read to its end before the upstream is asked. Of an answer the part that
//! its client does not take waits, so that the upstream is done with it. Files have no name: they
//! vanish with the process. A pool of a few threads reads and writes; each body has one operation under way at most.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::account::Account;
use super::body::{BodyError, RequestBody, ResponseBody};
use super::settings::Settings;
use super::thread::Connection;
use crate::config;

/// Bytes that one operation reads or writes.
const PIECE: usize = 128 * 1024;

/// How long the threads of the pool wait for each other at the start.
const MEETING: Duration = Duration::from_secs(1);

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
    /// Behind the last byte.
    trailers: Option<HeaderMap>,
    account: Rc<Account>,
}

/// A file of one body, and the room it takes.
#[derive(Debug)]
struct Stored {
    /// Made with the first bytes.
    file: Option<File>,
    len: u64,
    spool: Arc<Spool>,
    reserved: u64,
}

/// An answer on its way to a client that takes it slower than the upstream gives it: what the client does not take waits
/// in memory, and beyond the configured size on disk. A client that keeps up costs no disk.
#[derive(Debug)]
pub(crate) struct Spooling {
    /// `None` once it ended.
    source: Option<Box<ResponseBody>>,
    /// Read from the source, and behind everything on disk.
    buffer: BytesMut,
    stored: Option<Stored>,
    /// Of what is on disk, so much was read back.
    read: u64,
    operation: Option<Operation>,
    /// Behind the last byte.
    trailers: Option<HeaderMap>,
    /// The source broke off; told when everything before is sent.
    broken: Option<BodyError>,
    account: Rc<Account>,
}

/// The one operation that a body has under way.
#[derive(Debug)]
enum Operation {
    Append(JoinHandle<io::Result<Stored>>),
    Read(JoinHandle<io::Result<(Stored, Bytes)>>),
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

    /// Bytes of a body that stay in memory.
    pub(crate) fn above(&self) -> u64 {
        self.above
    }

    /// Whether `bytes` more would fit; another thread may take the room before it is reserved.
    fn has_room(&self, bytes: u64) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(bytes) <= self.max_bytes
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

/// How long a thread of the pool stays when it has nothing to do: as long as the proxy.
pub(crate) const KEPT: Duration = Duration::from_hours(24 * 365 * 100);

/// Starts all `count` threads of a pool. A thread begins with the priority and the processors of the thread that starts
/// it: begun by the first large body of the overflow lane, it would do everybody's work when nobody else wants the
/// processor.
pub(crate) fn start_threads(pool: &Handle, count: usize) {
    let arrived = Arc::new((Mutex::new(0), Condvar::new()));
    for _ in 0..count {
        let arrived = Arc::clone(&arrived);
        // It ends when all are there: until then each takes one thread.
        drop(pool.spawn_blocking(move || {
            let (number, all) = &*arrived;
            let mut number = number.lock().unwrap_or_else(PoisonError::into_inner);
            *number += 1;
            all.notify_all();
            // Where the system gives fewer threads, those that there are go to work.
            drop(all.wait_timeout_while(number, MEETING, |number| *number < count));
        }));
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
    account: &Rc<Account>,
    settings: &Settings,
    mut body: RequestBody,
) -> Result<RequestBody, BodyError> {
    let (Some(spool), false) = (&connection.thread.spool, body.is_end_stream()) else { return Ok(body) };
    let Some(above) = settings.config.spool.as_ref().map(|_| spool.above) else { return Ok(body) };
    if body.size_hint().exact().is_some_and(|length| length <= above) {
        return Ok(body);
    }
    // One that is known to be long goes there piece by piece; another first waits for how long it becomes.
    let is_long = body.size_hint().exact().is_some();
    let first = if is_long { PIECE } else { usize::try_from(above).map_or(PIECE, |above| above.max(PIECE)) };
    let mut stored = Stored::new(spool);
    let (mut buffer, mut trailers) = (BytesMut::new(), None);
    loop {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.transpose()?;
        let ended = frame.is_none();
        match frame.map(Frame::into_data) {
            Some(Ok(data)) => buffer.extend_from_slice(&data),
            Some(Err(other)) => trailers = other.into_trailers().ok(),
            None => {}
        }
        if ended && stored.len == 0 && trailers.is_none() && buffer.len() as u64 <= above {
            return Ok(RequestBody::Full(buffer.freeze()));
        }
        let most = if stored.len == 0 { first } else { PIECE };
        if (ended && !buffer.is_empty()) || buffer.len() >= most {
            stored = append(account, stored, buffer.split().freeze()).await?;
        }
        if ended {
            let (file, account) = (Arc::new(stored), Rc::clone(account));
            return Ok(RequestBody::Spooled(Spooled { file, at: 0, reading: None, trailers, account }));
        }
    }
}

async fn append(account: &Account, stored: Stored, bytes: Bytes) -> Result<Stored, BodyError> {
    account.add_disk(bytes.len() as u64);
    let appended = stored.append(bytes)?;
    appended.await.ok().and_then(Result::ok).ok_or(BodyError::Spool)
}

impl Stored {
    fn new(spool: &Arc<Spool>) -> Self {
        Self { file: None, len: 0, spool: Arc::clone(spool), reserved: 0 }
    }

    /// Writes `bytes` to the end, on a thread of the pool; an error if there is no room.
    fn append(mut self, bytes: Bytes) -> Result<JoinHandle<io::Result<Self>>, BodyError> {
        let len = bytes.len() as u64;
        if !self.spool.reserve(len) {
            return Err(BodyError::Spool);
        }
        self.reserved += len;
        let threads = self.spool.threads.clone();
        Ok(threads.spawn_blocking(move || {
            let file = match self.file.take() {
                Some(file) => file,
                None => self.spool.create()?,
            };
            let written = file.write_all_at(&bytes, self.len);
            self.file = Some(file);
            written?;
            self.len += len;
            Ok(self)
        }))
    }

    /// Up to a piece from `at`.
    fn read(&self, at: u64) -> io::Result<Bytes> {
        let len = usize::try_from(self.len - at).map_or(PIECE, |left| left.min(PIECE));
        let mut piece = vec![0; len];
        if let Some(file) = &self.file {
            file.read_exact_at(&mut piece, at)?;
        }
        Ok(Bytes::from(piece))
    }
}

/// Lets `body` wait where its client does not hold up the upstream, if there is a spool and it can be long.
pub(crate) fn response(connection: &Connection, account: &Rc<Account>, body: ResponseBody) -> ResponseBody {
    let Some(spool) = &connection.thread.spool else { return body };
    if body.size_hint().exact().is_some_and(|length| length <= spool.above) {
        return body;
    }
    ResponseBody::Spooling(Box::new(Spooling {
        source: Some(Box::new(body)),
        buffer: BytesMut::new(),
        stored: Some(Stored::new(spool)),
        read: 0,
        operation: None,
        trailers: None,
        broken: None,
        account: Rc::clone(account),
    }))
}

impl Spooling {
    /// Takes what the upstream gives while there is room, whether or not the client takes anything.
    pub(crate) fn poll_ahead(&mut self, context: &mut Context<'_>) {
        loop {
            if let Some(Operation::Append(append)) = self.operation.as_mut() {
                let Poll::Ready(appended) = Pin::new(append).poll(context) else { return };
                self.operation = None;
                match appended.ok().and_then(Result::ok) {
                    Some(stored) => self.stored = Some(stored),
                    None => return self.broke(BodyError::Spool),
                }
            }
            let above = self.stored.as_ref().map_or(u64::MAX, |stored| stored.spool.above);
            if self.buffer.len() as u64 > above {
                let Some(stored) = self.stored.take() else { return };
                if !stored.spool.has_room(self.buffer.len() as u64) {
                    // Then the upstream waits until its client takes more, as it would without a spool.
                    self.stored = Some(stored);
                    return;
                }
                self.account.add_disk(self.buffer.len() as u64);
                match stored.append(self.buffer.split().freeze()) {
                    Ok(append) => self.operation = Some(Operation::Append(append)),
                    Err(full) => return self.broke(full),
                }
                continue;
            }
            // While a piece is read back, the memory has the bound that it always has.
            let room = self.stored.is_some() || (self.buffer.len() as u64) < PIECE as u64;
            let Some(source) = self.source.as_mut().filter(|_| room) else { return };
            match Pin::new(&mut **source).poll_frame(context) {
                Poll::Pending => return,
                Poll::Ready(None) => self.source = None,
                Poll::Ready(Some(Err(error))) => return self.broke(error),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(other) => self.trailers = other.into_trailers().ok(),
                },
            }
        }
    }

    fn broke(&mut self, error: BodyError) {
        self.source = None;
        self.broken = Some(error);
    }

    /// The next piece, and behind the last one the trailers.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            self.poll_ahead(context);
            if let Some(Operation::Read(read)) = self.operation.as_mut() {
                let done = ready!(Pin::new(read).poll(context));
                self.operation = None;
                let Some((stored, piece)) = done.ok().and_then(Result::ok) else {
                    return Poll::Ready(Some(Err(BodyError::Spool)));
                };
                self.stored = Some(stored);
                self.read += piece.len() as u64;
                self.account.add_disk(piece.len() as u64);
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.operation.is_some() {
                return Poll::Pending; // The bytes that are written now stand before those in the buffer.
            }
            if self.stored.as_ref().is_some_and(|stored| stored.len > self.read) {
                let Some(stored) = self.stored.take() else { continue };
                let (threads, at) = (stored.spool.threads.clone(), self.read);
                let read = threads.spawn_blocking(move || stored.read(at).map(|piece| (stored, piece)));
                self.operation = Some(Operation::Read(read));
                continue;
            }
            if !self.buffer.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(self.buffer.split().freeze()))));
            }
            if let Some(error) = self.broken.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if self.source.is_some() {
                return Poll::Pending;
            }
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
    }

    /// True if nothing more comes.
    pub(crate) fn is_done(&self) -> bool {
        let on_disk = self.stored.as_ref().is_none_or(|stored| stored.len > self.read);
        let kept = self.broken.is_some() || self.trailers.is_some();
        self.source.is_none() && !kept && self.buffer.is_empty() && !on_disk
    }

    /// Bytes that are still to come, if known.
    pub(crate) fn left(&self) -> Option<u64> {
        let source = self.source.as_ref().map_or(Some(0), |source| source.size_hint().exact())?;
        let stored = self.stored.as_ref()?;
        Some(source + self.buffer.len() as u64 + (stored.len - self.read))
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
        self.file.len - self.at
    }

    /// The next piece, and behind the last one the trailers.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.left() == 0 {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let (file, at) = (&self.file, self.at);
        let reading = self.reading.get_or_insert_with(|| {
            let file = Arc::clone(file);
            let threads = file.spool.threads.clone();
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

#[cfg(test)]
mod tests {
    use thread_priority::unix::{
        NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
        thread_schedule_policy,
    };

    use super::*;

    #[test]
    fn threads_of_the_pool_do_not_take_after_the_overflow_lane() {
        const COUNT: usize = 3;
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(COUNT).thread_keep_alive(KEPT).build().unwrap();
        start_threads(runtime.handle(), COUNT);
        let pool = runtime.handle().clone();
        let overflow = std::thread::spawn(move || {
            let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
            let lowest = thread_priority::ThreadPriority::Min;
            set_thread_priority_and_policy(thread_native_id(), lowest, idle).unwrap();
            let barrier = Arc::new(std::sync::Barrier::new(COUNT));
            let all = (0..COUNT).map(|_| {
                let barrier = Arc::clone(&barrier);
                pool.spawn_blocking(move || {
                    barrier.wait();
                    thread_schedule_policy().unwrap()
                })
            });
            all.collect::<Vec<_>>()
        });
        for policy in overflow.join().unwrap() {
            let policy = runtime.block_on(policy).unwrap();
            assert_eq!(policy, ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other));
        }
    }
}
