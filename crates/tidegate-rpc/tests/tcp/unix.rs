//! The same over Unix sockets: who may call, what is left behind, what errors say.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use tidegate_rpc::error::RpcError;
use tidegate_rpc::io::tcp::{Address, CallOptions, ClientConfig, RpcClient, RpcServer, ServerConfig};

use crate::folder::Folder;
use crate::scheme::{Counting, Free, Seen};
use crate::{Stage, stage};

fn at(path: &Path) -> ServerConfig {
    ServerConfig { address: Address::Unix(path.to_owned()), ..ServerConfig::default() }
}

fn unix_stage(path: &Path) -> Stage {
    stage(&at(path))
}

/// The text of an error with its cause.
fn text(error: &RpcError) -> String {
    format!("{error}: {}", error.source().unwrap())
}

fn refused(config: &ServerConfig) -> String {
    let seen = Arc::<Seen>::default();
    let handler = |_: &[u8], _: &mut Vec<u8>| Ok(());
    let started = RpcServer::start(config, |_| (Counting::new(&seen, u64::MAX), handler));
    text(&started.map(drop).unwrap_err())
}

#[tokio::test]
async fn calls_over_a_unix_socket_are_answered_by_any_shard() {
    let folder = Folder::new("tcp-unix-calls");
    let path = folder.path().join("work.sock");
    let stage = stage(&ServerConfig { shards: 2, ..at(&path) });
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for _ in 0..8 {
        let machine = Free(stage.seen.clone());
        let client = RpcClient::connect(stage.server.address(), machine, ClientConfig::default()).await.unwrap();
        assert_eq!(client.call(b"hello", CallOptions::default()).await.unwrap().payload, b"hello");
    }
    stage.server.stop().unwrap();
    assert!(!path.exists(), "a server takes its socket with it");
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
    let folder = Folder::new("tcp-unix-stale");
    let path = folder.path().join("work.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "as a process leaves it that was killed");
    let stage = unix_stage(&path);
    let error = refused(&at(&path));
    assert!(error.contains("a server listens there; stop it, or choose another path"), "{error}");
    stage.server.stop().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_server_leaves_the_socket_of_the_next_one_alone() {
    let folder = Folder::new("tcp-unix-next");
    let path = folder.path().join("work.sock");
    let stage = unix_stage(&path);
    fs::remove_file(&path).unwrap();
    let next = unix_stage(&path);
    stage.server.stop().unwrap();
    assert!(path.exists());
    next.server.stop().unwrap();
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let folder = Folder::new("tcp-unix-errors");
    let file = folder.path().join("notes.txt");
    fs::write(&file, "mine").unwrap();
    let error = refused(&at(&file));
    assert!(error.contains("no socket is there; choose another path, or remove it"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let nowhere = folder.path().join("none/work.sock");
    let error = refused(&at(&nowhere));
    assert!(error.starts_with("cannot listen at unix:") && error.contains("no such socket or folder"), "{error}");
    let connect = async |path: &Path| {
        let address = Address::Unix(path.to_owned());
        let connected = RpcClient::connect(address, Free(Arc::default()), ClientConfig::default()).await;
        text(&connected.map(drop).unwrap_err())
    };
    assert!(connect(&nowhere).await.contains("start the server first"));
    let stale = folder.path().join("stale.sock");
    drop(UnixListener::bind(&stale).unwrap());
    assert!(connect(&stale).await.contains("the server that made the socket has gone"));
}
