//! Commands of a client, as the broker reads them.
//!
//! A command is a line, and for some verbs a body behind it. The line is parsed here; whether a body may follow, and how
//! large it may be, depends on the state of the connection, so the reader reads its [`length`] when it is due.

/// What a client sends first.
pub const MAGIC: &[u8; 4] = b"  V2";

/// The longest command line, with its end: nsqd's read buffer.
pub const LINE_BYTES_MAX: usize = 16 * 1024;

/// What a command wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Client metadata and feature negotiation; a JSON body follows.
    Identify,
    /// A secret; a body follows.
    Auth,
    /// Subscribe: topic, channel.
    Sub,
    /// Ready for so many messages: `[count]`.
    Rdy,
    /// Finish: id.
    Fin,
    /// Requeue: id, delay in ms.
    Req,
    /// Extend the time-out: id.
    Touch,
    /// Publish: topic; a body follows.
    Pub,
    /// Publish many: topic; a body of bodies follows.
    Mpub,
    /// Publish deferred: topic, delay in ms; a body follows.
    Dpub,
    /// Nothing.
    Nop,
    /// Close cleanly.
    Cls,
    /// None of these.
    Unknown,
}

/// A command line without its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// What is wanted.
    pub verb: Verb,
    /// The verb as it came, for error texts.
    pub verb_text: &'a [u8],
    params: &'a [u8],
    count: usize,
}

impl<'a> Line<'a> {
    /// Parameter `index`, from 0. Split on single spaces, so one may be empty, as in nsqd.
    #[must_use]
    pub fn param(&self, index: usize) -> Option<&'a [u8]> {
        if index >= self.count {
            return None;
        }
        self.params.split(|&b| b == b' ').nth(index)
    }

    /// Number of parameters.
    #[must_use]
    pub fn param_count(&self) -> usize {
        self.count
    }
}

/// A command line of more than [`LINE_BYTES_MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("command line exceeds {LINE_BYTES_MAX} bytes")]
pub struct LineTooLong;

/// The first command line of `input` and how many bytes it took, or `None` if its end is not there yet.
///
/// # Errors
/// [`LineTooLong`] when no end can come within the bound.
pub fn line(input: &[u8]) -> Result<Option<(Line<'_>, usize)>, LineTooLong> {
    let window = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() == LINE_BYTES_MAX { Err(LineTooLong) } else { Ok(None) };
    };
    let text = window[..end].strip_suffix(b"\r").unwrap_or(&window[..end]);
    let (verb_text, params, count) = match memchr::memchr(b' ', text) {
        Some(at) => (&text[..at], &text[at + 1..], 1 + memchr::memchr_iter(b' ', &text[at + 1..]).count()),
        None => (text, &text[text.len()..], 0),
    };
    Ok(Some((Line { verb: verb(verb_text), verb_text, params, count }, end + 1)))
}

fn verb(text: &[u8]) -> Verb {
    match text {
        b"FIN" => Verb::Fin,
        b"PUB" => Verb::Pub,
        b"MPUB" => Verb::Mpub,
        b"RDY" => Verb::Rdy,
        b"REQ" => Verb::Req,
        b"NOP" => Verb::Nop,
        b"TOUCH" => Verb::Touch,
        b"DPUB" => Verb::Dpub,
        b"SUB" => Verb::Sub,
        b"IDENTIFY" => Verb::Identify,
        b"AUTH" => Verb::Auth,
        b"CLS" => Verb::Cls,
        _ => Verb::Unknown,
    }
}

/// The signed big-endian length at the start of `input`, if it is there.
#[must_use]
pub fn length(input: &[u8]) -> Option<i32> {
    input.first_chunk::<4>().map(|bytes| i32::from_be_bytes(*bytes))
}

/// A decimal number as nsqd reads one: digits only.
#[must_use]
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, &digit| {
        digit.is_ascii_digit().then(|| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?
    })
}

/// What is wrong with the body of an MPUB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadBatch {
    /// The count is zero, negative or above the bound.
    #[error("invalid message count {0}")]
    Count(i32),
    /// A message's size is zero or negative.
    #[error("invalid message({index}) body size {size}")]
    Size {
        /// Which message, from 0.
        index: usize,
        /// Its announced size.
        size: i32,
    },
    /// A message is too large.
    #[error("message too big {size} > {limit}")]
    TooBig {
        /// Its announced size.
        size: i32,
        /// `--max-msg-size`.
        limit: usize,
    },
    /// The body ends inside a message, or goes on after the last one.
    #[error("failed to read message body")]
    Torn,
}

/// The messages of an MPUB body, checked as a whole: `[count]`, then for each `[size][body]`.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    rest: &'a [u8],
    count: usize,
    bytes: usize,
}

impl<'a> Batch<'a> {
    /// Checks `body`, whose messages are at most `max_msg_size` bytes and at most `max_count`.
    ///
    /// # Errors
    /// [`BadBatch`] names the first fault; nothing of a faulty batch may be published.
    pub fn parse(body: &'a [u8], max_msg_size: usize, max_count: usize) -> Result<Self, BadBatch> {
        let announced = length(body).ok_or(BadBatch::Torn)?;
        let count = usize::try_from(announced).ok().filter(|n| (1..=max_count).contains(n));
        let count = count.ok_or(BadBatch::Count(announced))?;
        let mut rest = &body[4..];
        for index in 0..count {
            let size = length(rest).ok_or(BadBatch::Torn)?;
            let length = usize::try_from(size).ok().filter(|n| *n > 0).ok_or(BadBatch::Size { index, size })?;
            if length > max_msg_size {
                return Err(BadBatch::TooBig { size, limit: max_msg_size });
            }
            rest = rest.get(4 + length..).ok_or(BadBatch::Torn)?;
        }
        if !rest.is_empty() {
            return Err(BadBatch::Torn);
        }
        Ok(Self { rest: &body[4..], count, bytes: body.len() - 4 - 4 * count })
    }

    /// Number of messages.
    #[must_use]
    pub fn message_count(&self) -> usize {
        self.count
    }

    /// Sum of the bodies' bytes.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.bytes
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (size, rest) = self.rest.split_first_chunk::<4>()?;
        let (body, rest) = rest.split_at_checked(u32::from_be_bytes(*size) as usize)?;
        self.rest = rest;
        Some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_split_on_single_spaces() {
        let (sub, used) = line(b"SUB topic chan\r\nRDY").unwrap().unwrap();
        assert_eq!(
            (sub.verb, sub.param(0), sub.param(1), used),
            (Verb::Sub, Some(&b"topic"[..]), Some(&b"chan"[..]), 16)
        );
        let (rdy, _) = line(b"RDY\n").unwrap().unwrap();
        assert_eq!((rdy.verb, rdy.param(0), rdy.param_count()), (Verb::Rdy, None, 0));
        let (odd, _) = line(b"PUB  x\n").unwrap().unwrap();
        assert_eq!((odd.param(0), odd.param(1)), (Some(&b""[..]), Some(&b"x"[..])));
        assert_eq!(line(b"PUB x"), Ok(None));
        assert_eq!(line(&[b'x'; LINE_BYTES_MAX]), Err(LineTooLong));
    }

    #[test]
    fn a_faulty_batch_is_refused_whole() {
        let good = [0, 0, 0, 2, 0, 0, 0, 1, b'a', 0, 0, 0, 2, b'b', b'c'];
        assert_eq!(Batch::parse(&good, 10, 9).unwrap().collect::<Vec<_>>(), [&b"a"[..], b"bc"]);
        assert!(matches!(Batch::parse(&good, 1, 9), Err(BadBatch::TooBig { size: 2, limit: 1 })));
        assert!(matches!(Batch::parse(&good[..14], 10, 9), Err(BadBatch::Torn)));
        let mut empty = good;
        empty[7] = 0;
        assert!(matches!(Batch::parse(&empty, 10, 9), Err(BadBatch::Size { index: 0, size: 0 })));
        let mut many = good;
        many[3] = 3;
        assert!(matches!(Batch::parse(&many, 10, 9), Err(BadBatch::Torn)));
        assert!(matches!(Batch::parse(&many, 10, 2), Err(BadBatch::Count(3))));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = line(&bytes);
            if let Ok(batch) = Batch::parse(&bytes, 64, 40) {
                prop_assert_eq!(batch.message_count(), batch.clone().count());
                prop_assert_eq!(batch.clone().map(<[u8]>::len).sum::<usize>(), batch.body_bytes());
            }
        }

        #[test]
        fn decimals_are_digits_only(n in any::<u64>()) {
            prop_assert_eq!(decimal(n.to_string().as_bytes()), Some(n));
            prop_assert_eq!(decimal(format!("-{n}").as_bytes()), None);
        }
    }
}
