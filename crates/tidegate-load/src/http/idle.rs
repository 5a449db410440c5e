//! What a connection costs a server that says nothing after its first answer.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::answer;
use super::config::Source;
use super::connection::{Connection, Progress, READ_BYTES};
use super::socket::Dialler;
use super::tls::Tls;
use crate::error::LoadError;
use crate::poll::{Interest, Poller, allow_open_files};
use crate::target::Memory;

const MS_NS: u64 = 1_000_000;
/// Connections that are being opened at once.
const OPENING_MAX: usize = 32;
/// Nothing takes longer.
const LIMIT_MS: u64 = 120_000;

/// What to open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpIdleConfig {
    /// Where to connect.
    pub address: SocketAddr,
    /// The server's processes; their memory is added.
    pub pids: Vec<u32>,
    /// Connections that stay open.
    pub connections: u32,
    /// With TLS.
    pub tls: bool,
    /// Server name and `Host`.
    pub name: String,
    /// As for load.
    pub certificate: Option<PathBuf>,
    /// As for load.
    pub local_addresses: u32,
    /// From the last answer to the second reading.
    pub settle_ms: u64,
}

impl Default for HttpIdleConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8443)),
            pids: Vec::new(),
            connections: 10_000,
            tls: true,
            name: "localhost".into(),
            certificate: None,
            local_addresses: 0,
            settle_ms: 3_000,
        }
    }
}

/// What they cost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HttpIdleReport {
    /// What was opened.
    pub config: HttpIdleConfig,
    /// Before the first connection.
    pub before: Memory,
    /// With all of them, settled.
    pub after: Memory,
    /// Growth of the resident set for each connection.
    pub rss_bytes_per_connection: f64,
    /// Connections that had their answer.
    pub opened: u32,
    /// Connections that failed before it.
    pub failed: u32,
    /// Of those opened, closed by the server before the second reading.
    pub closed: u32,
}

/// Opens connections, asks once on each, and reads the server's memory before and after.
///
/// # Errors
/// [`LoadError`] if this machine does not let it be done.
pub fn measure(config: &HttpIdleConfig) -> Result<HttpIdleReport, LoadError> {
    allow_open_files(config.connections as usize)?;
    let memory = || -> Result<Memory, LoadError> {
        config.pids.iter().try_fold(Memory::default(), |sum, pid| {
            let one = Memory::of(*pid)?;
            Ok(Memory { rss_bytes: sum.rss_bytes + one.rss_bytes, pss_bytes: sum.pss_bytes + one.pss_bytes })
        })
    };
    let before = memory()?;
    let mut opening = Opening::new(config)?;
    opening.run()?;
    Poller::new()?.sleep(clock::now().plus_nanos(config.settle_ms * MS_NS))?;
    let after = memory()?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let growth = after.rss_bytes as f64 - before.rss_bytes as f64;
    let closed = opening.held.iter().filter(|stream| has_ended(stream)).count();
    let count = |number: usize| u32::try_from(number).expect("at most as many as were asked for");
    Ok(HttpIdleReport {
        config: config.clone(),
        before,
        after,
        rss_bytes_per_connection: growth / f64::from(config.connections),
        opened: count(opening.held.len()),
        failed: opening.failed,
        closed: count(closed),
    })
}

struct Opening<'a> {
    config: &'a HttpIdleConfig,
    source: Source,
    request: Vec<u8>,
    tls: Option<Tls>,
    dialler: Dialler,
    poller: Poller,
    under_way: Vec<Option<Connection>>,
    /// Only sockets: what TLS keeps for each is no matter any more, and would be memory of this process.
    held: Vec<TcpStream>,
    begun: u32,
    failed: u32,
    scratch: Vec<u8>,
}

impl<'a> Opening<'a> {
    fn new(config: &'a HttpIdleConfig) -> Result<Self, LoadError> {
        let source = Source { name: config.name.clone(), tls: config.tls, ..Source::default() };
        let tls = || Tls::new(&source.name, source.http, config.certificate.as_deref());
        Ok(Self {
            config,
            request: answer::request(&source),
            tls: config.tls.then(tls).transpose()?,
            source,
            dialler: Dialler::new(config.address, 0, config.local_addresses),
            poller: Poller::new()?,
            under_way: (0..OPENING_MAX).map(|_| None).collect(),
            held: Vec::new(),
            begun: 0,
            failed: 0,
            scratch: vec![0; READ_BYTES],
        })
    }

    fn run(&mut self) -> Result<(), LoadError> {
        let limit: Instant = clock::now().plus_nanos(LIMIT_MS * MS_NS);
        loop {
            for index in 0..OPENING_MAX {
                if self.under_way[index].is_none() && self.begun < self.config.connections {
                    self.begin(index)?;
                }
            }
            let is_done = self.under_way.iter().all(Option::is_none) && self.begun == self.config.connections;
            if is_done || clock::now() >= limit {
                return Ok(());
            }
            self.poller.wait(limit, 0)?;
            for event in 0.. {
                let Some(ready) = self.poller.ready(event) else { break };
                let index = usize::try_from(ready.token).expect("a token of ours");
                self.advance(index, ready.readable)?;
            }
        }
    }

    fn begin(&mut self, index: usize) -> Result<(), LoadError> {
        self.begun += 1;
        let Ok(stream) = self.dialler.dial() else {
            self.failed += 1;
            return Ok(());
        };
        let tls = self.tls.as_ref().map(Tls::connection).transpose()?;
        let mut connection = Connection::new(stream, tls, &self.source);
        self.poller.add(&connection, index as u64).map_err(LoadError::os("watch a socket"))?;
        connection.ask(&self.source, &self.request);
        self.under_way[index] = Some(connection);
        self.advance(index, false)
    }

    fn advance(&mut self, index: usize, readable: bool) -> Result<(), LoadError> {
        let Some(mut connection) = self.under_way[index].take() else { return Ok(()) };
        match connection.advance(readable, &mut self.scratch) {
            Progress::Pending => {
                let interest = if connection.wants_write() { Interest::ReadWrite } else { Interest::Read };
                self.poller.modify(&connection, index as u64, interest).map_err(LoadError::os("watch a socket"))?;
                self.under_way[index] = Some(connection);
            }
            Progress::Answered(answer) if answer.keeps_open => {
                self.poller.remove(&connection).map_err(LoadError::os("forget a socket"))?;
                self.held.push(connection.into_stream());
            }
            Progress::Answered(_) | Progress::Failed(_) => self.failed += 1,
        }
        Ok(())
    }
}

/// The server has closed it: what is there to read is its end.
fn has_ended(stream: &TcpStream) -> bool {
    let mut bytes = [0; 1];
    !matches!(stream.peek(&mut bytes), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        && stream.peek(&mut bytes).map_or(true, |bytes| bytes == 0)
}
