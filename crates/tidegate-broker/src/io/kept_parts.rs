//! The node's parts of limits, over a restart.
//!
//! `tidegate.parts` in the data folder has every part that was acknowledged, with the end of its lease on the monotonic
//! clock of this boot. It is written before an order is answered and before what grows of it is in force. So a process
//! that was killed, or crashed, goes on with what it last enforced until the lease ends, and then does what the part
//! says. In another boot of the machine that clock is another one: leases count as ended.
//!
//! Orders that come while a write is under way are written together by the next one. nsqd does not look at the file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};
use tidegate_wire::nsq::TopicName;

use super::disk_queue::{Files, SystemFiles, read_whole, replace};
use crate::machine::limiter::Unit;
use crate::machine::parts::{KeptPart, OnLapse};

const FILE: &str = "tidegate.parts";

#[derive(Serialize, Deserialize)]
struct Stored {
    /// The boot that the ends of leases are of; empty where the system does not tell.
    boot_id: String,
    parts: Vec<StoredPart>,
}

#[derive(Serialize, Deserialize)]
struct StoredPart {
    topic: String,
    /// The rate: so many tokens in so many nanoseconds.
    tokens: u64,
    period_ns: u64,
    burst: u64,
    unit: Unit,
    revision: u64,
    until_ns: u64,
    on_lapse: OnLapse,
    /// Absent in files of releases that did not lend.
    #[serde(default)]
    lends: bool,
}

impl StoredPart {
    fn new(kept: &KeptPart) -> Self {
        let KeptPart { topic, limit, unit, revision, until, on_lapse, lends } = kept;
        Self {
            topic: topic.to_string(),
            tokens: limit.rate.tokens(),
            period_ns: limit.rate.period_ns(),
            burst: limit.burst,
            unit: *unit,
            revision: *revision,
            until_ns: until.as_nanos(),
            on_lapse: *on_lapse,
            lends: *lends,
        }
    }

    fn read(&self, is_this_boot: bool, now: Instant) -> Option<KeptPart> {
        let rate = Rate::from_fraction(self.tokens.into(), self.period_ns.into())?;
        Some(KeptPart {
            topic: TopicName::new(&self.topic).ok()?,
            limit: Limit::new(rate, self.burst),
            unit: self.unit,
            revision: self.revision,
            until: if is_this_boot { Instant::from_nanos(self.until_ns) } else { now },
            on_lapse: self.on_lapse,
            lends: self.lends,
        })
    }
}

/// What an earlier run left in `folder`, at `now` of the boot called `boot_id`; nothing if there is no file.
///
/// # Errors
/// It cannot be read, or is no file of parts.
pub fn read<F: Files>(files: &F, folder: &Path, boot_id: &str, now: Instant) -> io::Result<Vec<KeptPart>> {
    let text = match read_whole(files, &folder.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let stored: Stored = serde_json::from_slice(&text)?;
    let is_this_boot = !boot_id.is_empty() && stored.boot_id == boot_id;
    let parts: Option<Vec<KeptPart>> = stored.parts.iter().map(|part| part.read(is_this_boot, now)).collect();
    parts.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a part has no such topic or rate"))
}

/// All parts of the node as they are to be found by the next run. There are no more than shards take.
#[derive(Debug)]
struct Book {
    parts: BTreeMap<TopicName, KeptPart>,
    /// Grows with every change.
    version: u64,
}

/// Writes down the parts of a running broker. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PartsKeeper {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    boot_id: String,
    book: Mutex<Book>,
    /// Held while the file is written.
    written: Arc<tokio::sync::Mutex<Written>>,
}

/// What became of writes.
#[derive(Debug, Default)]
struct Written {
    /// The version of the book that is in the file.
    version: u64,
    /// The last write failed, and that was said.
    fails: bool,
}

impl PartsKeeper {
    /// `found` is what the file of `folder` says.
    #[must_use]
    pub fn new(folder: &Path, boot_id: String, found: &[KeptPart]) -> Self {
        let parts = found.iter().map(|part| (part.topic.clone(), part.clone())).collect();
        let book = Mutex::new(Book { parts, version: 0 });
        Self { shared: Arc::new(Shared { folder: folder.to_owned(), boot_id, book, written: Arc::default() }) }
    }

    /// Returns when `parts` are in the file; those that are older than what is there stay out. Leases are not shortened.
    /// Where the disk does not take them, that is logged: they are in the next write.
    pub async fn put(&self, parts: impl Iterator<Item = KeptPart>) {
        let put_all = |book: &mut Book| {
            let mut changed = false;
            for part in parts {
                changed |= book.put(part);
            }
            changed
        };
        self.change(put_all).await;
    }

    /// Returns when the part of `topic` is not in the file, unless there is a newer one than `revision`.
    pub async fn remove(&self, topic: &TopicName, revision: u64) {
        let is_over = |part: &KeptPart| part.revision <= revision;
        self.change(|book| book.parts.get(topic).is_some_and(is_over) && book.parts.remove(topic).is_some()).await;
    }

    async fn change(&self, change: impl FnOnce(&mut Book) -> bool) {
        let wanted = {
            let mut book = self.shared.book.lock().unwrap_or_else(PoisonError::into_inner);
            let changed = change(&mut book);
            book.version += u64::from(changed);
            book.version
        };
        let mut written = Arc::clone(&self.shared.written).lock_owned().await;
        if written.version >= wanted {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // It holds the lock also when the one that asked is gone.
        let write = move || {
            let (version, text) = shared.text();
            match replace(&SystemFiles, &shared.folder, FILE, &text) {
                Ok(()) => *written = Written { version, fails: false },
                Err(error) => {
                    if !core::mem::replace(&mut written.fails, true) {
                        tracing::error!(%error, "cannot write tidegate.parts: after a crash limits may be as they were");
                    }
                }
            }
        };
        tokio::task::spawn_blocking(write).await.expect("it returns its errors");
    }
}

impl Book {
    /// False if it is there already, or a newer one.
    fn put(&mut self, mut part: KeptPart) -> bool {
        if let Some(there) = self.parts.get(&part.topic) {
            if there.revision > part.revision {
                return false;
            }
            if there.revision == part.revision {
                part.until = part.until.max(there.until);
            } else {
                // What the part before lent may not have come back yet; at a renewal it has.
                part.lends |= there.lends;
            }
            if *there == part {
                return false;
            }
        }
        self.parts.insert(part.topic.clone(), part);
        true
    }
}

impl Shared {
    fn text(&self) -> (u64, Vec<u8>) {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = book.parts.values().map(StoredPart::new).collect();
        let stored = Stored { boot_id: self.boot_id.clone(), parts };
        (book.version, serde_json::to_vec(&stored).expect("texts and numbers"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buckets::tests::Folder;

    fn part(topic: &str, revision: u64, until_ns: u64) -> KeptPart {
        KeptPart {
            topic: TopicName::new(topic).unwrap(),
            limit: Limit::new(Rate::per(1, std::time::Duration::from_secs(3)), 7),
            unit: Unit::Bytes,
            revision,
            until: Instant::from_nanos(until_ns),
            on_lapse: OnLapse::Closed,
            lends: revision.is_multiple_of(2),
        }
    }

    #[tokio::test]
    async fn parts_come_back_with_their_leases_in_the_same_boot_alone() {
        let folder = Folder::new("parts");
        let now = Instant::from_nanos(500);
        let found = |boot: &str| read(&SystemFiles, &folder.0, boot, now).unwrap();
        assert_eq!(found("boot"), []);
        let keeper = PartsKeeper::new(&folder.0, "boot".to_owned(), &[]);
        keeper.put([part("t", 3, 900), part("u", 3, 900)].into_iter()).await;
        assert_eq!(found("boot"), [part("t", 3, 900), part("u", 3, 900)]);
        // A renewal that is late shortens nothing, an older order changes nothing, and a newer one is another part.
        keeper.put([part("t", 3, 800), part("u", 2, 2_000)].into_iter()).await;
        keeper.put([part("u", 4, 700)].into_iter()).await;
        assert_eq!(found("boot"), [part("t", 3, 900), part("u", 4, 700)]);
        for other in ["another", ""] {
            assert_eq!(found(other), [part("t", 3, 500), part("u", 4, 500)], "their leases count as ended");
        }
        // What is removed is gone, unless it is newer; a keeper of the next run goes on from there.
        let keeper = PartsKeeper::new(&folder.0, "boot".to_owned(), &found("boot"));
        keeper.remove(&part("t", 0, 0).topic, 5).await;
        keeper.remove(&part("u", 0, 0).topic, 3).await;
        assert_eq!(found("boot"), [part("u", 4, 700)]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orders_that_come_together_are_all_there_when_they_are_answered() {
        let folder = Folder::new("parts-many");
        let keeper = PartsKeeper::new(&folder.0, "boot".to_owned(), &[]);
        let put = |number: u64| {
            let keeper = keeper.clone();
            tokio::spawn(async move { keeper.put([part(&format!("t{number}"), number, 9)].into_iter()).await })
        };
        for task in (1..=50).map(put).collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let found = read(&SystemFiles, &folder.0, "boot", Instant::ZERO).unwrap();
        assert_eq!(found.len(), 50);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = Folder::new("parts-bad");
        for text in ["", "{}", r#"{"boot_id":"a","parts":[{"topic":"t t"}]}"#] {
            std::fs::write(folder.0.join(FILE), text).unwrap();
            assert!(read(&SystemFiles, &folder.0, "a", Instant::ZERO).is_err(), "{text}");
        }
    }
}
