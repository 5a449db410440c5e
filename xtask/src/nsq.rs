//! NSQ's protocol as far as scripts need it: one connection, blocking, one thing at a time.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};

/// No frame that a script reads is longer.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// Timestamp, attempts and id, in front of a message's body.
const HEADER_BYTES: usize = 26;
const ID_AT: usize = 10;

/// What a broker sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// An answer, such as `OK`.
    Response(Vec<u8>),
    /// An error's text.
    Error(String),
    /// A message: its id and its body.
    Message([u8; 16], Vec<u8>),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl Client {
    /// Connects; what does not come within `patience` is an error.
    pub(crate) fn connect(address: &str, patience: Duration) -> Result<Self> {
        let stream = TcpStream::connect(address).into_diagnostic().wrap_err_with(|| format!("connect to {address}"))?;
        stream.set_nodelay(true).into_diagnostic()?;
        stream.set_read_timeout(Some(patience)).into_diagnostic()?;
        stream.set_write_timeout(Some(patience)).into_diagnostic()?;
        Ok(Self { reader: BufReader::with_capacity(1 << 16, stream), out: b"  V2".to_vec() })
    }

    /// Connects and subscribes with RDY `ready`; messages come at once, not in bundles.
    pub(crate) fn subscribe(address: &str, topic: &str, channel: &str, ready: u32, patience: Duration) -> Result<Self> {
        let mut client = Self::connect(address, patience)?;
        let wishes = br#"{"feature_negotiation":true,"output_buffer_size":-1,"output_buffer_timeout":-1}"#;
        client.line("IDENTIFY");
        client.sized(wishes);
        client.flush()?;
        client.answer()?;
        client.line(&format!("SUB {topic} {channel}"));
        client.flush()?;
        let answer = client.answer()?;
        if answer != Frame::Response(b"OK".to_vec()) {
            miette::bail!("SUB {topic} {channel} is answered with {answer:?}");
        }
        client.ready(ready)?;
        Ok(client)
    }

    /// Changes how many messages may be in flight.
    pub(crate) fn ready(&mut self, ready: u32) -> Result<()> {
        self.line(&format!("RDY {ready}"));
        self.flush()
    }

    /// Appends PUB.
    pub(crate) fn put_pub(&mut self, topic: &str, body: &[u8]) {
        self.line(&format!("PUB {topic}"));
        self.sized(body);
    }

    /// Appends DPUB.
    pub(crate) fn put_dpub(&mut self, topic: &str, delay_ms: u64, body: &[u8]) {
        self.line(&format!("DPUB {topic} {delay_ms}"));
        self.sized(body);
    }

    /// Appends MPUB of `count` times the same body.
    pub(crate) fn put_mpub(&mut self, topic: &str, count: u32, body: &[u8]) {
        self.line(&format!("MPUB {topic}"));
        let each = body.len() + 4;
        let size = 4 + each * count as usize;
        self.out.extend_from_slice(&size_of(size));
        self.out.extend_from_slice(&count.to_be_bytes());
        (0..count).for_each(|_| self.sized(body));
    }

    /// Appends FIN.
    pub(crate) fn put_fin(&mut self, id: &[u8; 16]) {
        self.out.extend_from_slice(b"FIN ");
        self.out.extend_from_slice(id);
        self.out.push(b'\n');
    }

    /// Appends REQ: the message comes again after `delay_ms`.
    pub(crate) fn put_req(&mut self, id: &[u8; 16], delay_ms: u64) {
        self.out.extend_from_slice(b"REQ ");
        self.out.extend_from_slice(id);
        self.line(&format!(" {delay_ms}"));
    }

    /// Sends what was appended.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let sent = self.reader.get_mut().write_all(&self.out).into_diagnostic();
        self.out.clear();
        sent
    }

    /// One PUB and its answer.
    pub(crate) fn publish(&mut self, topic: &str, body: &[u8]) -> Result<Frame> {
        self.put_pub(topic, body);
        self.flush()?;
        self.answer()
    }

    /// The next frame that is no heartbeat.
    pub(crate) fn answer(&mut self) -> Result<Frame> {
        loop {
            let mut head = [0; 8];
            self.reader.read_exact(&mut head).into_diagnostic()?;
            let [size, kind] =
                [&head[..4], &head[4..]].map(|bytes| bytes.iter().fold(0_usize, |n, b| n << 8 | usize::from(*b)));
            if !(4..=FRAME_BYTES_MAX).contains(&size) {
                miette::bail!("a frame of {size} bytes");
            }
            let mut body = vec![0; size - 4];
            self.reader.read_exact(&mut body).into_diagnostic()?;
            match kind {
                0 if body == b"_heartbeat_" => {
                    self.line("NOP");
                    self.flush()?;
                }
                0 => return Ok(Frame::Response(body)),
                1 => return Ok(Frame::Error(String::from_utf8_lossy(&body).into_owned())),
                _ if body.len() < HEADER_BYTES => miette::bail!("a message of {} bytes", body.len()),
                _ => {
                    let mut id = [0; 16];
                    id.copy_from_slice(&body[ID_AT..HEADER_BYTES]);
                    return Ok(Frame::Message(id, body.split_off(HEADER_BYTES)));
                }
            }
        }
    }

    /// The next frame; `None` if none comes within the patience, or the connection is gone.
    pub(crate) fn answer_if_any(&mut self) -> Option<Frame> {
        self.answer().ok()
    }

    fn line(&mut self, line: &str) {
        self.out.extend_from_slice(line.as_bytes());
        self.out.push(b'\n');
    }

    fn sized(&mut self, body: &[u8]) {
        self.out.extend_from_slice(&size_of(body.len()));
        self.out.extend_from_slice(body);
    }
}

/// Four bytes, as sizes are written.
fn size_of(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("scripts send less than 4 GiB").to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn commands_are_written_and_frames_are_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let broker = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = [0; 4 + 6 + 4 + 2 + 7 + 12];
            stream.write_all(b"\0\0\0\x0f\0\0\0\0_heartbeat_\0\0\0\x06\0\0\0\0OK").unwrap();
            stream.write_all(b"\0\0\0\x1f\0\0\0\x02\0\0\0\0\0\0\0\x01\0\x010123456789abcdef!").unwrap();
            stream.read_exact(&mut heard).unwrap();
            heard.to_vec()
        });
        let mut client = Client::connect(&address, PATIENCE).unwrap();
        client.put_pub("t", b"xy");
        client.put_mpub("t", 1, b"");
        client.flush().unwrap();
        assert_eq!(client.answer().unwrap(), Frame::Response(b"OK".to_vec()));
        assert_eq!(client.answer().unwrap(), Frame::Message(*b"0123456789abcdef", b"!".to_vec()));
        assert_eq!(broker.join().unwrap(), b"  V2PUB t\n\0\0\0\x02xyMPUB t\n\0\0\0\x08\0\0\0\x01\0\0\0\0");
    }
}
