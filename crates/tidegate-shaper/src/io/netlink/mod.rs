//! The kernel's interface to devices, qdiscs and classes: as much of rtnetlink as the shaper needs.
//!
//! | module | its one job |
//! |---|---|
//! | `message` | bytes of requests and answers |
//! | [`diagnostics`] | open TCP sockets |
//! | [`link`] | devices by name |
//! | [`tc`] | qdiscs and classes: read, made, changed, deleted |
//!
//! A [`Socket`] belongs to the namespace of the thread that opened it, whichever thread uses it later.

pub mod diagnostics;
pub mod link;
mod message;
pub mod tc;

use std::io;
use std::time::Duration;

use netlink_sys::{SocketAddr, protocols};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use self::message::{Answer, Message, answers};

/// The kernel answers at once; what takes longer is not coming.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kernel's answers come in pieces of at most 32 KiB.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Messages of a dump at most: 256 classes with 18 entries each, and as many queues, on thousands of devices.
const DUMP_MESSAGES_MAX: usize = 1 << 20;
/// A dump that others change is begun anew so often.
const DUMPS: usize = 8;

/// Why the kernel did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// It refused. `said` is in its own words, if it gave a reason.
    #[error("the kernel refused{}", said.as_ref().map_or_else(String::new, |said| format!(": {said}")))]
    Refused {
        /// What it said.
        said: Option<String>,
        /// Its error number.
        #[source]
        errno: Errno,
    },
    /// The socket failed.
    #[error("the kernel cannot be asked")]
    Socket(#[source] io::Error),
    /// The answer cannot be understood.
    #[error("the kernel's answer cannot be understood")]
    Malformed,
    /// Others changed the tree during each attempt, or the answer has no end.
    #[error("the kernel's answer did not hold still or has no end")]
    Restless,
}

impl NetlinkError {
    /// The kernel's error number, if it refused.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::Socket(error) => Errno::from_io_error(error),
            Self::Malformed | Self::Restless => None,
        }
    }
}

impl From<Errno> for NetlinkError {
    fn from(errno: Errno) -> Self {
        Self::Socket(errno.into())
    }
}

/// A socket to the kernel.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the namespace of this thread.
    ///
    /// # Errors
    /// If the system has none for us.
    pub fn open() -> Result<Self, NetlinkError> {
        Self::open_protocol(protocols::NETLINK_ROUTE)
    }

    /// The same for questions about sockets.
    ///
    /// # Errors
    /// If the system has none for us.
    pub fn open_diagnostics() -> Result<Self, NetlinkError> {
        Self::open_protocol(protocols::NETLINK_SOCK_DIAG)
    }

    fn open_protocol(protocol: isize) -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = netlink_sys::Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Kernels before 4.12 cannot: then errors have a number alone.
            let _ = socket.set_ext_ack(true);
            let _ = socket.set_cap_ack(true);
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            Ok(socket)
        };
        let inner = open().map_err(NetlinkError::Socket)?;
        Ok(Self { inner, sequence: 0, buffer: vec![0; ANSWER_BYTES_MAX] })
    }

    /// Sends a request and waits until it is done.
    fn request(&mut self, message: Message) -> Result<(), NetlinkError> {
        self.exchange(message, |_| {}).map(|_| ())
    }

    /// Sends a request that is answered by one message: its body.
    fn ask(&mut self, message: Message) -> Result<Vec<u8>, NetlinkError> {
        let mut body = None;
        self.exchange(message, |answer| body = Some(answer.to_vec()))?;
        body.ok_or(NetlinkError::Malformed)
    }

    /// Sends a request that is answered by a list, each of which goes through `read`.
    fn dump<T>(&mut self, message: &Message, read: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMPS {
            let mut list = Vec::new();
            if self.exchange(message.clone(), |body| list.extend(read(body)))? == Held::Still {
                return Ok(list);
            }
        }
        Err(NetlinkError::Restless)
    }

    /// Sends a request, gives the bodies of its answers to `each`, and returns at its end.
    fn exchange(&mut self, message: Message, mut each: impl FnMut(&[u8])) -> Result<Held, NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = message.finish(self.sequence);
        rustix::net::send(&self.inner, &bytes, SendFlags::empty())?;
        let mut held = Held::Still;
        let mut messages = 0;
        loop {
            let received = match rustix::net::recv(&self.inner, &mut self.buffer[..], RecvFlags::TRUNC) {
                Ok((_, received)) => received,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let bytes = self.buffer.get(..received).ok_or(NetlinkError::Malformed)?;
            for answer in answers(bytes, self.sequence) {
                messages += 1;
                if messages > DUMP_MESSAGES_MAX {
                    return Err(NetlinkError::Restless);
                }
                match answer.ok_or(NetlinkError::Malformed)? {
                    // The answer belongs to a request that was given up.
                    Answer::OfAnother => {}
                    Answer::Part { body, is_interrupted } => {
                        if is_interrupted {
                            held = Held::Changed;
                        }
                        each(body);
                    }
                    Answer::Done { is_interrupted } => {
                        return Ok(if is_interrupted { Held::Changed } else { held });
                    }
                    Answer::Refused { errno, said } => {
                        return Err(NetlinkError::Refused { errno: Errno::from_raw_os_error(errno), said });
                    }
                }
            }
        }
    }
}

/// Whether a list is of one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    Still,
    Changed,
}
