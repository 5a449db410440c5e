//! Bodies that can be sent again: by a clone, or recorded while they are sent.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// Bytes of a body that are recorded at most; a call with a longer one is sent once.
const RECORDED_MAX: usize = 64 * 1024;

/// How a call's body is kept until its answer, to be sent again.
pub trait Keep<B> {
    /// What is kept.
    type Kept;

    /// The body to send, and what is kept of it.
    fn keep(body: B) -> (B, Self::Kept);

    /// True if it can be sent again.
    fn is_whole(kept: &Self::Kept) -> bool;

    /// The body once more.
    fn again(kept: &Self::Kept) -> B;
}

/// Keeps a clone: for bodies that are cheap to clone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cloned;

impl<B: Clone> Keep<B> for Cloned {
    type Kept = B;

    fn keep(body: B) -> (B, B) {
        (body.clone(), body)
    }

    fn is_whole(_: &B) -> bool {
        true
    }

    fn again(kept: &B) -> B {
        kept.clone()
    }
}

/// Keeps up to 64 KiB of what is sent: for bodies that can be sent but once, which those of tonic and axum are. It shares
/// the bytes and copies none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded;

impl<B: Body<Data = Bytes> + From<RepeatBody<B>>> Keep<B> for Recorded {
    type Kept = RepeatBody<B>;

    fn keep(body: B) -> (B, RepeatBody<B>) {
        let kept = RepeatBody::new(body);
        (kept.reader().into(), kept)
    }

    fn is_whole(kept: &RepeatBody<B>) -> bool {
        kept.tape().is_whole
    }

    fn again(kept: &RepeatBody<B>) -> B {
        kept.reader().into()
    }
}

/// A body that is recorded while it is sent. The stack's own body type takes it by `From`.
pub struct RepeatBody<B> {
    tape: Arc<Mutex<Tape<B>>>,
    /// Frames that this reader has had.
    had: usize,
    number: u64,
}

struct Tape<B> {
    /// What has not been read yet; `None` at its end.
    rest: Option<Pin<Box<B>>>,
    frames: Vec<Piece>,
    bytes: usize,
    /// False once it became too long, and nothing is recorded any more.
    is_whole: bool,
    /// The reader that was made last. Those before it were refused, and are at their end.
    reader: u64,
}

#[derive(Clone)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Trailers(_) => 0,
        }
    }
}

impl<B> fmt::Debug for RepeatBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatBody").finish_non_exhaustive()
    }
}

impl<B> RepeatBody<B> {
    fn new(body: B) -> Self {
        let tape = Tape { rest: Some(Box::pin(body)), frames: Vec::new(), bytes: 0, is_whole: true, reader: 0 };
        Self { tape: Arc::new(Mutex::new(tape)), had: 0, number: 0 }
    }

    fn tape(&self) -> MutexGuard<'_, Tape<B>> {
        // The inner body panicked: what it had said before is still true.
        self.tape.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body from its beginning; readers before this one are at their end.
    fn reader(&self) -> Self {
        let mut tape = self.tape();
        tape.reader += 1;
        Self { tape: Arc::clone(&self.tape), had: 0, number: tape.reader }
    }
}

impl<B: Body<Data = Bytes>> Tape<B> {
    /// The next frame of what has not been read yet, which is recorded if there is room.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let frame = match ready!(rest.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                self.is_whole = false;
                return Poll::Ready(Some(Err(error)));
            }
            None => {
                self.rest = None;
                return Poll::Ready(None);
            }
        };
        if rest.is_end_stream() {
            self.rest = None;
        }
        let piece = match frame.into_data() {
            Ok(data) => Piece::Data(data),
            Err(frame) => Piece::Trailers(frame.into_trailers().unwrap_or_default()),
        };
        self.bytes += piece.len();
        if self.is_whole && self.bytes <= RECORDED_MAX {
            self.frames.push(piece.clone());
        } else {
            self.is_whole = false;
            self.frames.clear();
        }
        Poll::Ready(Some(Ok(piece.into())))
    }
}

impl From<Piece> for Frame<Bytes> {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Data(data) => Self::data(data),
            Piece::Trailers(trailers) => Self::trailers(trailers),
        }
    }
}

impl<B: Body<Data = Bytes>> Body for RepeatBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut tape = self.tape();
        if tape.reader != self.number {
            return Poll::Ready(None);
        }
        let frame = match tape.frames.get(self.had) {
            Some(piece) => Some(Ok(piece.clone().into())),
            None => ready!(tape.poll_rest(cx)),
        };
        drop(tape);
        self.had += 1;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let tape = self.tape();
        let is_read = tape.frames.len() <= self.had;
        tape.reader != self.number || is_read && tape.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let tape = self.tape();
        let again: usize = tape.frames.iter().skip(self.had).map(Piece::len).sum();
        let rest = tape.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + again as u64);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + again as u64);
        }
        hint
    }
}

#[cfg(feature = "tonic")]
impl<B> From<RepeatBody<B>> for tonic::body::Body
where
    B: Body<Data = Bytes, Error: Into<Box<dyn core::error::Error + Send + Sync>>> + Send + 'static,
{
    fn from(body: RepeatBody<B>) -> Self {
        Self::new(body)
    }
}

#[cfg(feature = "axum")]
impl<B> From<RepeatBody<B>> for axum::body::Body
where
    B: Body<Data = Bytes, Error: Into<Box<dyn core::error::Error + Send + Sync>>> + Send + 'static,
{
    fn from(body: RepeatBody<B>) -> Self {
        Self::new(body)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    /// Frames as told, each of so many bytes; pending at the end of what was told.
    #[derive(Default)]
    struct Told(Arc<Mutex<VecDeque<Option<usize>>>>);

    impl Body for Told {
        type Data = Bytes;
        type Error = core::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, core::convert::Infallible>>> {
            match self.0.lock().unwrap().pop_front() {
                Some(Some(bytes)) => Poll::Ready(Some(Ok(Frame::data(vec![b'x'; bytes].into())))),
                Some(None) => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    /// Sizes of the frames that are there, and whether the end is.
    fn read(body: &mut RepeatBody<Told>) -> (Vec<usize>, bool) {
        let mut sizes = Vec::new();
        loop {
            match Pin::new(&mut *body).poll_frame(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(frame)) => sizes.push(frame.unwrap().into_data().unwrap().len()),
                Poll::Ready(None) => return (sizes, true),
                Poll::Pending => return (sizes, false),
            }
        }
    }

    #[test]
    fn a_body_is_repeated_from_its_beginning_and_goes_on_where_it_stood() {
        let told = Told::default();
        let tell = Arc::clone(&told.0);
        let kept = RepeatBody::new(told);
        let mut first = kept.reader();
        tell.lock().unwrap().extend([Some(3), Some(5)]);
        assert_eq!(read(&mut first), (vec![3, 5], false));
        let mut second = kept.reader();
        assert_eq!((second.size_hint().lower(), second.is_end_stream()), (8, false));
        assert_eq!(read(&mut first), (vec![], true), "it was refused");
        tell.lock().unwrap().extend([Some(7), None]);
        assert_eq!(read(&mut second), (vec![3, 5, 7], true));
        assert!(kept.tape().is_whole);
        let mut third = kept.reader();
        assert_eq!(third.size_hint().exact(), Some(15));
        assert_eq!(read(&mut third), (vec![3, 5, 7], true));
        assert!(third.is_end_stream());
    }

    #[test]
    fn a_body_beyond_the_bound_is_sent_whole_and_kept_no_longer() {
        let told = Told::default();
        told.0.lock().unwrap().extend([Some(RECORDED_MAX), Some(1), Some(2), None]);
        let kept = RepeatBody::new(told);
        let mut reader = kept.reader();
        assert_eq!(read(&mut reader), (vec![RECORDED_MAX, 1, 2], true));
        assert!(!kept.tape().is_whole && kept.tape().frames.is_empty());
    }
}
