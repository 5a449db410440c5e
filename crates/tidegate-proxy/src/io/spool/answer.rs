//! An answer, of which what its client does not take waits.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::task::JoinHandle;

use super::memory::InMemory;
use super::stored::{Stored, Unwritten};
use crate::io::conn::account::Account;
use crate::io::listen::thread::Connection;
use crate::io::request::error::BodyError;
use crate::io::request::response::ResponseBody;
use crate::io::spool::folder::{PIECE, READ};

/// Bytes that may wait in memory behind a client that stalls, if a smaller answer would not stay there anyway.
const KEPT: u64 = 64 * 1024;

/// An answer on its way to a client that takes it slower than the upstream gives it: what the client does not take waits
/// in memory, and what is more on disk. While the client keeps up, pieces pass as they come.
#[derive(Debug)]
pub(crate) struct Spooling {
    /// `None` once it ended.
    source: Option<Box<ResponseBody>>,
    /// Read from the source, and behind everything on disk.
    buffer: BytesMut,
    /// `None` while an operation has it.
    stored: Option<Stored>,
    operation: Option<Operation>,
    /// Bytes that may wait in memory.
    kept: u64,
    /// Behind the last byte.
    trailers: Option<HeaderMap>,
    /// The source broke off; told when everything before is sent.
    broken: Option<BodyError>,
    account: Rc<Account>,
    /// Bytes that the operation has in memory.
    moving: usize,
    /// Bytes of the piece that the client has; until it asks for the next, it has not taken them.
    given: usize,
    memory: InMemory,
}

/// The one operation that a body has under way.
#[derive(Debug)]
enum Operation {
    Append(JoinHandle<Result<Stored, Unwritten>>),
    Take(JoinHandle<io::Result<(Stored, Bytes)>>),
}

/// Lets `body` wait where its client does not hold up the upstream, if there is a spool and it can be long.
pub(crate) fn response(connection: &Connection, account: &Rc<Account>, body: ResponseBody) -> ResponseBody {
    let spool = connection.thread.spool.borrow();
    let Some(spool) = &*spool else { return body };
    if body.size_hint().exact().is_some_and(|length| length <= spool.above) {
        return body;
    }
    let spooling = Spooling::new(body, Stored::new(spool, account), account);
    ResponseBody::Spooling(Rc::new(RefCell::new(spooling)))
}

impl Spooling {
    fn new(source: ResponseBody, stored: Stored, account: &Rc<Account>) -> Self {
        Self {
            source: Some(Box::new(source)),
            buffer: BytesMut::new(),
            kept: KEPT.min(stored.spool().above),
            stored: Some(stored),
            operation: None,
            trailers: None,
            broken: None,
            account: Rc::clone(account),
            moving: 0,
            given: 0,
            memory: InMemory::new(account),
        }
    }

    /// Takes what the upstream gives while there is room, though the client takes nothing.
    pub(crate) fn poll_ahead(&mut self, context: &mut Context<'_>) {
        self.read_ahead(context);
        self.count();
    }

    /// Tells what is in memory now.
    fn count(&mut self) {
        self.memory.set(self.buffer.len() + self.moving + self.given);
    }

    fn read_ahead(&mut self, context: &mut Context<'_>) {
        loop {
            if let Some(Operation::Append(append)) = self.operation.as_mut() {
                let Poll::Ready(appended) = Pin::new(append).poll(context) else { return };
                (self.operation, self.moving) = (None, 0);
                match appended {
                    Ok(Ok(stored)) => self.stored = Some(stored),
                    Ok(Err(Unwritten { stored, bytes })) => {
                        // They wait here again, behind what is on disk, as where there was no room.
                        let mut buffer = BytesMut::from(bytes);
                        buffer.extend_from_slice(&self.buffer);
                        (self.stored, self.buffer) = (Some(stored), buffer);
                    }
                    Err(_gone) => return self.broke(BodyError::Spool),
                }
            }
            if self.buffer.len() as u64 > self.kept
                && let Some(stored) = self.stored.take()
            {
                if !self.put(stored) {
                    return;
                }
                continue;
            }
            // While a piece is read back, the memory has the bound that it always has.
            let room = self.stored.is_some() || self.buffer.len() < PIECE;
            let Some(source) = self.source.as_mut().filter(|_| room) else { return };
            match Pin::new(&mut **source).poll_frame(context) {
                Poll::Pending => return,
                Poll::Ready(None) => self.source = None,
                Poll::Ready(Some(Err(error))) => return self.broke(error),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(other) => self.trailers = other.into_trailers().ok(),
                },
            }
        }
    }

    /// Begins to write what waits. False if there is no room: then it stays, and the upstream waits until the client takes
    /// more, as it would without a spool.
    fn put(&mut self, mut stored: Stored) -> bool {
        let bytes = self.buffer.len() as u64;
        if stored.reserve(bytes).is_err() {
            self.stored = Some(stored);
            return false;
        }
        self.account.add_disk(bytes);
        self.moving = self.buffer.len();
        self.operation = Some(Operation::Append(stored.append(self.buffer.split().freeze())));
        true
    }

    fn broke(&mut self, error: BodyError) {
        self.source = None;
        self.broken = Some(error);
    }

    /// The next piece, and behind the last one the trailers.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.given = 0;
        let piece = self.poll_next(context);
        self.count();
        piece
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if self.is_on_disk() {
                // The upstream goes on meanwhile.
                self.read_ahead(context);
            }
            match self.operation.as_mut() {
                // The bytes that are written now stand before those in the buffer.
                Some(Operation::Append(_)) => return Poll::Pending,
                Some(Operation::Take(take)) => {
                    let done = ready!(Pin::new(take).poll(context));
                    (self.operation, self.moving) = (None, 0);
                    let Some((stored, piece)) = done.ok().and_then(Result::ok) else {
                        return Poll::Ready(Some(Err(BodyError::Spool)));
                    };
                    self.stored = Some(stored);
                    self.account.add_disk(piece.len() as u64);
                    self.given = piece.len();
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                None => {}
            }
            if let Some(stored) = self.stored.take_if(|stored| stored.len() > 0) {
                self.moving = READ;
                self.operation = Some(Operation::Take(stored.take()));
                continue;
            }
            if !self.buffer.is_empty() {
                let piece = self.buffer.split_to(self.buffer.len().min(READ));
                self.given = piece.len();
                return Poll::Ready(Some(Ok(Frame::data(piece.freeze()))));
            }
            if let Some(error) = self.broken.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let Some(source) = self.source.as_mut() else {
                return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            };
            // Nothing waits: what comes passes.
            match ready!(Pin::new(&mut **source).poll_frame(context)) {
                None => self.source = None,
                piece => return Poll::Ready(piece),
            }
        }
    }

    fn is_on_disk(&self) -> bool {
        self.operation.is_some() || self.stored.as_ref().is_some_and(|stored| stored.len() > 0)
    }

    /// True if nothing more comes.
    pub(crate) fn is_done(&self) -> bool {
        let kept = self.broken.is_some() || self.trailers.is_some() || !self.buffer.is_empty();
        let is_done = self.source.as_deref().is_none_or(Body::is_end_stream);
        is_done && !kept && !self.is_on_disk()
    }

    /// Bytes that are still to come, if known.
    pub(crate) fn left(&self) -> Option<u64> {
        let source = self.source.as_ref().map_or(Some(0), |source| source.size_hint().exact())?;
        Some(source + self.buffer.len() as u64 + self.stored.as_ref()?.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use super::*;
    use crate::io::spool::folder::tests::{Disk, account, pattern};

    fn spooling(disk: &Disk, account: &Rc<Account>, len: usize) -> (Spooling, Bytes) {
        let body = pattern(len);
        let source = ResponseBody::Full(body.clone());
        (Spooling::new(source, Stored::new(&disk.spool, account), account), body)
    }

    /// Reads the rest.
    fn rest(disk: &Disk, answer: &mut Spooling) -> Vec<u8> {
        let mut came = Vec::new();
        while let Some(piece) = disk.wait_for(|context| answer.poll_piece(context)) {
            came.extend_from_slice(&piece.unwrap().into_data().unwrap());
        }
        assert!(answer.is_done());
        came
    }

    #[test]
    fn an_answer_without_room_waits_for_its_client_and_comes_whole() {
        let disk = Disk::new("no-room", 1 << 20);
        let account = account("a");
        let mut other = Stored::new(&disk.spool, &account);
        other.reserve(512 << 10).unwrap();
        let (mut answer, body) = spooling(&disk, &account, 300_000);
        answer.poll_ahead(&mut Context::from_waker(Waker::noop()));
        assert!(answer.operation.is_none() && answer.broken.is_none() && answer.buffer == body, "it waits");
        assert_eq!(account.held_memory(), 5 * 64 * 1024, "and its memory is its tenant's");
        assert!(rest(&disk, &mut answer) == body);
        assert_eq!(account.held_memory(), 0);
    }

    #[test]
    fn an_answer_that_the_disk_does_not_take_waits_for_its_client_and_comes_whole() {
        let disk = Disk::new("answer-full", 1 << 20);
        let account = account("a");
        let (mut answer, body) = spooling(&disk, &account, 300_000);
        answer.stored.as_mut().unwrap().fill();
        disk.wait_for(|context| {
            answer.poll_ahead(context);
            if answer.operation.is_some() { Poll::Pending } else { Poll::Ready(()) }
        });
        assert!(answer.broken.is_none() && answer.buffer == body, "it waits");
        assert_eq!((disk.spool.bytes(), disk.spool.failures.counts()), (0, (1, 0)));
        assert_eq!(account.held_memory(), 5 * 64 * 1024, "and its memory is its tenant's");
        assert!(rest(&disk, &mut answer) == body);
        assert_eq!(account.held_memory(), 0);
    }

    #[test]
    fn an_answer_of_which_the_disk_takes_a_part_comes_whole() {
        let disk = Disk::new("answer-part", 1 << 20);
        let account = account("a");
        let mut stored = Stored::new(&disk.spool, &account);
        stored.reserve(100_000).unwrap();
        let body = pattern(300_000);
        let stored = disk.wait(stored.append(body.slice(..100_000))).unwrap();
        let mut answer = Spooling::new(ResponseBody::Full(body.slice(100_000..)), stored, &account);
        let whole = answer.stored.as_mut().unwrap().fill();
        disk.wait_for(|context| {
            answer.poll_ahead(context);
            if answer.operation.is_some() { Poll::Pending } else { Poll::Ready(()) }
        });
        answer.stored.as_mut().unwrap().set_file(whole);
        assert!(rest(&disk, &mut answer) == body);
    }

    #[test]
    fn an_answer_that_was_on_disk_gives_its_room_back_before_it_ends() {
        let disk = Disk::new("answer", 1 << 20);
        let (mut answer, body) = spooling(&disk, &account("a"), 300_000);
        answer.poll_ahead(&mut Context::from_waker(Waker::noop()));
        assert_eq!(disk.spool.room().used(), 300_000);
        let mut came = 0;
        while came < 200_000 {
            let piece = disk.wait_for(|context| answer.poll_piece(context)).unwrap().unwrap();
            came += piece.into_data().unwrap().len() as u64;
        }
        assert_eq!(disk.spool.room().used(), 300_000 - came);
        let came = usize::try_from(came).unwrap();
        assert!(rest(&disk, &mut answer) == body[came..]);
    }

    #[test]
    fn an_answer_whose_client_keeps_up_passes_uncopied() {
        let disk = Disk::new("keeps-up", 1 << 20);
        let (mut answer, body) = spooling(&disk, &account("a"), 300_000);
        let piece = disk.wait_for(|context| answer.poll_piece(context)).unwrap().unwrap().into_data().unwrap();
        assert_eq!((piece.as_ptr(), piece.len()), (body.as_ptr(), body.len()));
        assert!(answer.is_done() && Arc::strong_count(&disk.spool) == 2 && disk.spool.room().used() == 0);
    }
}
