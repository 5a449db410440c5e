//! Listening sockets, of one kind for a shard's thread.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::address::Address;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// A peer that was silent so long is asked whether it is still there, so that the dead give their places back.
const KEEPALIVE: Duration = Duration::from_mins(1);

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    /// The next connection, ready to be read without waiting.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(socket, _)| socket.into()),
            Self::Unix(listener) => listener.accept().map(|(socket, _)| socket.into()),
        }
    }

    /// Sets an accepted connection up.
    pub(super) fn prepare(&self, socket: &OwnedFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        socket.set_nonblocking(true)?;
        match self {
            Self::Tcp(_) => {
                socket.set_tcp_nodelay(true)?;
                socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
            }
            // The kernel tells at once when a process ends.
            Self::Unix(_) => Ok(()),
        }
    }
}

/// The listening sockets of a server's shards.
#[derive(Debug)]
pub(super) struct Listeners {
    address: Address,
    /// Of a Unix socket, which all shards take connections from.
    shared: Option<UnixListener>,
    _file: Option<SocketFile>,
}

impl Listeners {
    /// Those of `address`; a Unix socket's file has these permissions.
    pub(super) fn new(address: &Address, mode: u32) -> io::Result<Self> {
        let (shared, file) = match address {
            Address::Tcp(_) => (None, None),
            Address::Unix(path) => {
                let (listener, file) = listen_unix(path, mode).map_err(|error| address.explain(error))?;
                (Some(listener), Some(file))
            }
        };
        Ok(Self { address: address.clone(), shared, _file: file })
    }

    /// One more.
    pub(super) fn next(&mut self) -> io::Result<Listener> {
        match (&self.shared, self.address.tcp()) {
            (Some(shared), _) => shared.try_clone().map(Listener::Unix),
            (None, Some(address)) => {
                let listener = listen_tcp(address)?;
                // The system picks a port for the first; the others share it.
                self.address = listener.local_addr()?.into();
                Ok(Listener::Tcp(listener))
            }
            (None, None) => unreachable!("a Unix socket was made with the value"),
        }
    }

    /// Where they listen.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }
}

/// The option by which shards share a port also lets another process of the same user take part of the connections; it is
/// the price of one accept queue for each thread.
fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The file of a Unix socket, removed when dropped if it is still ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

/// Device and number of the file at `path`.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // One that stays is taken over by the next server.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, in place of a server that has gone and left its socket behind.
///
/// The socket gets its permissions before it gets its name, so that nobody connects who may not.
fn listen_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    check_free(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = path.with_file_name(name);
    let make = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Of an earlier process with our number that ended right here.
        let _ = fs::remove_file(&new);
        socket.bind(&SockAddr::unix(&new)?)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        fs::rename(&new, path)?;
        Ok((socket.into(), SocketFile::of(path)?))
    };
    make().inspect_err(|_: &io::Error| {
        let _ = fs::remove_file(&new);
    })
}

/// An error if something is at `path` that may not be replaced.
fn check_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            let advice = "a file that is no socket is there; choose another path, or remove it";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, advice));
        }
        Ok(_) => {}
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        // It answers, or is too busy to.
        Ok(()) => Err(in_use()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(in_use()),
        Err(error) => Err(error),
    }
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "a server listens there; stop it, or choose another path")
}
