//! Which topics and channels there are, kept in nsqd's `nsqd.dat`, and the lock on the data folder.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::disk_queue::{Files, SystemFiles, read_whole, replace};

/// The file's name.
const FILE: &str = "nsqd.dat";

/// What is in the file. Ephemeral topics and channels are never in it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Metadata {
    /// In order of name when we wrote it, in any order when nsqd did.
    pub topics: Vec<TopicMetadata>,
}

/// A topic that outlives the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicMetadata {
    /// Its name.
    pub name: TopicName,
    /// Whether it is paused.
    pub paused: bool,
    /// Its channels.
    pub channels: Vec<ChannelMetadata>,
}

/// A channel that outlives the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelMetadata {
    /// Its name.
    pub name: ChannelName,
    /// Whether it is paused.
    pub paused: bool,
}

/// What went wrong with the data folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is not what nsqd or we write.
    #[error("{} is not the metadata of a broker: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Another process has the folder.
    #[error(
        "data folder {} is in use by another broker (nsqd or tidegate); stop it or give this one its own -data-path",
        path.display()
    )]
    Locked {
        /// The folder.
        path: PathBuf,
    },
}

/// The file's shape: nsqd's names, and `null` for empty lists, as Go writes them. Unknown fields are left unread.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(default, serialize_with = "list", deserialize_with = "null_as_empty")]
    topics: Vec<StoredTopic>,
    #[serde(default)]
    version: String,
}

#[derive(Serialize, Deserialize)]
struct StoredTopic {
    name: String,
    #[serde(default)]
    paused: bool,
    #[serde(default, serialize_with = "list", deserialize_with = "null_as_empty")]
    channels: Vec<StoredChannel>,
}

#[derive(Serialize, Deserialize)]
struct StoredChannel {
    name: String,
    #[serde(default)]
    paused: bool,
}

fn list<T: Serialize, S: Serializer>(items: &[T], to: S) -> Result<S::Ok, S::Error> {
    if items.is_empty() { to.serialize_none() } else { items.serialize(to) }
}

fn null_as_empty<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// What [`Metadata::read`] found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// The topics and channels.
    pub metadata: Metadata,
    /// Names in the file that are none, each left out; for the log.
    pub invalid_names: Vec<String>,
}

impl Metadata {
    /// Reads the file of the data folder `folder`; nothing if there is none.
    pub fn read(folder: &Path) -> Result<Found, MetadataError> {
        Self::read_on(&SystemFiles, folder)
    }

    /// The same on other files than the system's.
    pub fn read_on<F: Files>(files: &F, folder: &Path) -> Result<Found, MetadataError> {
        let path = folder.join(FILE);
        match read_whole(files, &path) {
            Ok(text) => Self::parse(&text).map_err(|source| MetadataError::Parse { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::default()),
            Err(error) => Err(failed("read", path, error)),
        }
    }

    /// Replaces the file of the data folder `folder`: after a crash either the old one or the new one is there, whole.
    /// `version` is what nsqd's tools are told.
    pub fn write(&self, folder: &Path, version: &str) -> Result<(), MetadataError> {
        self.write_on(&SystemFiles, folder, version)
    }

    /// The same on other files than the system's.
    pub fn write_on<F: Files>(&self, files: &F, folder: &Path, version: &str) -> Result<(), MetadataError> {
        replace(files, folder, FILE, self.to_json(version).as_bytes())
            .map_err(|error| failed("write", folder.join(FILE), error))
    }

    fn parse(text: &[u8]) -> serde_json::Result<Found> {
        let stored: Stored = serde_json::from_slice(text)?;
        let mut found = Found::default();
        for topic in stored.topics {
            let Ok(name) = TopicName::new(&topic.name) else {
                found.invalid_names.push(topic.name);
                continue;
            };
            let mut channels = Vec::with_capacity(topic.channels.len());
            for channel in topic.channels {
                match ChannelName::new(&channel.name) {
                    Ok(name) => channels.push(ChannelMetadata { name, paused: channel.paused }),
                    Err(_) => found.invalid_names.push(channel.name),
                }
            }
            found.metadata.topics.push(TopicMetadata { name, paused: topic.paused, channels });
        }
        Ok(found)
    }

    fn to_json(&self, version: &str) -> String {
        let topics = self.topics.iter().filter(|topic| !topic.name.is_ephemeral()).map(|topic| StoredTopic {
            name: topic.name.to_string(),
            paused: topic.paused,
            channels: topic
                .channels
                .iter()
                .filter(|channel| !channel.name.is_ephemeral())
                .map(|channel| StoredChannel { name: channel.name.to_string(), paused: channel.paused })
                .collect(),
        });
        let stored = Stored { topics: topics.collect(), version: version.to_owned() };
        serde_json::to_string(&stored).expect("texts, lists and truth values")
    }
}

/// The lock on a data folder, held while this lives. nsqd takes the same lock.
#[derive(Debug)]
pub struct DataLock {
    _folder: File,
}

impl DataLock {
    /// Locks `folder`, which must exist.
    pub fn take(folder: &Path) -> Result<Self, MetadataError> {
        let path = || folder.to_owned();
        let file = File::open(folder).map_err(|e| failed("open", path(), e))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _folder: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(MetadataError::Locked { path: path() }),
            Err(error) => Err(failed("lock", path(), error.into())),
        }
    }
}

fn failed(action: &'static str, path: PathBuf, source: io::Error) -> MetadataError {
    MetadataError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn topic(name: &str, paused: bool, channels: &[(&str, bool)]) -> TopicMetadata {
        let channel =
            |&(name, paused): &(&str, bool)| ChannelMetadata { name: ChannelName::new(name).unwrap(), paused };
        TopicMetadata { name: TopicName::new(name).unwrap(), paused, channels: channels.iter().map(channel).collect() }
    }

    /// A folder of this test's own, gone at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tidegate-metadata-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The text is what nsqd 1.3.0 writes for the same topics.
    #[test]
    fn the_text_is_nsqds() {
        let metadata = Metadata {
            topics: vec![
                topic("a", true, &[("c", false), ("d#ephemeral", false)]),
                topic("b", false, &[]),
                topic("e#ephemeral", false, &[("f", false)]),
            ],
        };
        let text = concat!(
            r#"{"topics":[{"name":"a","paused":true,"channels":[{"name":"c","paused":false}]},"#,
            r#"{"name":"b","paused":false,"channels":null}],"version":"1.3.0"}"#
        );
        assert_eq!(metadata.to_json("1.3.0"), text);
        assert_eq!(Metadata::default().to_json("1.3.0"), r#"{"topics":null,"version":"1.3.0"}"#);
        let read = Metadata::parse(text.as_bytes()).unwrap();
        assert_eq!(read.metadata.topics, [topic("a", true, &[("c", false)]), topic("b", false, &[])]);
    }

    #[test]
    fn unknown_fields_and_bad_names_do_no_harm() {
        let text = br#"{"version":"9","new":{"x":[1]},"topics":[{"name":"a","new":1},{"name":"b c"},
            {"name":"d","channels":[{"name":"!","paused":true},{"name":"ok","paused":true,"new":null}]}]}"#;
        let found = Metadata::parse(text).unwrap();
        assert_eq!(found.metadata.topics, [topic("a", false, &[]), topic("d", false, &[("ok", true)])]);
        assert_eq!(found.invalid_names, ["b c", "!"]);
    }

    #[test]
    fn the_file_is_replaced_whole() {
        let folder = Folder::new("replace");
        assert_eq!(Metadata::read(&folder.0).unwrap(), Found::default());
        for topics in [vec![topic("a", false, &[("c", true)])], vec![]] {
            let metadata = Metadata { topics };
            metadata.write(&folder.0, "1.3.0").unwrap();
            assert_eq!(Metadata::read(&folder.0).unwrap().metadata, metadata);
        }
        let names: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE]);
    }

    #[test]
    fn a_file_that_is_no_metadata_is_an_error_not_a_fresh_start() {
        let folder = Folder::new("parse");
        fs::write(folder.0.join(FILE), "{\"topics\":[").unwrap();
        let error = Metadata::read(&folder.0).unwrap_err();
        assert!(matches!(error, MetadataError::Parse { .. }), "{error}");
        assert!(error.to_string().contains("nsqd.dat is not the metadata of a broker"));
    }

    #[test]
    fn a_folder_has_one_broker() {
        let folder = Folder::new("lock");
        let lock = DataLock::take(&folder.0).unwrap();
        let error = DataLock::take(&folder.0).unwrap_err();
        assert!(matches!(error, MetadataError::Locked { .. }), "{error}");
        drop(lock);
        DataLock::take(&folder.0).unwrap();
    }
}
