//! A broker of the smallest kind: it hands every message to the one subscriber at once, and breaks rules on request.

#![expect(clippy::unwrap_used, reason = "part of a test, which an error is to fail")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tidegate_wire::nsq::command::{self, Batch, Verb};
use tidegate_wire::nsq::frame::{self, Header};

/// Which messages suffer what, by their number at the broker; `u64::MAX` spares all.
#[derive(Clone, Copy)]
pub(crate) struct Faults {
    /// Every so many, one is accepted and forgotten.
    pub(crate) lose: u64,
    /// Every so many, one comes twice.
    pub(crate) repeat: u64,
    /// Every so many, one is refused.
    pub(crate) refuse: u64,
}

pub(crate) const NONE: Faults = Faults { lose: u64::MAX, repeat: u64::MAX, refuse: u64::MAX };

/// Joins all its threads when dropped; the clients have hung up by then.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    faults: Faults,
    subscriber: Option<TcpStream>,
    messages: BTreeMap<[u8; 16], Vec<u8>>,
    published: u64,
}

impl Echo {
    pub(crate) fn start(faults: Faults) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let state = Arc::new(Mutex::new(State { faults, subscriber: None, messages: BTreeMap::new(), published: 0 }));
        let thread = thread::spawn(move || {
            let mut clients = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (stream, state) = (stream.unwrap(), Arc::clone(&state));
                clients.push(thread::spawn(move || serve(stream, &state)));
            }
            for client in clients {
                client.join().unwrap();
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    let mut magic = [0; 4];
    stream.read_exact(&mut magic).unwrap();
    assert_eq!(&magic, command::MAGIC);
    let (mut input, mut chunk) = (Vec::new(), [0; 16 * 1024]);
    while let Ok(bytes @ 1..) = stream.read(&mut chunk) {
        input.extend_from_slice(&chunk[..bytes]);
        let (mut used, mut out) = (0, Vec::new());
        // Held over the write too: answers and messages share the subscriber's socket.
        let mut state = state.lock().unwrap();
        while let Some(bytes) = state.execute(&input[used..], &stream, &mut out) {
            used += bytes;
        }
        input.drain(..used);
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

impl State {
    /// Executes the command at the beginning of `input`; `None` if it is not complete.
    fn execute(&mut self, input: &[u8], stream: &TcpStream, out: &mut Vec<u8>) -> Option<usize> {
        let (line, used) = command::line(input).unwrap()?;
        let has_body = matches!(line.verb, Verb::Identify | Verb::Pub | Verb::Mpub | Verb::Dpub);
        let size = if has_body { command::length(&input[used..])? } else { -4 };
        let end = used + usize::try_from(4 + size).unwrap();
        let body = if has_body { input.get(used + 4..end)? } else { b"" };
        match line.verb {
            Verb::Identify => frame::put_ok(out),
            Verb::Sub => {
                self.subscriber = Some(stream.try_clone().unwrap());
                frame::put_ok(out);
            }
            Verb::Pub | Verb::Dpub => self.publish(std::iter::once(body), out),
            Verb::Mpub => self.publish(Batch::parse(body, 1 << 20, usize::MAX).unwrap(), out),
            Verb::Fin => assert!(self.messages.remove(line.param(0).unwrap()).is_some(), "FIN of an unknown message"),
            Verb::Req => self.deliver(*line.param(0).unwrap().first_chunk().unwrap(), 2),
            Verb::Cls => frame::put_response(out, b"CLOSE_WAIT"),
            Verb::Rdy | Verb::Nop => {}
            verb => panic!("{verb:?}"),
        }
        Some(end)
    }

    fn publish<'a>(&mut self, bodies: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
        let mut is_refused = false;
        for body in bodies {
            self.published += 1;
            let number = self.published;
            is_refused |= number.is_multiple_of(self.faults.refuse);
            if is_refused || number.is_multiple_of(self.faults.lose) {
                continue;
            }
            let copies = if number.is_multiple_of(self.faults.repeat) { 2 } else { 1 };
            for copy in 0..copies {
                let id = frame::hex_id(number << 1 | copy);
                self.messages.insert(id, body.to_vec());
                self.deliver(id, 1);
            }
        }
        if is_refused {
            frame::put_error(out, b"E_PUB_FAILED refused");
        } else {
            frame::put_ok(out);
        }
    }

    fn deliver(&mut self, id: [u8; 16], attempts: u16) {
        let mut out = Vec::new();
        frame::put_message(&mut out, &Header { timestamp: 0, attempts, id }, &self.messages[&id]);
        if let Some(subscriber) = &mut self.subscriber {
            subscriber.write_all(&out).unwrap();
        }
    }
}
