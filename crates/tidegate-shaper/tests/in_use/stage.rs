//! Devices as an agent is told of them, and TCP flows between namespaces of which every byte is checked.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_runtime::config::Document;
use tidegate_shaper::config::Config;
use tidegate_shaper::io::agent::Agent;
use tidegate_shaper::io::loader::loader;
use tidegate_shaper::io::netns::Namespace;

use crate::network::{DEVICE, Network};

/// The receiver's device.
pub(crate) const PEER: &str = "vb";
/// More than the share of one flow at 1 Gbit/s, and less than a receiver's own window when it has read for a while.
const HELD: u64 = 64 << 10;
/// What a flow sends: byte `i` is `i % PERIOD`, so that none that is lost, doubled or changed goes unnoticed.
const PERIOD: usize = 251;
const BLOCK: usize = PERIOD * 261;

/// The namespace of this name.
pub(crate) fn within(name: &str) -> Namespace {
    Namespace::open(Some(&PathBuf::from("/run/netns").join(name))).expect("it was made")
}

/// Waits until it is so, at most for a minute.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime of one thread");
    runtime.block_on(async {
        for _ in 0..6_000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it never came to be so: {what}");
    });
}

/// An agent with these devices, in TOML.
pub(crate) fn agent(devices: &str) -> Agent {
    let config = Config::from_document(&Document::new("t.toml", devices)).unwrap_or_else(|error| panic!("{error}"));
    Agent::start(config, loader()).unwrap_or_else(|error| panic!("{error:?}"))
}

impl Network {
    /// The sender's device in TOML, with more keys and one class for all, of this rate.
    pub(crate) fn device(&self, keys: &str, rate: &str) -> String {
        device(DEVICE, &self.sender, keys, rate)
    }

    /// A flow that sends as fast as it may, to `address` of the receiver.
    pub(crate) fn send(&self, address: &str) -> Flow {
        let (sender, receiver) = connect(&self.sender, &self.receiver, address);
        Flow::start(&self.sender, sender, receiver)
    }
}

/// A device in TOML, with more keys and one class for all, of this rate.
pub(crate) fn device(name: &str, namespace: &str, keys: &str, rate: &str) -> String {
    format!(
        "[[shaper.device]]\nname = \"{name}\"\nnamespace = \"/run/netns/{namespace}\"\ndefault_class = \"all\"\n{keys}\n\
         [[shaper.device.class]]\nname = \"all\"\nrate = \"{rate}\"\n"
    )
}

/// A connection from one namespace to `address` of another: both its ends.
pub(crate) fn connect(from: &str, to: &str, address: &str) -> (TcpStream, TcpStream) {
    let listener = within(to).run(|| TcpListener::bind((address, 0))).expect("a thread");
    let listener = listener.expect("the address is the receiver's");
    let to = listener.local_addr().expect("it listens");
    let sender = within(from).run(|| TcpStream::connect(to)).expect("a thread");
    (sender.expect("the receiver listens"), listener.accept().expect("it is connected").0)
}

/// A flow that goes on until it is finished.
pub(crate) struct Flow {
    namespace: String,
    to: SocketAddr,
    socket: TcpStream,
    stop: Arc<AtomicBool>,
    came: Arc<AtomicU64>,
    /// Locked while its receiver reads.
    reading: Arc<Mutex<()>>,
    sending: JoinHandle<u64>,
    receiving: JoinHandle<()>,
}

impl Flow {
    /// Sends from the one end of a connection, which is in `namespace`, to the other.
    pub(crate) fn start(namespace: &str, sender: TcpStream, receiver: TcpStream) -> Self {
        let (stop, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let reading = Arc::new(Mutex::new(()));
        let to = sender.peer_addr().expect("it is connected");
        let socket = sender.try_clone().expect("there is room for another file");
        let sending = thread::spawn({
            let stop = Arc::clone(&stop);
            move || send(sender, &stop)
        });
        let receiving = thread::spawn({
            let (came, reading) = (Arc::clone(&came), Arc::clone(&reading));
            move || receive(receiver, &came, &reading)
        });
        Self { namespace: namespace.to_owned(), to, socket, stop, came, reading, sending, receiving }
    }

    /// The window that its sender was given last, in bytes.
    pub(crate) fn window(&self) -> u64 {
        let port = format!(":{}", self.to.port());
        let arguments = ["netns", "exec", &self.namespace, "ss", "-tin", "dport", "=", &port];
        let output = Command::new("ip").args(arguments).output().expect("iproute2 has both");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let window = text.split_whitespace().find_map(|word| word.strip_prefix("snd_wnd:"));
        assert!(text.contains("cwnd:"), "the flow is not open: {text}");
        // One that is closed is not printed.
        window.map_or(0, |number| number.parse().expect("a number"))
    }

    /// Whether its window is that of a shaper.
    pub(crate) fn is_held(&self) -> bool {
        self.window() < HELD
    }

    /// Waits until so many more bytes have come.
    pub(crate) fn comes(&self, bytes: u64) {
        let wanted = self.came.load(Ordering::Relaxed) + bytes;
        until("the flow goes on", || {
            assert!(!self.receiving.is_finished(), "it was broken off, or a byte was wrong");
            self.came.load(Ordering::Relaxed) >= wanted
        });
    }

    /// Its receiver reads no more while this is held.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().expect("nobody panics with it")
    }

    /// Breaks it off: whatever was sent may be lost.
    pub(crate) fn break_off(self) {
        self.stop.store(true, Ordering::Relaxed);
        // It may be broken off already.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.sending.join().expect("its sender does not panic");
    }

    /// Ends it; all that was sent must have come.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sending.join().expect("its sender does not panic");
        self.socket.shutdown(Shutdown::Write).expect("it is connected");
        self.receiving.join().expect("each byte is the right one");
        assert_eq!(self.came.load(Ordering::Relaxed), sent);
    }
}

fn send(mut stream: TcpStream, stop: &AtomicBool) -> u64 {
    let block: Vec<u8> = (0..PERIOD).cycle().take(BLOCK).map(|at| u8::try_from(at).expect("below 251")).collect();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) && stream.write_all(&block).is_ok() {
        sent += BLOCK as u64;
    }
    sent
}

fn receive(mut stream: TcpStream, came: &AtomicU64, reading: &Mutex<()>) {
    let expected: Vec<u8> =
        (0..PERIOD).cycle().take(BLOCK + PERIOD).map(|at| u8::try_from(at).expect("below 251")).collect();
    let (mut block, mut at) = (vec![0; BLOCK], 0);
    loop {
        drop(reading.lock());
        let Ok(bytes @ 1..) = stream.read(&mut block) else { return };
        assert!(block[..bytes] == expected[at..at + bytes], "a byte is wrong");
        at = (at + bytes) % PERIOD;
        came.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
