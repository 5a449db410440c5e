//! Who pays for what a connection of HTTP/2 to a server does. The only test of its process, whose threads it looks at.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Running, send, talk};
use tidegate_runtime::clock;

/// Uploads that are always under way.
const UPLOADS: usize = 16;
/// Bytes of uploads between two looks at the time that they took, and how many looks there are at most.
const BETWEEN: u64 = 16 << 20;
const LOOKS: usize = 12;

/// A server of HTTP/2 by prior knowledge that reads all bodies and counts their bytes.
fn sink() -> (tokio::runtime::Runtime, SocketAddr, Arc<AtomicU64>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let (address, read) = (listener.local_addr().unwrap(), Arc::<AtomicU64>::default());
    let count = Arc::clone(&read);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let read = Arc::clone(&count);
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let read = Arc::clone(&read);
                async move {
                    let mut body = request.into_body();
                    while let Some(Ok(frame)) = body.frame().await {
                        read.fetch_add(frame.data_ref().map_or(0, Bytes::len) as u64, Ordering::SeqCst);
                    }
                    Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    (runtime, address, read)
}

/// Nanoseconds of processor time that the proxy's one thread has used.
fn thread_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    // Others may end meanwhile.
    let name = |task: &Path| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    let thread = tasks.into_iter().find(|task| name(task).trim() == "proxy-0").unwrap();
    let used = std::fs::read_to_string(thread.join("schedstat")).unwrap();
    used.split(' ').next().unwrap().parse().unwrap()
}

/// Nanoseconds of each second that the uploads' tenant was last charged with.
fn charged_ns(proxy: &Running) -> f64 {
    let snapshot = proxy.proxy().snapshot();
    let tenant = snapshot.tenants.iter().find(|tenant| tenant.name == "loud");
    let time = tenant.and_then(|tenant| tenant.resources.iter().find(|resource| resource.name == "event_time"));
    time.map_or(0.0, |time| time.used)
}

#[test]
fn what_uploads_to_a_server_of_http2_take_of_the_thread_is_their_tenants() {
    let (_runtime, address, read) = sink();
    let proxy = Running::start(&format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{address}\"]\n\
         protocol = \"h2c\"\n[[proxy.route]]\nupstream = \"u\"\n[proxy]\nthreads = 1\noverflow_threads = 0\n\
         [proxy.tenants]\nby = \"host\"\n[[proxy.tenant]]\nname = \"loud\"\n[[proxy.tenant]]\nname = \"quiet\"\n"
    ));
    let mut quiet = proxy.connect();
    let ask = |quiet: &mut TcpStream| {
        assert_eq!(talk(quiet, "GET / HTTP/1.1\r\nHost: quiet\r\n\r\n").status, 200);
    };
    // Whoever answers has its name.
    ask(&mut quiet);
    let loud: Vec<_> = (0..UPLOADS).map(|_| proxy.connect()).collect();
    let senders: Vec<_> = loud
        .iter()
        .map(|client| {
            let mut client = client.try_clone().unwrap();
            std::thread::spawn(move || {
                send(&mut client, "POST / HTTP/1.1\r\nHost: loud\r\nTransfer-Encoding: chunked\r\n\r\n");
                let chunks = format!("400\r\n{}\r\n", "x".repeat(0x400)).repeat(16);
                while client.write_all(chunks.as_bytes()).is_ok() {}
            })
        })
        .collect();
    let looks = (0..LOOKS).map(|_| {
        let (begun, used, sum) = (clock::now(), thread_ns(), read.load(Ordering::SeqCst));
        while read.load(Ordering::SeqCst) < sum + BETWEEN {
            ask(&mut quiet);
        }
        let used = Duration::from_nanos(thread_ns() - used).as_secs_f64();
        (charged_ns(&proxy), 1e9 * used / clock::now().since(begun).as_secs_f64())
    });
    // What is charged is of the last tenth of a second, in which another program may have had the processor.
    let looks: Vec<_> = looks.collect();
    let most = |&&(charged, used): &&(f64, f64)| charged > used / 2.0;
    assert!(looks.iter().filter(most).count() > LOOKS / 2, "{looks:?}");
    for client in loud {
        client.shutdown(Shutdown::Both).unwrap();
    }
    for sender in senders {
        sender.join().unwrap();
    }
}
