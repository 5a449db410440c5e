//! A proxy, an upstream and clients on this machine.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

pub(crate) mod verifier;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tidegate_proxy::config::Config;
use tidegate_proxy::io::Proxy;
use tidegate_runtime::config::Document;

/// Longer than anything takes, shorter than anybody waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers with the request it got. Some paths have a meaning of their own.
pub(crate) struct Upstream {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    connections: AtomicUsize,
    answered: AtomicUsize,
    held: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Upstream {
    pub(crate) fn echo() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let weak = Arc::downgrade(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Some(state) = weak.upgrade() else { return };
                let Ok(stream) = stream else { return };
                state.connections.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || answer_all(stream, &state));
            }
        });
        Self { address, state }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Answers of which the last byte was given to the kernel.
    pub(crate) fn answered(&self) -> usize {
        self.state.answered.load(Ordering::SeqCst)
    }

    /// Until a request for `/held` is there.
    pub(crate) fn wait_for_held(&self) {
        let held = self.state.held.lock().unwrap();
        drop(self.state.changed.wait_timeout_while(held, PATIENCE, |held| !held.0).unwrap());
    }

    /// Answers it.
    pub(crate) fn release_held(&self) {
        self.state.held.lock().unwrap().1 = true;
        self.state.changed.notify_all();
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // The accepting thread sees that nobody is left, and closes the port.
        let address = self.address;
        let old = std::mem::take(&mut self.state);
        drop(old);
        drop(TcpStream::connect(address));
    }
}

fn answer_all(mut stream: TcpStream, state: &State) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    while let Some((head, body)) = read_message(&mut stream, &mut buffer) {
        let path = head.split(' ').nth(1).unwrap_or("").to_owned();
        let echo = format!("{head}{}", String::from_utf8_lossy(&body));
        let answer = match path.as_str() {
            "/never" => continue,
            "/204" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            "/chunked" => {
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"
                    .to_owned()
            }
            "/socket" => {
                let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                stream.write_all(switch.as_bytes()).unwrap();
                stream.write_all(&buffer).unwrap();
                let mut bytes = [0; 1024];
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..read]).unwrap();
                }
                return;
            }
            "/held" => {
                let mut held = state.held.lock().unwrap();
                held.0 = true;
                state.changed.notify_all();
                drop(state.changed.wait_timeout_while(held, PATIENCE, |held| !held.1).unwrap());
                "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone".to_owned()
            }
            _ if head.starts_with("HEAD") => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", echo.len()),
            _ => format!("HTTP/1.1 200 OK\r\nServer: echo\r\nContent-Length: {}\r\n\r\n{echo}", echo.len()),
        };
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
        state.answered.fetch_add(1, Ordering::SeqCst);
    }
}

/// A proxy that runs.
pub(crate) struct Running {
    proxy: Proxy,
}

pub(crate) fn config(text: &str) -> Config {
    Config::from_document(&Document::new("tidegate.toml", text), 1).unwrap()
}

fn before(address: &str, more: &str) -> String {
    format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{address}\"]\n\
         [[proxy.route]]\nupstream = \"u\"\n{more}"
    )
}

impl Running {
    pub(crate) fn start(text: &str) -> Self {
        Self { proxy: Proxy::start(config(text)).unwrap() }
    }

    /// With one route to `upstream`, and `more` of a configuration.
    pub(crate) fn before(upstream: &Upstream, more: &str) -> Self {
        Self::before_address(&upstream.address(), more)
    }

    pub(crate) fn before_address(address: &str, more: &str) -> Self {
        Self::start(&before(address, more))
    }

    pub(crate) fn reload_before(&self, address: &str) {
        self.reload_with(address, "");
    }

    /// The same with `more` of a configuration.
    pub(crate) fn reload_with(&self, address: &str, more: &str) {
        self.proxy.reload(config(&before(address, more))).unwrap();
    }

    pub(crate) fn reload(&self, text: &str) {
        self.proxy.reload(config(text)).unwrap();
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Until the proxy's own figures are so.
    pub(crate) fn wait_until(&self, so: impl Fn(&tidegate_proxy::io::admin::status::Live) -> bool) {
        let source = self.proxy.source();
        while !so(&source.live()) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.proxy.addresses()[0]
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address())
    }

    pub(crate) fn drain(self) -> bool {
        self.proxy.drain()
    }
}

/// Clients who ask all the time, of which every request has to be served: one on new connections, one on a kept one.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    /// `request` is asked for at `address`.
    pub(crate) fn start(address: SocketAddr, request: &str) -> Self {
        let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let client = |kept: bool| {
            let (stop, asked, request) = (Arc::clone(&stop), Arc::clone(&asked), request.to_owned());
            std::thread::spawn(move || {
                let mut open = None;
                while !stop.load(Ordering::SeqCst) {
                    let mut stream = open.take().unwrap_or_else(|| connect(address));
                    let answer = talk(&mut stream, &request);
                    assert_eq!(answer.status, 200, "{}", answer.head);
                    open = Some(stream).filter(|_| kept && answer.header("connection") != Some("close"));
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        let clients = [false, true].map(client).into();
        Self { stop, asked, clients }
    }

    /// Until so many requests more were served.
    pub(crate) fn goes_on(&self, requests: usize) {
        let enough = self.asked.load(Ordering::SeqCst) + requests;
        while self.asked.load(Ordering::SeqCst) < enough {
            assert!(!self.clients.iter().any(std::thread::JoinHandle::is_finished), "a request failed");
            std::thread::yield_now();
        }
    }

    /// How many requests were served, which are all.
    pub(crate) fn stop(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.clients.into_iter().for_each(|client| client.join().unwrap());
        self.asked.load(Ordering::SeqCst)
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }
}

pub(crate) fn send(stream: &mut impl Write, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

/// Sends `text` and reads the answer.
pub(crate) fn talk(stream: &mut (impl Read + Write), text: &str) -> Answer {
    send(stream, text);
    read_answer(stream)
}

/// Sends `text` and reads an answer without a body, whatever its head says.
pub(crate) fn talk_head(stream: &mut (impl Read + Write), text: &str) -> Answer {
    send(stream, text);
    answer(read_head(stream), Vec::new())
}

pub(crate) fn read_answer(stream: &mut impl Read) -> Answer {
    let head = read_head(stream);
    let mut behind = Vec::new();
    let body = read_body(stream, &head, &mut behind);
    answer(head, body)
}

fn answer(head: String, body: Vec<u8>) -> Answer {
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head, body }
}

pub(crate) fn exactly(stream: &mut impl Read, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    stream.read_exact(&mut all).unwrap();
    all
}

/// Whether the other side ends the connection.
pub(crate) fn is_closed(stream: &mut impl Read) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// One byte after the other, so that nothing behind the head is taken.
pub(crate) fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap() == 0 {
            break;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn read_message(stream: &mut impl Read, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).ok().filter(|&read| read > 0)?;
        buffer.extend_from_slice(&bytes[..read]);
    };
    let rest = buffer.split_off(end);
    let head = String::from_utf8(std::mem::replace(buffer, rest)).unwrap();
    let body = read_body(stream, &head, buffer);
    Some((head, body))
}

/// The body that `head` announces; `buffer` was read already, and keeps what stands behind the body.
fn read_body(stream: &mut impl Read, head: &str, buffer: &mut Vec<u8>) -> Vec<u8> {
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    if lower.contains("transfer-encoding: chunked") {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(line(stream, buffer).trim(), 16).unwrap();
            let chunk = take(stream, buffer, size);
            body.extend_from_slice(&chunk);
            line(stream, buffer);
            if size == 0 {
                return body;
            }
        }
    }
    take(stream, buffer, length.unwrap_or(0))
}

fn take(stream: &mut impl Read, buffer: &mut Vec<u8>, len: usize) -> Vec<u8> {
    while buffer.len() < len {
        let mut bytes = vec![0; len - buffer.len()];
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "the body is cut");
        buffer.extend_from_slice(&bytes[..read]);
    }
    let rest = buffer.split_off(len);
    std::mem::replace(buffer, rest)
}

fn line(stream: &mut impl Read, buffer: &mut Vec<u8>) -> String {
    loop {
        if let Some(at) = buffer.iter().position(|&byte| byte == b'\n') {
            let rest = buffer.split_off(at + 1);
            return String::from_utf8(std::mem::replace(buffer, rest)).unwrap();
        }
        let byte = take_one(stream);
        buffer.push(byte);
    }
}

fn take_one(stream: &mut impl Read) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    byte[0]
}
