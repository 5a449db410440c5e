//! Two namespaces with a device between them, and a TCP flow from the one to the other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use tidegate_shaper::io::netns::Namespace;

/// Device of the sender, the one that is shaped.
pub(crate) const DEVICE: &str = "va";

/// Both namespaces; they go when this is dropped.
pub(crate) struct Network {
    pub(crate) sender: String,
    pub(crate) receiver: String,
}

/// Runs a program with words that are parted by blanks, and returns what it prints.
pub(crate) fn run(words: &str) -> String {
    let mut parts = words.split(' ');
    let program = parts.next().expect("split gives one part at least");
    let output = Command::new(program).args(parts).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Network {
    /// `None` without the rights for it.
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |end| format!("tg-programs-{}-{number}{end}", std::process::id());
        let (sender, receiver) = (name("a"), name("b"));
        let made = Command::new("ip").args(["netns", "add", &sender]).output();
        if !rustix::process::geteuid().is_root() || !made.is_ok_and(|made| made.status.success()) {
            eprintln!("not run: it needs root, and `ip netns add`");
            return None;
        }
        let network = Self { sender, receiver };
        let Self { sender, receiver } = &network;
        run(&format!("ip netns add {receiver}"));
        run(&format!("ip link add {DEVICE} netns {sender} type veth peer name vb netns {receiver}"));
        for (namespace, device, host) in [(sender, DEVICE, 1), (receiver, "vb", 2)] {
            run(&format!("ip -n {namespace} addr add 10.83.0.{host}/24 dev {device}"));
            run(&format!("ip -n {namespace} -6 addr add fd83::{host}/64 dev {device} nodad"));
            run(&format!("ip -n {namespace} link set {device} up"));
        }
        Some(network)
    }

    /// The file of the sender's namespace.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.sender)
    }

    /// Sends datagrams of `bytes` to `address`, where nobody waits for them.
    pub(crate) fn datagrams(&self, address: &str, count: usize, bytes: usize) {
        let sender = Namespace::open(Some(&self.path())).expect("it was made");
        let socket = sender.run(|| UdpSocket::bind("0.0.0.0:0")).expect("a thread").expect("a port is free");
        for _ in 0..count {
            // A refusal of an earlier one may be told with any later one.
            let _ = socket.send_to(&vec![7; bytes], (address, 9));
        }
    }

    /// A flow that sends as fast as it may, to `address` of the receiver.
    pub(crate) fn flow(&self, address: &str) -> Flow {
        let within = |name: &str| Namespace::open(Some(&PathBuf::from("/run/netns").join(name))).expect("it was made");
        let listener = within(&self.receiver).run(|| TcpListener::bind((address, 0))).expect("a thread");
        let listener = listener.expect("the address is the receiver's");
        let to = listener.local_addr().expect("it listens");
        let sender = within(&self.sender).run(|| TcpStream::connect(to)).expect("a thread");
        let mut sender = sender.expect("the receiver listens");
        let (mut receiver, _) = listener.accept().expect("it is connected");
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let sending = thread::spawn(move || {
            let block = vec![7; 64 << 10];
            let mut sent = 0;
            while !told.load(Ordering::Relaxed) {
                sender.write_all(&block).expect("the receiver reads");
                sent += block.len();
            }
            sent
        });
        let receiving = thread::spawn(move || {
            let (mut block, mut taken_in) = (vec![0; 64 << 10], 0);
            while let Ok(bytes @ 1..) = receiver.read(&mut block) {
                taken_in += bytes;
            }
            taken_in
        });
        Flow { namespace: self.sender.clone(), to, stop, sending, receiving }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.sender, &self.receiver] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
    }
}

/// A flow that goes on until it is finished.
pub(crate) struct Flow {
    namespace: String,
    to: SocketAddr,
    stop: Arc<AtomicBool>,
    sending: JoinHandle<usize>,
    receiving: JoinHandle<usize>,
}

impl Flow {
    /// The window that its sender was given last, in bytes.
    pub(crate) fn window(&self) -> u64 {
        let port = format!(":{}", self.to.port());
        let arguments = ["netns", "exec", &self.namespace, "ss", "-tin", "dport", "=", &port];
        let output = Command::new("ip").args(arguments).output().expect("iproute2 has both");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let window = text.split_whitespace().find_map(|word| word.strip_prefix("snd_wnd:"));
        window.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no window in {text:?}"))
    }

    /// Ends it; all that was sent must have come.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sending.join().expect("its sender does not panic");
        assert_eq!(self.receiving.join().expect("nor its receiver"), sent);
    }
}
