//! Syncing many queues at once.
//!
//! One after the other, each queue waits for the device twice: for its records, then for its meta file. Very many
//! queues go through the same steps together, and the whole file system is synced between two steps.

use std::path::Path;

use super::files::Files;
use super::{DiskQueue, DiskQueueError, Tail};

/// From so many queues on they are synced together. Fewer are not worth the wait for what others write to the same
/// file system.
const TOGETHER_MIN: usize = 32;

/// What [`sync_all`] could not sync.
#[derive(Debug, thiserror::Error)]
#[error("{queues} queues on disk are not synced, the first because: {first}")]
pub struct Unsynced {
    /// How many queues.
    pub queues: usize,
    /// What went wrong with the first.
    #[source]
    pub first: DiskQueueError,
}

/// Syncs those of `queues`, all in `folder`, that need it.
pub fn sync_all<'a, F: Files + 'a>(
    files: &F,
    folder: &Path,
    queues: impl IntoIterator<Item = &'a mut DiskQueue<F>>,
) -> Result<(), Unsynced> {
    let mut queues: Vec<_> = queues.into_iter().filter(|queue| queue.needs_sync()).collect();
    if queues.len() >= TOGETHER_MIN {
        together(files, folder, &mut queues);
    }
    // All of them if they are few or could not be synced together, else those with a trouble of their own.
    let due = queues.iter_mut().filter(|queue| queue.needs_sync());
    let mut errors = due.filter_map(|queue| keeping_files_closed(queue, DiskQueue::sync).err());
    match errors.next() {
        Some(first) => Err(Unsynced { queues: 1 + errors.count(), first }),
        None => Ok(()),
    }
}

/// Very many queues have very many files: those that were closed are closed again.
fn keeping_files_closed<F: Files>(
    queue: &mut DiskQueue<F>,
    work: fn(&mut DiskQueue<F>) -> Result<(), DiskQueueError>,
) -> Result<(), DiskQueueError> {
    let held_files = queue.holds_files();
    let outcome = work(queue);
    if !held_files {
        queue.release();
    }
    outcome
}

/// Syncs as many of `queues` as it can.
fn together<F: Files>(files: &F, folder: &Path, queues: &mut [&mut DiskQueue<F>]) {
    let sync = || files.sync_folder(folder);
    let mut healthy: Vec<_> = queues
        .iter_mut()
        .filter_map(|queue| {
            queue.stale = true;
            keeping_files_closed(queue, DiskQueue::heal).ok().map(|()| queue)
        })
        .collect();
    // No meta file may speak of records that a power cut could take back.
    if sync().is_err() {
        return;
    }
    for queue in &mut healthy {
        (queue.unflushed, queue.tail) = (false, Tail::Clean);
    }
    healthy.retain(|queue| queue.draft_meta().map_err(|error| queue.drop_draft(error)).is_ok());
    // No name may come to stand for an empty file.
    if sync().is_err() {
        return;
    }
    // As for a single queue, the new names need not last: the old meta file says less, and the rest is counted again.
    healthy.retain(|queue| queue.files.rename(&queue.paths.meta_new(), &queue.paths.meta()).is_ok());
    for queue in healthy {
        (queue.unsynced, queue.stale, queue.ahead_of_write) = (0, false, false);
    }
}
