//! Proxies with one limit, and control that divides it among them.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_control::config::{Config as ControlConfig, Lend};
use tidegate_control::io::kept::Leader;
use tidegate_control::io::{Control, Setup};
use tidegate_core::limit::{Limit, split};
use tidegate_proxy::config::Config;
use tidegate_proxy::io::{Proxy, admin};
use tidegate_runtime::access::{Guard, Reach, Token};
use tidegate_runtime::clock;
use tidegate_runtime::config::Document;
use tidegate_runtime::store::{ControlStore, EmbeddedStore, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const TOKEN: &str = "proxy-token";

/// A proxy that runs, and its admin API.
pub(crate) struct Node {
    /// With what its admin API runs on; `None` once it was killed.
    running: Option<(Proxy, Runtime)>,
    /// Where clients reach it.
    pub(crate) address: SocketAddr,
    /// `host:port` of its admin API.
    pub(crate) admin: String,
    /// Where other proxies' datagrams reach it.
    pub(crate) lend: String,
}

/// Proxies of one limit.
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) limit: Limit,
    control: Option<Control>,
    folder: PathBuf,
}

impl World {
    /// So many proxies with the same file, in which `limit` is divided. Nothing passes yet.
    pub(crate) async fn start(proxies: usize, limit: Limit, name: &str) -> Self {
        let upstream = upstream();
        let mut nodes = Vec::new();
        for _ in 0..proxies {
            nodes.push(node(&upstream, limit).await);
        }
        let folder = std::env::temp_dir().join(format!("tidegate-divided-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Self { nodes, limit, control: None, folder }
    }

    /// An even part for each proxy, for an hour.
    pub(crate) async fn split_evenly(&self) {
        let parts = split::evenly(self.limit, self.nodes.len()).expect("a token of depth for each");
        for (node, part) in self.nodes.iter().zip(parts) {
            let part = json!({ "limit": "route shop", "rate_per_s": part.rate.to_string(), "burst": part.burst });
            let until_us = clock::now().as_nanos() / 1_000 + 3_600_000_000;
            let body = json!({
                "revision": 1, "lease_ms": 3_600_000, "until_us": until_us, "on_lapse": "closed", "parts": [part],
            });
            let (status, answer) = ask(&node.admin, "PUT /api/v1/parts", &body.to_string()).await;
            assert_eq!(status, 200, "{answer}");
        }
    }

    /// Control that divides the limit by demand, over a window of so many seconds; with `lend` proxies lend each other tokens.
    pub(crate) fn divide(&mut self, window_s: u32, lend: Lend) {
        let node = |(number, node): (usize, &Node)| {
            format!("{{ name = \"p{number}\", admin = \"http://{}\", lend = \"{}\" }}", node.admin, node.lend)
        };
        let proxies: Vec<String> = self.nodes.iter().enumerate().map(node).collect();
        let text = format!(
            "[control]\nlease = \"4s\"\nproxies = [ {} ]\n[[control.limit]]\nroute = \"shop\"\nrate = \"{}\"\nburst = {}\n\
             lend = \"{}\"\non_store_loss = \"closed\"\nadapt = {{ window = \"{window_s}s\" }}\n",
            proxies.join(", "),
            self.limit.rate,
            self.limit.burst,
            lend.word()
        );
        let config = ControlConfig::from_document(&Document::new("control.toml", text)).expect("it is sound");
        let store =
            EmbeddedStore::open(self.folder.join("control.redb"), Options::default()).expect("a folder of ours");
        self.control = Some(Control::start(Setup {
            config: Arc::new(config),
            store: Arc::new(store) as Arc<dyn ControlStore>,
            tokens: vec![Some(TOKEN.to_owned()); self.nodes.len()],
            me: Leader { name: "control".to_owned(), admin: "127.0.0.1:1".to_owned() },
        }));
    }

    /// What control says of the limit.
    pub(crate) fn view(&self) -> Option<tidegate_control::io::division::DivisionView> {
        self.control.as_ref()?.shared().divisions().first().map(tidegate_control::io::division::DivisionHandle::view)
    }

    /// A proxy dies with everything that it knows, its admin API first.
    pub(crate) async fn kill(&mut self, number: usize) {
        if let Some((proxy, runtime)) = self.nodes[number].running.take() {
            runtime.shutdown_background();
            // It waits for its threads.
            tokio::task::spawn_blocking(move || drop(proxy)).await.expect("a proxy ends");
        }
    }

    /// Ends everything.
    pub(crate) async fn stop(mut self) {
        if let Some(control) = self.control.take() {
            control.stop().await;
        }
        for number in 0..self.nodes.len() {
            self.kill(number).await;
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn node(upstream: &SocketAddr, limit: Limit) -> Node {
    let text = format!(
        "[proxy]\nlend_address = \"127.0.0.1:0\"\n[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[proxy.limits]\nmode = \"off\"\n[[proxy.upstream]]\nname = \"u\"\n\
         servers = [\"{upstream}\"]\n[[proxy.route]]\nname = \"shop\"\nupstream = \"u\"\n\
         rate_limit = {{ rate = \"{}\", burst = {}, divided = true }}\n",
        limit.rate, limit.burst
    );
    let config = Config::from_document(&Document::new("proxy.toml", text), 1).expect("it is sound");
    let proxy = tokio::task::spawn_blocking(move || Proxy::start(config)).await.expect("it does not panic");
    let proxy = proxy.expect("it starts");
    let guard = Guard { token: Some(Token::new(TOKEN)), reach: Reach::Loopback };
    let router = admin::router(proxy.source(), guard);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a thread");
    let bound = runtime.spawn(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    });
    let admin = bound.await.expect("it does not panic");
    let (_, said) = ask(&admin, "GET /api/v1/node", "").await;
    let lend = said["lend_address"].as_str().expect("it lends").to_owned();
    Node { address: proxy.addresses()[0], running: Some((proxy, runtime)), admin, lend }
}

/// The status of the answer to one request, and its body.
pub(crate) async fn ask(address: &str, line: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers in text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// Answers every request with two letters, until the process ends.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone()?);
                let mut stream = stream;
                let mut line = String::new();
                while reader.read_line(&mut line)? > 0 {
                    if line == "\r\n" {
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
                    }
                    line.clear();
                }
                std::io::Result::Ok(())
            });
        }
    });
    address
}
