//! Placements from a file.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::sleep;

use super::book::Book;
use super::figures::Figures;
use crate::machine::hop::placement::{BadPlacement, Placement};

/// Largest file that is read. A hundred thousand publishers take about 6 MiB.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Between two looks at the file.
const LOOK: Duration = Duration::from_millis(250);

/// Why a file of placements cannot be followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is too large.
    #[error("{} is larger than {FILE_BYTES_MAX} bytes", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
    /// It is not what it should be.
    #[error("{} is no JSON of the form {{\"topics\": [..]}}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// Where it is not, and why.
        #[source]
        source: serde_json::Error,
    },
    /// One of its placements cannot be followed.
    #[error("{}: the placement of {topic:?} cannot be followed", file.display())]
    Placement {
        /// The file.
        file: PathBuf,
        /// As found.
        topic: String,
        /// What is wrong with it.
        #[source]
        source: BadPlacement,
    },
    /// Two placements of one topic.
    #[error("{}: there are two placements of {topic:?}", file.display())]
    Twice {
        /// The file.
        file: PathBuf,
        /// The topic.
        topic: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Placements {
    topics: Vec<Placement>,
}

/// Reads a file of placements: `{"topics": [..]}`, each as the control plane tells it.
///
/// # Errors
/// [`FileError`] says what is wrong with it.
pub fn read_placements(file: &Path) -> Result<Vec<Placement>, FileError> {
    let unreadable = |source| FileError::Unreadable { file: file.to_owned(), source };
    let mut text = String::new();
    let opened = File::open(file).map_err(unreadable)?;
    opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(FileError::TooLarge { file: file.to_owned() });
    }
    let placements: Placements =
        serde_json::from_str(&text).map_err(|source| FileError::Json { file: file.to_owned(), source })?;
    let mut topics: Vec<&str> = Vec::new();
    for placement in &placements.topics {
        let topic = &placement.topic;
        let wrong = |source| FileError::Placement { file: file.to_owned(), topic: topic.clone(), source };
        placement.check().map_err(wrong)?;
        topics.push(topic);
    }
    topics.sort_unstable();
    if let Some(twice) = topics.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(FileError::Twice { file: file.to_owned(), topic: twice[0].to_owned() });
    }
    Ok(placements.topics)
}

/// What tells one state of a file from another: length, time of the last change, and the file itself, for those that are
/// put in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    length: u64,
    changed: (i64, i64),
    inode: u64,
}

impl Stamp {
    /// Of `file`; `None` if it is not there.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let found = fs::metadata(file).ok()?;
        let changed = (found.mtime(), found.mtime_nsec());
        Some(Self { length: found.len(), changed, inode: found.ino() })
    }
}

/// Looks whether `file` changed since `seen`, for ever, and puts what it says in force. A file that cannot be followed
/// changes nothing.
pub(super) async fn follow(book: Arc<Book>, figures: Arc<Figures>, file: PathBuf, mut seen: Option<Stamp>) {
    loop {
        sleep(LOOK).await;
        let stamp = Stamp::of(&file);
        if stamp == seen || stamp.is_none() {
            continue;
        }
        seen = stamp;
        match read_placements(&file) {
            Ok(placements) => match book.replace(placements) {
                Ok(()) => {
                    figures.placement_answers.add(1);
                    tracing::info!(file = %file.display(), "the placements of the file are in force");
                }
                Err(error) => {
                    figures.placement_failures.add(1);
                    tracing::error!(%error, "the last placements stay in force");
                }
            },
            Err(error) => {
                figures.placement_failures.add(1);
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::error!(%error, cause, "the last placements stay in force");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Placement>, String> {
        let file = std::env::temp_dir().join(format!("tidegate-placements-{}-{}", std::process::id(), text.len()));
        fs::write(&file, text).unwrap();
        let read = read_placements(&file).map_err(|error| error.to_string());
        fs::remove_file(&file).unwrap();
        read.map_err(|error| error.replace(&file.display().to_string(), "FILE"))
    }

    #[test]
    fn a_file_holds_placements_as_the_control_plane_tells_them() {
        let text = r#"{"topics": [{"topic": "orders", "revision": 3, "nodes": [{"name": "a", "nsq": "10.0.0.1:4150"}],
            "publishers": {"svc@h": 0}, "default": [1]}, {"topic": "b", "nodes": [{"name": "a", "nsq": "x:1"}]}]}"#;
        let placements = read(text).unwrap();
        assert_eq!((placements[0].revision, placements[0].publishers["svc@h"]), (3, 0));
        assert!(placements[1].default.is_empty());
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        assert!(read("[]").unwrap_err().starts_with("FILE is no JSON of the form {\"topics\": [..]}"));
        let node = r#"{"name": "a", "nsq": "x:1"}"#;
        let nowhere = r#"{"topics": [{"topic": "b", "nodes": []}]}"#;
        assert_eq!(read(nowhere).unwrap_err(), "FILE: the placement of \"b\" cannot be followed");
        let one = format!(r#"{{"topic": "b", "nodes": [{node}]}}"#);
        assert!(read(&format!(r#"{{"topics": [{one}, {one}]}}"#)).unwrap_err().contains("two placements of \"b\""));
        assert!(read_placements(Path::new("/nonexistent")).is_err());
    }
}
