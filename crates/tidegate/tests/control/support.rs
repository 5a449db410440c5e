//! Real brokers and a real control, with publishers and consumers on sockets.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tidegate_core::{Instant, Rate};
use tidegate_runtime::clock;

/// For everything that takes some seconds; far more than it needs on a machine with other work.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);
pub(crate) const CONTRACT: (u64, u64) = (1_000, 60);

pub(crate) fn wait(ms: u64) {
    // A thread that only waits.
    std::thread::park_timeout(Duration::from_millis(ms));
}

pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began: Instant = clock::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock::now().since(began) < PATIENCE, "never {what}");
        wait(100);
    }
}

pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Self(std::env::temp_dir().join(format!("tidegate-control-{name}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir_all(&folder.0).expect("a folder for temporary files");
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that says on its first lines where it listens.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) lines: Vec<String>,
}

impl Process {
    pub(crate) fn start(folder: &Path, args: &[&str], count: usize) -> Self {
        let log = fs::File::options().create(true).append(true).open(folder.join("log")).expect("a log file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(args).current_dir(folder).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let lines: Vec<String> = lines.take(count).map(|line| line.expect("a line of text")).collect();
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert_eq!(lines.len(), count, "{}", log());
        Self { child, lines }
    }

    /// What stands behind `name` on its line.
    pub(crate) fn address(&self, name: &str) -> String {
        let line =
            self.lines.iter().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{:?}", self.lines));
        line.trim().trim_start_matches("http://").to_owned()
    }

    /// Sends `signal`, after which it is to end.
    pub(crate) fn signal(mut self, signal: rustix::process::Signal) -> Option<i32> {
        self.kick(signal);
        self.child.wait().expect("it ends").code()
    }

    /// Sends `signal`, after which it runs on.
    pub(crate) fn kick(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).expect("it runs");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status and the body of the answer to one request.
pub(crate) fn ask(address: &str, request: &str, token: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers in text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    (status, answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

pub(crate) fn read(address: &str, path: &str) -> Value {
    let (status, body) = ask(address, &format!("GET {path}"), "-", "");
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
}

pub(crate) struct Broker {
    pub(crate) process: Process,
    pub(crate) nsq: String,
    pub(crate) admin: String,
}

impl Broker {
    pub(crate) fn start(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("the folder is ours");
        let config = "[broker]\ntcp_address = \"127.0.0.1:0\"\nhttp_address = \"\"\ndata_path = \"data\"\nshards = 1\n\
                      [admin]\naddress = \"127.0.0.1:0\"\n[console]\naddress = \"\"\n";
        fs::write(folder.join("tidegate.toml"), config).expect("the folder is ours");
        let process = Process::start(folder, &["up"], 2);
        let (nsq, admin) = (process.address("NSQ"), process.address("admin"));
        Self { process, nsq, admin }
    }

    /// Its part of the topic: revision, rate and burst.
    pub(crate) fn part(&self) -> Option<(u64, Rate, u64)> {
        let parts = read(&self.admin, "/api/v1/parts");
        let part = parts["parts"].as_array()?.iter().find(|part| part["topic"] == "orders")?;
        let rate = part["rate"].as_str()?.parse().expect("a rate");
        Some((part["revision"].as_u64()?, rate, part["burst"].as_u64()?))
    }
}

pub(crate) fn sum(brokers: &[&Broker]) -> (f64, u64) {
    let parts: Vec<_> = brokers.iter().filter_map(|broker| broker.part()).collect();
    (parts.iter().map(|(_, rate, _)| rate.as_per_s()).sum(), parts.iter().map(|(.., burst)| burst).sum())
}

/// The whole contract, but for billionths of the rate.
pub(crate) fn until_whole(brokers: &[&Broker]) {
    until("the whole contract", || {
        let (rate, burst) = sum(brokers);
        (burst == CONTRACT.1 && (rate - 1_000.0).abs() < 0.001).then_some(())
    });
}

/// A connection of NSQ with a thread of its own, ended when dropped.
pub(crate) struct Client {
    stop: Arc<AtomicBool>,
    socket: TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Publishes `rate` messages a second.
    pub(crate) fn publish(broker: &str, name: &str, rate: u32) -> Self {
        Self::spawn(connect(broker, name), move |stream, stop| {
            let began = clock::now();
            for number in 1_u32.. {
                let due = began + Duration::from_secs(1) * number / rate;
                while !stop.load(Ordering::Relaxed) && clock::now() < due {
                    std::thread::park_timeout(due.since(clock::now()));
                }
                // A broker that was killed takes nothing more.
                let sent = stream.write_all(b"PUB orders\n\0\0\0\x05hello");
                if stop.load(Ordering::Relaxed) || sent.is_err() || next_frame(stream).is_none() {
                    return;
                }
            }
        })
    }

    /// Consumes a channel and finishes everything at once.
    pub(crate) fn consume(broker: &str) -> Self {
        Self::spawn(connect(broker, "consumer"), |stream, stop| {
            stream.write_all(b"SUB orders billing\nRDY 100\n").expect("it reads");
            while !stop.load(Ordering::Relaxed) {
                let Some((kind, body)) = next_frame(stream) else { return };
                let answer = match kind {
                    2 => [b"FIN ", &body[10..26], b"\n"].concat(),
                    0 if body == b"_heartbeat_" => b"NOP\n".to_vec(),
                    _ => continue,
                };
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
        })
    }

    pub(crate) fn spawn(
        mut stream: TcpStream,
        work: impl FnOnce(&mut TcpStream, &AtomicBool) + Send + 'static,
    ) -> Self {
        let socket = stream.try_clone().expect("a file to spare");
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        Self { stop, socket, thread: Some(std::thread::spawn(move || work(&mut stream, &seen))) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It may wait for a message; the broker may be gone.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

pub(crate) fn connect(broker: &str, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(broker).expect("it listens");
    let identify = format!("{{\"client_id\":\"{name}\",\"hostname\":\"h\",\"heartbeat_interval\":60000}}");
    let length = u32::try_from(identify.len()).expect("short").to_be_bytes();
    stream.write_all(&[b"  V2IDENTIFY\n", &length[..], identify.as_bytes()].concat()).expect("it reads");
    next_frame(&mut stream).expect("it answers");
    stream
}

/// The next frame, its kind and its data; `None` if the connection has ended.
pub(crate) fn next_frame(stream: &mut TcpStream) -> Option<(u32, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head).ok()?;
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let mut body = vec![0; usize::try_from(number(0)).expect("short") - 4];
    stream.read_exact(&mut body).ok()?;
    Some((number(4), body))
}

/// The configuration of control over brokers by their names: `head` is more of its own keys, `topic` of the topic's.
pub(crate) fn configure(folder: &Path, brokers: &[(&str, &Broker)], head: &str, topic: &str) {
    let node = |(name, broker): &(&str, &Broker)| {
        format!(
            "{{ name = \"{name}\", admin = \"http://{}\", nsq = \"{}\", mcap = \"500/s\", token_file = \"{name}/data/admin.token\" }}",
            broker.admin, broker.nsq
        )
    };
    let nodes: Vec<String> = brokers.iter().map(node).collect();
    let config = format!(
        "[control]\nlisten = \"127.0.0.1:0\"\nlease = \"3s\"\nstore = \"placement.redb\"\ntoken_file = \"control.token\"\n\
         {head}\nnodes = [ {} ]\n[[control.topic]]\nname = \"orders\"\nrate = \"1000/s\"\nburst = 60\nslo = \"p99 <= 2s\"\n\
         channels = [\"billing\"]\nadapt = {{ period = \"1s\", window = \"3s\" }}\n{topic}\n",
        nodes.join(", ")
    );
    fs::write(folder.join("tidegate.toml"), config).expect("the folder is ours");
}

/// Rounds of two seconds, as the paper plans.
pub(crate) const ROUNDS: &str = "planner = \"paper\"\nround = \"2s\"";

pub(crate) struct Control {
    pub(crate) process: Process,
    pub(crate) address: String,
}

impl Control {
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_with(folder, 3)
    }

    /// Over so many brokers.
    pub(crate) fn start_with(folder: &Path, brokers: usize) -> Self {
        let process = Process::start(folder, &["control"], 3 + brokers);
        let address = process.address("control");
        Self { process, address }
    }

    pub(crate) fn topic(&self) -> Value {
        read(&self.address, "/api/v1/control")["topics"][0].clone()
    }

    pub(crate) fn until_stands(&self) -> Value {
        until("a plan that stands", || Some(self.topic()).filter(|topic| topic["phase"] == "stands"))
    }

    pub(crate) fn tidegate(&self, folder: &Path, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(args).args(["--control", &self.address]).current_dir(folder);
        let output = command.output().expect("the binary starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    }
}
