//! The folder, its threads, and how much is in it.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_runtime::clock;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::config;
use crate::io::conn::processor;
use crate::io::spool::room::Room;

/// Bytes that one operation writes, if nothing larger waits.
pub(super) const PIECE: usize = 128 * 1024;

/// Bytes that one operation reads: they are in memory until the peer has taken them.
pub(super) const READ: usize = 64 * 1024;

/// How long the threads of the pool wait for each other at the start.
const MEETING: Duration = Duration::from_secs(1);

/// The folder, its threads, and how much is in it.
#[derive(Debug)]
pub(crate) struct Spool {
    pub(super) directory: PathBuf,
    pub(super) above: u64,
    pub(super) max_bytes: u64,
    /// Locked for a few dozen nanoseconds before an operation on the disk, and after it.
    room: Mutex<Room>,
    pub(super) threads: Handle,
    pool: Arc<Pool>,
    pub(super) failures: Arc<Failures>,
}

/// Operations that the disk failed, of a spool and of those whose place it took.
#[derive(Default, Debug)]
pub(crate) struct Failures {
    writes: AtomicU64,
    reads: AtomicU64,
}

impl Failures {
    /// Of writes, and of reads.
    pub(crate) fn counts(&self) -> (u64, u64) {
        // Counters of their own; nothing else is ordered by them.
        (self.writes.load(Ordering::Relaxed), self.reads.load(Ordering::Relaxed))
    }
}

/// Threads that read and write. A spool that takes the place of another one has the same, if it is to have as many.
#[derive(Debug)]
struct Pool {
    /// `None` when it is dropped.
    runtime: Option<Runtime>,
    threads: usize,
}

/// For all spools of this process: while one takes the place of another, both may be in one folder.
static NAMES: AtomicU64 = AtomicU64::new(0);

impl Spool {
    /// The folder that `config` names, made if it is not there. What is in the spool that was there `before` ends there.
    /// What the disk fails is counted in `failures`.
    pub(crate) fn open(
        config: &config::Spool,
        before: Option<&Self>,
        failures: &Arc<Failures>,
    ) -> io::Result<Arc<Self>> {
        std::fs::create_dir_all(&config.directory)?;
        let pool = match before.filter(|before| before.pool.threads == config.threads) {
            Some(before) => Arc::clone(&before.pool),
            None => Pool::start(config.threads)?,
        };
        let this = Self {
            directory: config.directory.clone(),
            above: config.above,
            max_bytes: config.max_bytes,
            room: Mutex::new(Room::new(config.max_bytes)),
            threads: pool.handle(),
            pool,
            failures: Arc::clone(failures),
        };
        // A folder that takes no files is told of now, and not with the first large body.
        this.create()?;
        Ok(Arc::new(this))
    }

    /// Bytes of a body that stay in memory.
    pub(crate) fn above(&self) -> u64 {
        self.above
    }

    /// Bytes of the bodies in it.
    pub(crate) fn bytes(&self) -> u64 {
        self.room().used()
    }

    /// The disk did not take something: there is no room for a while.
    pub(super) fn failed_to_write(&self, error: &io::Error) {
        self.failures.writes.fetch_add(1, Ordering::Relaxed);
        let now = clock::now();
        let mut room = self.room();
        room.close(now);
        let says = room.says(now);
        drop(room);
        if says {
            let directory = self.directory.display();
            tracing::warn!(%error, %directory, "the spool takes nothing: until it does, bodies find it full");
        }
    }

    /// The disk did not give back what it took: a body ends there.
    pub(super) fn failed_to_read(&self, error: &io::Error) {
        self.failures.reads.fetch_add(1, Ordering::Relaxed);
        if self.room().says(clock::now()) {
            let directory = self.directory.display();
            tracing::warn!(%error, %directory, "the spool does not give back what is in it: bodies are cut off");
        }
    }

    pub(super) fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file that is gone with its last handle.
    pub(super) fn create(&self) -> io::Result<File> {
        let name = format!("{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
        let path = self.directory.join(name);
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }
}

impl Pool {
    fn start(threads: usize) -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(threads)
            .thread_keep_alive(KEPT)
            // A large body takes the disk and the processor for milliseconds, and nobody waits for it as for an answer.
            .on_thread_start(processor::stand_back)
            .build()?;
        start_threads(runtime.handle(), threads);
        Ok(Arc::new(Self { runtime: Some(runtime), threads }))
    }

    fn handle(&self) -> Handle {
        self.runtime.as_ref().expect("it is there until the pool is dropped").handle().clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Perhaps on one of its own threads, or on one that serves: it waits for nobody.
            runtime.shutdown_background();
        }
    }
}

/// How long a thread of the pool stays when it has nothing to do: as long as the pool.
const KEPT: Duration = Duration::from_hours(24 * 365 * 100);

/// Starts all `count` threads of a pool. A thread begins with the priority and the processors of the thread that starts
/// it: begun by the first large body, it would do everybody's work on that body's processor.
fn start_threads(pool: &Handle, count: usize) {
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

#[cfg(test)]
pub(super) mod tests {
    use thread_priority::unix::{
        NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
        thread_schedule_policy,
    };

    use std::future::poll_fn;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use tidegate_core::Instant;

    use super::*;
    use crate::io::conn::account::Account;
    use crate::io::conn::limiter::{Limiter, NeighboursConfig};
    use crate::machine::Resource;
    use crate::machine::neighbours::Capacity;

    /// A spool in a folder of its own, which goes with it.
    pub(crate) struct Disk {
        pub(crate) spool: Arc<Spool>,
        runtime: Runtime,
    }

    impl Disk {
        pub(crate) fn new(name: &str, max_bytes: u64) -> Self {
            let name = format!("tidegate-spool-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let runtime = Builder::new_current_thread().build().unwrap();
            let config = config::Spool { above: 1 << 20, directory, max_bytes, threads: 1 };
            Self { spool: Spool::open(&config, None, &Arc::default()).unwrap(), runtime }
        }

        pub(crate) fn wait<T>(&self, operation: tokio::task::JoinHandle<T>) -> T {
            self.runtime.block_on(operation).unwrap()
        }

        pub(crate) fn wait_for<T>(&self, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
            self.runtime.block_on(pin!(poll_fn(poll)))
        }
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            // Nothing is in it: files have no name.
            std::fs::remove_dir(&self.spool.directory).unwrap();
        }
    }

    /// A file that takes nothing.
    pub(crate) fn disk_that_is_full() -> File {
        File::options().read(true).write(true).open("/dev/full").unwrap()
    }

    /// Of which the tenants of [`account`] have their memory.
    pub(crate) const MEMORY: u64 = 1 << 30;

    /// Of a tenant of this name.
    pub(crate) fn account(name: &str) -> Rc<Account> {
        let config = NeighboursConfig::default().with(Resource::Memory, Capacity::Fixed(MEMORY));
        let limiter = Arc::new(Limiter::new(config, Instant::ZERO));
        let tenant = limiter.with(|limiter| limiter.tenant(name, Instant::ZERO));
        Account::open(limiter, tenant)
    }

    /// Bytes that show when one is missing.
    pub(crate) fn pattern(len: usize) -> Bytes {
        (0..len).map(|at| (at / 1_000).to_le_bytes()[0]).collect()
    }

    #[test]
    fn threads_of_the_pool_do_not_take_after_the_overflow_lane() {
        const COUNT: usize = 3;
        let mut builder = Builder::new_current_thread();
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
