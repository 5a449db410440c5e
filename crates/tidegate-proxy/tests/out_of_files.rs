//! A proxy that starts without enough files. One test alone: the limit of open files is the process's.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_proxy::config::Config;
use tidegate_proxy::error::ProxyError;
use tidegate_proxy::io::Proxy;
use tidegate_runtime::config::Document;
use tidegate_runtime::process;

const THREADS: usize = 8;
const TEXT: &str = "[proxy]\noverflow_threads = 0\n[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n\
                    [[proxy.upstream]]\nname = \"u\"\nservers = [\"127.0.0.1:1\"]\n[[proxy.route]]\nupstream = \"u\"\n";

/// What waits for sockets, one for each thread.
fn polls() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("eventpoll")).count()
}

#[test]
fn a_proxy_starts_with_all_its_threads_or_says_why_not() {
    // A program has a runtime before it starts a proxy; with the first one of a process tokio opens what all share.
    let program = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = getrlimit(Resource::Nofile);
    let used = process::open_files().unwrap() as u64;
    let (mut refused, mut room) = (0, 0);
    let proxy = loop {
        let config = Config::from_document(&Document::new("t.toml", TEXT), THREADS).unwrap();
        setrlimit(Resource::Nofile, Rlimit { current: Some(used + room), ..limit }).unwrap();
        let started = Proxy::start(config);
        setrlimit(Resource::Nofile, limit).unwrap();
        match started {
            Ok(proxy) => break proxy,
            Err(error @ (ProxyError::Listen { .. } | ProxyError::Thread { .. })) => {
                let source = std::error::Error::source(&error).unwrap();
                let code = source.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
                assert_eq!(code, Some(rustix::io::Errno::MFILE.raw_os_error()), "{error}: {source}");
                refused += usize::from(matches!(error, ProxyError::Thread { .. }));
            }
            Err(error) => panic!("{error}"),
        }
        room += 1;
        assert!(room < 200, "so many files are enough");
    };
    assert!(refused > THREADS, "threads found no files");
    assert!(polls() > THREADS, "each of its threads runs");
    assert!(proxy.drain());
    drop(program);
}
