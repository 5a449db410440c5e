//! What is left of the tokens, over a restart.
//!
//! A clean stop writes the level of every bucket to `tidegate.buckets` in the data folder, with the boot clock and the
//! boot's id; the next start of the same boot credits the time between, and one of another boot none. While a broker
//! runs the file says so, and nothing else: after a crash the levels are not known, so buckets begin empty. nsqd does
//! not look at the file.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::limit::Limit;
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate};
use tidegate_runtime::{clock, process};
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::disk_queue::{Files, read_whole, replace};
use crate::machine::contracts::{KeptBucket, LimitKey};
use crate::machine::shard::Shard;

const FILE: &str = "tidegate.buckets";

/// What an earlier run left of its tokens.
#[derive(Clone, PartialEq, Debug)]
pub enum Found {
    /// There was no earlier run on this folder: buckets begin full.
    Nothing,
    /// It stopped cleanly; its buckets held these levels so long ago.
    Kept(Kept, Duration),
    /// It crashed, or what it wrote cannot be read: buckets begin empty.
    Unknown,
}

/// What is known of tokens at a clean stop.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Kept {
    /// Buckets that are not full.
    pub buckets: Vec<KeptBucket>,
    /// How long before the stop an earlier crash left the others empty, as far as is known; `None` if none did.
    pub unknown_for: Option<Duration>,
}

impl Kept {
    /// The tokens of one shard at `now`.
    #[must_use]
    pub fn of(shard: &Shard, now: Instant) -> Self {
        Self { buckets: shard.kept_buckets(now), unknown_for: shard.unknown_before().map(|unknown| now.since(unknown)) }
    }

    /// Adds another shard's.
    pub fn join(&mut self, other: Self) {
        self.buckets.extend(other.buckets);
        self.unknown_for = match (self.unknown_for, other.unknown_for) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
}

/// A moment on the clock that runs from boot to boot, also while the machine sleeps.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct BootTime {
    /// The boot; empty where the system does not tell.
    pub id: String,
    /// Nanoseconds since then.
    pub ns: u64,
}

impl BootTime {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self { id: process::boot_id().unwrap_or_default(), ns: clock::since_boot_ns() }
    }

    /// The span from `earlier`; zero if that was in another boot, or is not known to be in this one.
    fn since(&self, earlier: &Self) -> Duration {
        let same = !self.id.is_empty() && self.id == earlier.id;
        Duration::from_nanos(if same { self.ns.saturating_sub(earlier.ns) } else { 0 })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
enum Stored {
    Running,
    Stopped {
        boot: BootTime,
        buckets: Vec<StoredBucket>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unknown_for_ns: Option<u64>,
    },
}

#[derive(Serialize, Deserialize)]
struct StoredBucket {
    topic: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channel: Option<String>,
    /// The rate: so many tokens in so many nanoseconds.
    tokens: u64,
    period_ns: u64,
    burst: u64,
    /// In parts of a token of which there are `period_ns`. A text, since it can be above what JSON's readers keep exact.
    level: String,
}

impl StoredBucket {
    fn new(kept: &KeptBucket) -> Self {
        Self {
            topic: kept.key.topic.to_string(),
            channel: kept.key.channel.as_ref().map(ToString::to_string),
            tokens: kept.limit.rate.tokens(),
            period_ns: kept.limit.rate.period_ns(),
            burst: kept.limit.burst,
            level: kept.level.to_string(),
        }
    }

    fn read(&self) -> Option<KeptBucket> {
        let channel = match &self.channel {
            Some(name) => Some(ChannelName::new(name).ok()?),
            None => None,
        };
        let rate = Rate::from_fraction(self.tokens.into(), self.period_ns.into())?;
        // The level counts in the unit of this very rate.
        if (rate.tokens(), rate.period_ns()) != (self.tokens, self.period_ns) {
            return None;
        }
        Some(KeptBucket {
            key: LimitKey { topic: TopicName::new(&self.topic).ok()?, channel },
            limit: Limit::new(rate, self.burst),
            level: self.level.parse().ok()?,
        })
    }
}

/// Reads what the last run left in `folder`, and notes that one is running since `now`, durably.
///
/// `used` says whether the folder had a broker before. An error says that the note could not be written: a crash of this
/// run would then be taken for the stop of the last one.
pub fn take<F: Files>(files: &F, folder: &Path, used: bool, now: &BootTime) -> (Found, io::Result<()>) {
    let found = match read_whole(files, &folder.join(FILE)) {
        Ok(text) => parse(&text, now),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !used => Found::Nothing,
        Err(_) => Found::Unknown,
    };
    (found, write(files, folder, &Stored::Running))
}

/// Writes down what is left of the tokens, at a clean stop.
pub fn keep<F: Files>(files: &F, folder: &Path, kept: &Kept, now: BootTime) -> io::Result<()> {
    let buckets = kept.buckets.iter().map(StoredBucket::new).collect();
    let unknown_for_ns = kept.unknown_for.map(nanos);
    write(files, folder, &Stored::Stopped { boot: now, buckets, unknown_for_ns })
}

fn parse(text: &[u8], now: &BootTime) -> Found {
    let Ok(Stored::Stopped { boot, buckets, unknown_for_ns }) = serde_json::from_slice(text) else {
        return Found::Unknown;
    };
    let Some(buckets) = buckets.iter().map(StoredBucket::read).collect() else { return Found::Unknown };
    let unknown_for = unknown_for_ns.map(Duration::from_nanos);
    Found::Kept(Kept { buckets, unknown_for }, now.since(&boot))
}

fn write<F: Files>(files: &F, folder: &Path, stored: &Stored) -> io::Result<()> {
    replace(files, folder, FILE, &serde_json::to_vec(stored).expect("texts and numbers"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::super::disk_queue::SystemFiles;
    use super::*;

    fn bucket(topic: &str, channel: Option<&str>, level: u128) -> KeptBucket {
        KeptBucket {
            key: LimitKey {
                topic: TopicName::new(topic).unwrap(),
                channel: channel.map(|name| ChannelName::new(name).unwrap()),
            },
            limit: Limit::new(Rate::per_s(3), 7),
            level,
        }
    }

    /// A folder of this test's own, gone at its end.
    pub(crate) struct Folder(pub(crate) std::path::PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tidegate-buckets-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn levels_come_back_exactly_once() {
        let folder = Folder::new("once");
        assert_eq!(take(&SystemFiles, &folder.0, false, &BootTime::now()).0, Found::Nothing);
        assert_eq!(
            take(&SystemFiles, &folder.0, false, &BootTime::now()).0,
            Found::Unknown,
            "the first run did not stop"
        );
        let buckets = vec![bucket("t", None, 1), bucket("t", Some("c#ephemeral"), u128::MAX)];
        let kept = Kept { buckets, unknown_for: Some(Duration::from_secs(3)) };
        keep(&SystemFiles, &folder.0, &kept, BootTime::now()).unwrap();
        let Found::Kept(found, downtime) = take(&SystemFiles, &folder.0, true, &BootTime::now()).0 else {
            panic!("they were kept")
        };
        assert_eq!(found, kept);
        assert!(downtime < Duration::from_hours(1));
        assert_eq!(
            take(&SystemFiles, &folder.0, true, &BootTime::now()).0,
            Found::Unknown,
            "the second run did not stop"
        );
    }

    #[test]
    fn a_folder_of_another_broker_tells_nothing_of_tokens() {
        let folder = Folder::new("nsqd");
        assert_eq!(take(&SystemFiles, &folder.0, true, &BootTime::now()).0, Found::Unknown);
    }

    #[test]
    fn only_time_of_the_same_boot_counts() {
        let stop = BootTime { id: "a".to_owned(), ns: 1_000 };
        let at = |id: &str, ns| BootTime { id: id.to_owned(), ns }.since(&stop).as_nanos();
        assert_eq!((at("a", 5_000), at("a", 10), at("b", 5_000)), (4_000, 0, 0));
        assert_eq!(BootTime { id: String::new(), ns: 9 }.since(&BootTime::default()), Duration::ZERO);
    }

    #[test]
    fn a_damaged_file_is_no_gift() {
        let now = BootTime::now();
        let bad_level = r#"{"state":"stopped","boot":{"id":"a","ns":1},
            "buckets":[{"topic":"t","tokens":3,"period_ns":1000000000,"burst":1,"level":"-1"}]}"#;
        for text in ["", "{", r#"{"state":"stopped"}"#, bad_level, &bad_level.replace("\"t\"", "\"b c\"")] {
            assert_eq!(parse(text.as_bytes(), &now), Found::Unknown, "{text}");
        }
        let sound = bad_level.replace("-1", "1");
        assert!(matches!(parse(sound.as_bytes(), &now), Found::Kept(..)));
    }
}
