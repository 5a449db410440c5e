//! What a broker does when one of its shards ends though nobody told it to.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::io::http::client::Trust;
use crate::io::http::tests::config;
use crate::machine::home_shard;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-broker-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn broker(folder: &Folder) -> Broker {
    let path = folder.0.display();
    let config = config(&format!("tcp_address = '127.0.0.1:0'\nshards = 2\ndata_path = '{path}'"));
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let patience = Duration::from_secs(1);
    let http = HttpClient::new(patience, patience, Trust::Configured(Box::new(tls))).unwrap();
    let extras = Extras { limits: Vec::new(), http, tls: None, runtime: runtime::Handle::current() };
    Broker::start(config, extras).unwrap()
}

/// A topic that lives on `shard` of two.
fn topic_of(shard: usize) -> TopicName {
    let mut names = (0..).map(|n| TopicName::new(&format!("t{n}")).unwrap());
    names.find(|name| home_shard(name.as_str(), 2) == shard).unwrap()
}

/// Publishes a message to a topic on each shard; names and messages are then saved, or in memory.
async fn publish_everywhere(broker: &Broker) {
    for shard in [0, 1] {
        let request = AdminRequest::Publish { topic: topic_of(shard), bodies: vec![b"abc".to_vec()], defer: None };
        assert!(matches!(broker.handle().ask_topic(&topic_of(shard), request).await, Some(AdminReply::Done)));
    }
    broker.save_metadata().await.unwrap();
}

/// Bytes of the first file of the queue of the topic on `shard`.
fn saved(folder: &Folder, shard: usize) -> u64 {
    let name = format!("{}.diskqueue.000000.dat", topic_of(shard));
    fs::metadata(folder.0.join(name)).map_or(0, |file| file.len())
}

#[tokio::test]
async fn a_shard_that_panics_ends_the_broker_and_the_others_are_saved() {
    let folder = Folder::new("panic");
    let broker = broker(&folder);
    publish_everywhere(&broker).await;
    broker.mailboxes[1].send(Inbound::Panic);
    assert_eq!(broker.shard_ended().await, 1);
    let error = broker.stop().await.unwrap_err();
    assert!(matches!(error, StopError::Shard { shard: 1 }), "{error}");
    assert!(saved(&folder, 0) > 0, "the other shard's message");
    let names: Vec<_> =
        Metadata::read(&folder.0).unwrap().metadata.topics.into_iter().map(|topic| topic.name).collect();
    assert!(names.contains(&topic_of(0)) && names.contains(&topic_of(1)), "no name is forgotten: {names:?}");
}

#[tokio::test]
async fn a_shard_that_cannot_wait_for_events_saves_its_messages() {
    let folder = Folder::new("fail");
    let broker = broker(&folder);
    publish_everywhere(&broker).await;
    broker.mailboxes[1].send(Inbound::Fail);
    assert_eq!(broker.shard_ended().await, 1);
    assert!(saved(&folder, 1) > 0);
    let _ = broker.stop().await;
    assert!(saved(&folder, 0) > 0);
}
