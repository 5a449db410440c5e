//! Listening sockets that go from one process to its successor, over a Unix socket of sequenced packets.
//!
//! The predecessor sends `VERSION`, then its sockets with their names, then `END`. The successor says `READY` when it can serve,
//! or `FAILED` and why not; only to `READY` the predecessor answers, with `GO`, and then it takes no more connections. A
//! successor that hears no `GO` ends: whatever goes wrong before, the predecessor serves as if nothing had been. Both are of
//! one user, which the kernel vouches for, and nobody else may open the socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, chmod};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recvmsg, sendmsg, socket_with,
};
use rustix::process::{Pid, geteuid};

/// The first packet; another one means that the two do not understand each other.
const VERSION: &str = "tidegate-upgrade 1";
const END: &str = "end";
const READY: &str = "ready";
const FAILED: &str = "failed ";
const GO: &str = "go";
/// Sockets in one packet: the kernel takes 253.
const SOCKETS_MAX: usize = 64;
/// Packets of sockets that a successor takes: ports times threads, and some more.
const PACKETS_MAX: usize = 4096;
/// Bytes of a packet. Of a reason that is longer the beginning is told.
const PACKET_MAX: usize = 1024;
/// How long either waits for what the other does at once.
const AT_ONCE: Duration = Duration::from_secs(10);
/// How long a successor may take to start. Certificates are read, and names looked up, for which it waits 5 s at most.
const START_MAX: Duration = Duration::from_mins(1);

/// Sockets of one name, in their order.
#[derive(Debug)]
pub(super) struct Named<T> {
    /// No other ones have it.
    pub(super) name: String,
    pub(super) sockets: Vec<T>,
}

/// Where a successor connects. It is there as long as this value, unless another process has taken the path.
#[derive(Debug)]
pub(super) struct Offer {
    socket: OwnedFd,
    path: PathBuf,
    inode: u64,
}

impl Offer {
    /// Opens it at `path`, for this user alone. A socket there that nobody listens at is replaced; so is any if `is_heir`.
    pub(super) fn open(path: &Path, is_heir: bool) -> io::Result<Self> {
        if !is_heir && packets().and_then(|probe| Ok(connect(&probe, &SocketAddrUnix::new(path)?)?)).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another proxy waits there for its successor"));
        }
        let socket = packets()?;
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(new);
        // It may be left of a process of the same number.
        let _ = std::fs::remove_file(&new);
        bind(&socket, &SocketAddrUnix::new(&new)?)?;
        let opened = (|| -> io::Result<u64> {
            // Nobody can connect before it listens.
            chmod(&new, Mode::RUSR | Mode::WUSR)?;
            listen(&socket, 1)?;
            let inode = std::fs::symlink_metadata(&new)?.ino();
            std::fs::rename(&new, path)?;
            Ok(inode)
        })();
        if opened.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        Ok(Self { socket, path: path.to_owned(), inode: opened? })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes one that has connected, without waiting for it.
    pub(super) fn accept(&self) -> io::Result<Peer> {
        rustix::io::ioctl_fionbio(&self.socket, true)?;
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        Peer::new(socket)
    }
}

impl AsRawFd for Offer {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // A successor has put its own in this place.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn packets() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The process at the other end, of the same user.
#[derive(Debug)]
pub(super) struct Peer {
    socket: OwnedFd,
    pub(super) pid: Pid,
}

/// What became of a successor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Ready,
    /// It does not start, and says why.
    Failed(String),
}

impl Peer {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        let peer = socket_peercred(&socket)?;
        let is_own = peer.uid == geteuid();
        if !is_own {
            let (uid, own) = (peer.uid.as_raw(), geteuid().as_raw());
            let message = format!("the process at the other end is of user {uid}, and this one of user {own}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        let this = Self { socket, pid: peer.pid };
        set_socket_timeout(&this.socket, Timeout::Send, Some(AT_ONCE))?;
        this.wait_for(AT_ONCE)?;
        Ok(this)
    }

    /// Connects to the process that offers its sockets at `path`.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let socket = packets()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::new(socket)
    }

    fn wait_for(&self, most: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.socket, Timeout::Recv, Some(most))?)
    }

    /// Gives it `all`, and waits for what becomes of it.
    pub(super) fn give<T: AsFd>(&self, all: &[Named<T>]) -> io::Result<Outcome> {
        self.send(VERSION, &[])?;
        for Named { name, sockets } in all {
            for some in sockets.chunks(SOCKETS_MAX) {
                let some: Vec<_> = some.iter().map(AsFd::as_fd).collect();
                self.send(name, &some)?;
            }
        }
        self.send(END, &[])?;
        self.wait_for(START_MAX)?;
        let (said, _) = self.receive()?;
        match said.strip_prefix(FAILED) {
            Some(why) => Ok(Outcome::Failed(why.to_owned())),
            None if said == READY => Ok(Outcome::Ready),
            None => Err(unexpected(&said)),
        }
    }

    /// Tells the successor, which is ready, that this process takes no more connections.
    pub(super) fn go(&self) -> io::Result<()> {
        self.send(GO, &[])
    }

    /// What the predecessor gives. Sockets of one name that came apart are together again.
    pub(super) fn take(&self) -> io::Result<Vec<Named<OwnedFd>>> {
        let (version, _) = self.receive()?;
        if version != VERSION {
            return Err(unexpected(&version));
        }
        let mut all: Vec<Named<OwnedFd>> = Vec::new();
        for _ in 0..PACKETS_MAX {
            let (name, sockets) = self.receive()?;
            if name == END {
                return Ok(all);
            }
            match all.last_mut().filter(|last| last.name == name) {
                Some(last) => last.sockets.extend(sockets),
                None => all.push(Named { name, sockets }),
            }
        }
        Err(io::Error::other(format!("there are more than {PACKETS_MAX} packets of sockets")))
    }

    /// Tells the predecessor that this process serves; it is to stop.
    pub(super) fn ready(&self) -> io::Result<()> {
        self.send(READY, &[])?;
        let (said, _) = self.receive()?;
        if said == GO { Ok(()) } else { Err(unexpected(&said)) }
    }

    /// Tells the predecessor why this process does not start.
    pub(super) fn failed(&self, why: &str) {
        // If it cannot be told, it sees the end of the connection.
        let _ = self.send(&format!("{FAILED}{why}"), &[]);
    }

    fn send(&self, text: &str, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        if !sockets.is_empty() && !with.push(SendAncillaryMessage::ScmRights(sockets)) {
            return Err(io::Error::other("too many sockets for one packet"));
        }
        let text = &text.as_bytes()[..text.len().min(PACKET_MAX)];
        sendmsg(&self.socket, &[IoSlice::new(text)], &mut with, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn receive(&self) -> io::Result<(String, Vec<OwnedFd>)> {
        let mut text = [0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let came = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut with, RecvFlags::CMSG_CLOEXEC);
        let bytes = match came {
            Ok(came) if came.flags.contains(ReturnFlags::CTRUNC) => return Err(rustix::io::Errno::MFILE.into()),
            Ok(came) if came.bytes > 0 => came.bytes,
            Ok(_) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other process left")),
            Err(rustix::io::Errno::AGAIN) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other process says nothing"));
            }
            Err(error) => return Err(error.into()),
        };
        let sockets = with.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        });
        let sockets = sockets.flatten().collect();
        Ok((String::from_utf8_lossy(&text[..bytes]).into_owned(), sockets))
    }
}

fn unexpected(said: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other process says {said:?}: is it of another version?"))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scratch::Folder;

    fn accept(offer: &Offer) -> Peer {
        loop {
            match offer.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                accepted => return accepted.unwrap(),
            }
        }
    }

    #[test]
    fn a_successor_gets_every_socket_in_its_order() {
        let folder = Folder::new("handover").unwrap();
        let path = folder.path().join("upgrade.sock");
        let offer = Offer::open(&path, false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let listeners: Vec<_> = (0..70).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let successor = std::thread::spawn(move || {
            let peer = Peer::at(&path).unwrap();
            let all = peer.take().unwrap();
            peer.ready().unwrap();
            all
        });
        let peer = accept(&offer);
        assert_eq!(peer.pid, rustix::process::getpid());
        let (one, two) = listeners.split_at(66);
        let named = |name: &str, sockets: &[TcpListener]| Named {
            name: name.to_owned(),
            sockets: sockets.iter().map(|socket| socket.try_clone().unwrap()).collect(),
        };
        assert_eq!(peer.give(&[named("a", one), named("b", &two[..1])]).unwrap(), Outcome::Ready);
        peer.go().unwrap();
        let got = successor.join().unwrap();
        assert_eq!(got.iter().map(|named| named.sockets.len()).collect::<Vec<_>>(), [66, 1]);
        drop(listeners);
        let sockets = got.into_iter().flat_map(|named| named.sockets).map(TcpListener::from);
        let theirs: Vec<_> = sockets.map(|socket| (socket.local_addr().unwrap(), socket)).collect();
        assert!(theirs.iter().zip(&addresses).all(|((theirs, _), ours)| theirs == ours));
        assert!(TcpStream::connect(addresses[66]).is_ok(), "it listens all the time");
    }

    #[test]
    fn a_predecessor_hears_why_there_is_no_successor() {
        let folder = Folder::new("handover-fails").unwrap();
        let path = folder.path().join("upgrade.sock");
        let offer = Offer::open(&path, false).unwrap();
        let error = Offer::open(&path, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(accept(&offer));
        let at = path.clone();
        let successor = std::thread::spawn(move || {
            let peer = Peer::at(&at).unwrap();
            peer.take().unwrap();
            peer.failed("no such file");
            drop(peer);
            Peer::at(&at).unwrap()
        });
        let none: [Named<OwnedFd>; 0] = [];
        let peer = accept(&offer);
        assert_eq!(peer.give(&none).unwrap(), Outcome::Failed("no such file".to_owned()));
        let silent = accept(&offer);
        drop(successor.join().unwrap());
        assert!(silent.give(&none).is_err());
        // The successor's own takes its place, and stays when this one goes.
        let heir = Offer::open(&path, true).unwrap();
        drop(offer);
        assert!(path.exists());
        drop(heir);
        assert!(!path.exists());
    }
}
