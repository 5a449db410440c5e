//! The server behind the proxies: a fixed answer, as fast as one thread can give it.
//!
//! A request's query may ask for something else: `bytes=N` for the size of the answer's body, `delay_ms=N` for the time
//! before it, `work_us=N` for time on the CPU before it. Its body is read and thrown away.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};
use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::connection::is_later;
use super::framing::{BadMessage, Framing, Part};
use crate::error::LoadError;
use crate::load_thread::{LoadThread, StopSign};
use crate::poll::{Interest, Poller, allow_open_files, prepare_thread, prioritise_thread, put_first};

const LISTENER: u64 = u64::MAX - 1;
/// Connections taken in one go.
const ACCEPT_MAX: usize = 64;
/// Connections at once; more are closed at once.
const CONNECTIONS_MAX: usize = 16_384;
/// Bodies longer than this are written from one block again and again, one in a turn: a long answer holds up nobody's short
/// one.
const BLOCK_BYTES: usize = 64 * 1024;
const READ_BYTES: usize = 64 * 1024;

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamConfig {
    /// Where it listens; port 0 is any free one.
    pub address: SocketAddr,
    /// Bytes of an answer's body.
    pub body_bytes: u64,
    /// Time before each answer.
    pub delay_ms: u64,
    /// Time on the CPU before each answer.
    pub work_us: u64,
    /// Requests that are delayed at once; the next ones wait in order. 0 for as many as come.
    pub workers: u32,
    /// CPU to bind it to; none leaves it to the kernel.
    pub cpu: Option<u32>,
    /// Niceness of its thread, -20 to 19.
    pub nice: i32,
    /// Its thread goes before all of other users (`SCHED_FIFO`): what stands behind a source that is measured beside noise
    /// from the same CPU. Only for who may.
    pub real_time: bool,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            body_bytes: 128,
            delay_ms: 0,
            work_us: 0,
            workers: 0,
            cpu: None,
            nice: 0,
            real_time: false,
        }
    }
}

/// A running server; it ends when this is dropped.
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    thread: LoadThread,
}

impl Upstream {
    /// Starts one.
    ///
    /// # Errors
    /// [`LoadError::Os`] if the address cannot be listened on.
    pub fn start(config: UpstreamConfig) -> Result<Self, LoadError> {
        allow_open_files(CONNECTIONS_MAX)?;
        let listener = open(config.address).map_err(LoadError::os("listen"))?;
        let address = listener.local_addr().map_err(LoadError::os("listen"))?;
        let poller = Poller::new()?;
        let thread = LoadThread::start("upstream", move |stop| Server::new(config, listener, poller)?.run(&stop))?;
        Ok(Self { address, thread })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it fails, which is as a rule for ever.
    ///
    /// # Errors
    /// [`LoadError`] for what the machine refused.
    pub fn wait(mut self) -> Result<(), LoadError> {
        self.thread.join()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.thread.tell_to_stop();
        // Wakes the thread, which looks again then. If it has gone, nobody takes the connection.
        drop(TcpStream::connect(self.address));
    }
}

/// As `TcpListener::bind`, with room for a burst of connections.
fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, 4_096)?;
    Ok(TcpListener::from(socket))
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    bytes: u64,
    delay_ms: u64,
    work_us: u64,
    is_head: bool,
    is_last: bool,
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    framing: Framing,
    /// What came after the request under way.
    input: Vec<u8>,
    asked: Option<Asked>,
    /// The answer's head and the beginning of its body; what follows of the body.
    out: Vec<u8>,
    written: usize,
    left: u64,
    is_writing: bool,
    is_waiting: bool,
    /// The last answer is under way.
    is_over: bool,
    serial: u32,
}

struct Server {
    config: UpstreamConfig,
    listener: TcpListener,
    poller: Poller,
    clients: Vec<Option<Client>>,
    free: Vec<usize>,
    /// Answers that are delayed.
    timers: BinaryHeap<Reverse<(Instant, usize, u32)>>,
    /// Requests that wait for a worker, each of another client.
    line: VecDeque<(usize, u32)>,
    serial: u32,
    scratch: Vec<u8>,
    block: Vec<u8>,
}

impl Server {
    fn new(config: UpstreamConfig, listener: TcpListener, poller: Poller) -> Result<Self, LoadError> {
        prepare_thread(config.cpu)?;
        prioritise_thread(config.nice)?;
        if config.real_time {
            put_first()?;
        }
        poller.add(&listener, LISTENER).map_err(LoadError::os("watch a socket"))?;
        Ok(Self {
            config,
            listener,
            poller,
            clients: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            line: VecDeque::new(),
            serial: 0,
            scratch: vec![0; READ_BYTES],
            block: vec![b'x'; BLOCK_BYTES],
        })
    }

    fn run(mut self, stop: &StopSign) -> Result<(), LoadError> {
        while !stop.is_up() {
            let until = self.timers.peek().map_or(Instant::MAX, |Reverse((at, ..))| *at);
            self.poller.wait(until, 0)?;
            for index in 0.. {
                let Some(ready) = self.poller.ready(index) else { break };
                if ready.token == LISTENER {
                    self.accept()?;
                } else {
                    self.on_ready(usize::try_from(ready.token).expect("a token of ours"), ready.readable);
                }
            }
            self.on_timeout(clock::now());
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), LoadError> {
        for _ in 0..ACCEPT_MAX {
            // Without a free descriptor the rest wait in the kernel, until some client leaves.
            let Ok((stream, _)) = self.listener.accept() else { break };
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            let index = self.free.pop().unwrap_or(self.clients.len());
            if ready.is_err() || index >= CONNECTIONS_MAX {
                continue;
            }
            if index == self.clients.len() {
                self.clients.push(None);
            }
            self.poller.add(&stream, index as u64).map_err(LoadError::os("watch a socket"))?;
            self.serial = self.serial.wrapping_add(1);
            self.clients[index] = Some(Client::new(stream, self.serial));
        }
        Ok(())
    }

    fn on_ready(&mut self, index: usize, readable: bool) {
        let Some(client) = self.clients.get_mut(index).and_then(Option::as_mut) else { return };
        let is_open = (!readable || client.read(&mut self.scratch)) && self.serve(index);
        if !is_open {
            self.close(index);
        }
    }

    /// Answers what has come; false if the connection is over.
    fn serve(&mut self, index: usize) -> bool {
        let Some(client) = self.clients[index].as_mut() else { return true };
        loop {
            match client.flush(&self.block) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return false,
            }
            if client.is_waiting {
                break;
            }
            match client.next(&self.config) {
                Ok(Some(asked)) if asked.delay_ms > 0 => {
                    client.is_waiting = true;
                    self.line.push_back((index, client.serial));
                }
                Ok(Some(asked)) => client.answer(asked, &self.block),
                Ok(None) => break,
                Err(BadMessage) => return false,
            }
        }
        self.work(clock::now());
        let Some(client) = self.clients[index].as_mut() else { return true };
        let wants_write = client.written < client.out.len() || client.left > 0;
        if wants_write != client.is_writing {
            client.is_writing = wants_write;
            let interest = if wants_write { Interest::ReadWrite } else { Interest::Read };
            return self.poller.modify(&client.stream, index as u64, interest).is_ok();
        }
        true
    }

    /// Requests that wait get the workers that are free. Those whose clients went keep theirs, as a service that does not
    /// look would.
    fn work(&mut self, now: Instant) {
        let workers = if self.config.workers == 0 { usize::MAX } else { self.config.workers as usize };
        while self.timers.len() < workers
            && let Some((index, serial)) = self.line.pop_front()
        {
            let client = self.clients[index].as_ref().filter(|client| client.serial == serial);
            if let Some(asked) = client.and_then(|client| client.asked) {
                self.timers.push(Reverse((now + Duration::from_millis(asked.delay_ms), index, serial)));
            }
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        while self.timers.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, index, serial))) = self.timers.pop() else { break };
            let Some(client) = self.clients[index].as_mut().filter(|client| client.serial == serial) else { continue };
            client.is_waiting = false;
            if let Some(asked) = client.asked {
                client.answer(asked, &self.block);
            }
            if !self.serve(index) {
                self.close(index);
            }
        }
        self.work(now);
    }

    fn close(&mut self, index: usize) {
        if self.clients[index].take().is_some() {
            self.free.push(index);
        }
    }
}

impl Client {
    fn new(stream: TcpStream, serial: u32) -> Self {
        Self {
            stream,
            framing: Framing::new(),
            input: Vec::new(),
            asked: None,
            out: Vec::new(),
            written: 0,
            left: 0,
            is_writing: false,
            is_waiting: false,
            is_over: false,
            serial,
        }
    }

    /// Reads once; false if the client has gone.
    fn read(&mut self, scratch: &mut [u8]) -> bool {
        // A client that sends on without reading answers waits in its own socket.
        if self.input.len() > READ_BYTES {
            return true;
        }
        match self.stream.read(scratch) {
            Ok(0) => false,
            Ok(bytes) => {
                self.input.extend_from_slice(&scratch[..bytes]);
                true
            }
            Err(error) => is_later(&error),
        }
    }

    /// The next whole request.
    fn next(&mut self, config: &UpstreamConfig) -> Result<Option<Asked>, BadMessage> {
        if self.is_over {
            return Err(BadMessage);
        }
        let mut asked = None;
        let read = self.framing.read(&self.input, |head| {
            let (found, part) = parse(head, config)?;
            asked = Some(found);
            Ok(part)
        })?;
        self.input.drain(..read.used);
        self.asked = asked.or(self.asked);
        Ok(if read.is_complete { self.asked } else { None })
    }

    fn answer(&mut self, asked: Asked, block: &[u8]) {
        if asked.work_us > 0 {
            let until = clock::now() + Duration::from_micros(asked.work_us);
            while clock::now() < until {}
        }
        self.is_over = asked.is_last;
        let connection = if asked.is_last { "Connection: close\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{connection}\r\n",
            asked.bytes
        );
        self.out.extend_from_slice(head.as_bytes());
        let body = if asked.is_head { 0 } else { asked.bytes };
        let first = usize::try_from(body).unwrap_or(usize::MAX).min(block.len());
        self.out.extend_from_slice(&block[..first]);
        self.left = body - first as u64;
    }

    /// Writes what the socket takes, a block at most and what was left of the last; true if that is all, false if the rest
    /// must wait.
    fn flush(&mut self, block: &[u8]) -> io::Result<bool> {
        for turn in 0.. {
            while self.written < self.out.len() {
                match self.stream.write(&self.out[self.written..]) {
                    Ok(bytes) => self.written += bytes,
                    Err(error) if is_later(&error) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            self.out.clear();
            self.written = 0;
            if self.left == 0 {
                // Kept when small: most connections see many answers of one size.
                return Ok(true);
            }
            if turn > 0 {
                break;
            }
            let next = usize::try_from(self.left).unwrap_or(usize::MAX).min(block.len());
            self.out.extend_from_slice(&block[..next]);
            self.left -= next as u64;
        }
        Ok(false)
    }
}

/// What a request asks for, and what follows its head.
fn parse(head: &str, config: &UpstreamConfig) -> Result<(Asked, Part), BadMessage> {
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let mut words = first.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(version)) = (method, target, version) else { return Err(BadMessage) };
    let mut asked = Asked {
        bytes: config.body_bytes,
        delay_ms: config.delay_ms,
        work_us: config.work_us,
        is_head: method == "HEAD",
        is_last: version != "HTTP/1.1",
    };
    let query = target.split_once('?').map_or("", |(_, query)| query);
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let place = match key {
            "bytes" => &mut asked.bytes,
            "delay_ms" => &mut asked.delay_ms,
            "work_us" => &mut asked.work_us,
            _ => continue,
        };
        *place = value.parse().map_err(|_| BadMessage)?;
    }
    let mut part = Part::Length(0);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            part = Part::Length(value.parse().map_err(|_| BadMessage)?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            part = Part::ChunkSize;
        } else if name.eq_ignore_ascii_case("connection") {
            asked.is_last |= value.eq_ignore_ascii_case("close");
            asked.is_last &= !value.eq_ignore_ascii_case("keep-alive");
        }
    }
    Ok((asked, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_ask_for_something_else() {
        let config = UpstreamConfig::default();
        let (asked, part) = parse("GET /x?bytes=5&delay_ms=7 HTTP/1.1\r\nHost: a\r\n\r\n", &config).unwrap();
        assert_eq!((asked.bytes, asked.delay_ms, asked.is_last, part), (5, 7, false, Part::Length(0)));
        let (asked, part) = parse("POST / HTTP/1.0\r\ncontent-length: 9\r\n\r\n", &config).unwrap();
        assert_eq!((asked.bytes, asked.is_last, part), (128, true, Part::Length(9)));
        assert_eq!(parse("GET /?bytes=x HTTP/1.1\r\n\r\n", &config).err(), Some(BadMessage));
    }
}
