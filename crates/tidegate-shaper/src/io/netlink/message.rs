//! Bytes of requests and answers: a header, a fixed part, and attributes that may hold others.
//!
//! Numbers are in the machine's own order; attributes begin at multiples of four bytes.

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
const ALIGNMENT: usize = 4;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
/// The list changed while it was read.
const INTERRUPTED: u16 = 0x10;
/// An error carries attributes.
const HAS_ATTRIBUTES: u16 = 0x200;

const KIND_ERROR: u16 = 2;
const KIND_DONE: u16 = 3;
/// Attribute of an error: its text.
const ERROR_TEXT: u16 = 1;
/// Flags in an attribute's kind: nested, and network byte order.
const KIND_MASK: u16 = 0x3fff;
/// Longest text of an error that is shown.
const TEXT_BYTES_MAX: usize = 256;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A request that is answered by an error number, 0 for success.
    pub(super) fn request(kind: u16, flags: u16) -> Self {
        Self::new(kind, REQUEST | ACK | flags)
    }

    /// A request for a list.
    pub(super) fn dump(kind: u16) -> Self {
        Self::new(kind, REQUEST | DUMP)
    }

    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self { bytes }
    }

    /// With more of the fixed part.
    pub(super) fn with(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// With an attribute.
    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(ATTRIBUTE_BYTES + value.len()).expect("our attributes are short");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        self
    }

    /// With text, which ends with a zero.
    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let zero_ended = [value.as_bytes(), &[0]].concat();
        self.attribute(kind, &zero_ended)
    }

    /// With an attribute that holds what `fill` adds.
    pub(super) fn nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ATTRIBUTE_BYTES]);
        let mut filled = fill(self);
        let length = u16::try_from(filled.bytes.len() - start).expect("our attributes are short");
        filled.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        filled.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        filled
    }

    /// As it is sent.
    pub(super) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("our requests are short");
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// A message of the kernel's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer<'a> {
    /// The answer, or one of several.
    Part { body: &'a [u8], is_interrupted: bool },
    /// There is no more, and it went well.
    Done { is_interrupted: bool },
    /// It did not go well. `errno` is positive.
    Refused { errno: i32, said: Option<String> },
    /// It belongs to another request.
    OfAnother,
}

/// The messages in `bytes`, as they concern request `sequence`. `None` for what is no message; nothing follows it.
pub(super) fn answers(mut bytes: &[u8], sequence: u32) -> impl Iterator<Item = Option<Answer<'_>>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let Some((message, rest)) = split(bytes) else {
            bytes = &[];
            return Some(None);
        };
        bytes = rest;
        Some(read(message, sequence))
    })
}

/// The first message, and what follows.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    if length < HEADER_BYTES || length > bytes.len() {
        return None;
    }
    Some((&bytes[..length], bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or(&[])))
}

fn read(message: &[u8], sequence: u32) -> Option<Answer<'_>> {
    let (kind, flags) = (u16_at(message, 4)?, u16_at(message, 6)?);
    if u32_at(message, 8)? != sequence {
        return Some(Answer::OfAnother);
    }
    let body = &message[HEADER_BYTES..];
    let is_interrupted = flags & INTERRUPTED != 0;
    match kind {
        KIND_ERROR => {
            // The error number, the header of the request, and attributes: what else was sent is left out (capped).
            let said = body.get(4 + HEADER_BYTES..).filter(|_| flags & HAS_ATTRIBUTES != 0).and_then(error_text);
            verdict(u32_at(body, 0)?, said, is_interrupted)
        }
        KIND_DONE => {
            let said = body.get(4..).filter(|_| flags & HAS_ATTRIBUTES != 0).and_then(error_text);
            verdict(u32_at(body, 0).unwrap_or(0), said, is_interrupted)
        }
        _ => Some(Answer::Part { body, is_interrupted }),
    }
}

fn verdict<'a>(number: u32, said: Option<String>, is_interrupted: bool) -> Option<Answer<'a>> {
    match number.cast_signed() {
        0 => Some(Answer::Done { is_interrupted }),
        negative => Some(Answer::Refused { errno: negative.checked_neg().filter(|errno| *errno > 0)?, said }),
    }
}

fn error_text(attributes: &[u8]) -> Option<String> {
    let (_, text) = self::attributes(attributes).find(|(kind, _)| *kind == ERROR_TEXT)?;
    Some(self::text(text).chars().take(TEXT_BYTES_MAX).collect())
}

/// The attributes in `bytes`, with their kinds. What is malformed ends them.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & KIND_MASK;
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// Text that may end with a zero.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_read_as_they_are_written() {
        let message = Message::request(36, 0x400)
            .with(&[7; 20])
            .text(1, "htb")
            .nested(2, |inside| inside.attribute(2, &[1, 2, 3, 4, 5]).attribute(6, &9_u64.to_ne_bytes()));
        let bytes = message.finish(5);
        assert_eq!((bytes.len() % 4, u32_at(&bytes, 0), u32_at(&bytes, 8)), (0, Some(72), Some(5)));
        let Some(Some(Answer::Part { body, is_interrupted: false })) = answers(&bytes, 5).next() else { panic!() };
        let read: Vec<_> = attributes(&body[20..]).collect();
        assert_eq!((text(read[0].1), read[1].0), ("htb".to_owned(), 2));
        let inside: Vec<_> = attributes(read[1].1).collect();
        assert_eq!(inside[0], (2, &[1, 2, 3, 4, 5][..]));
        assert_eq!(u64_at(inside[1].1, 0), Some(9));
    }

    /// An error of the kernel's about request 3.
    fn refusal(number: i32, flags: u16, attributes: &[u8]) -> Vec<u8> {
        let message = Message::new(KIND_ERROR, flags).with(&number.to_ne_bytes()).with(&[0; HEADER_BYTES]);
        message.with(attributes).finish(3)
    }

    #[test]
    fn refusals_are_told_in_the_kernels_words() {
        let said = Message::new(0, 0).text(ERROR_TEXT, "htb: tree is too deep").finish(0)[HEADER_BYTES..].to_vec();
        let read = |bytes: &[u8]| answers(bytes, 3).map(|answer| format!("{answer:?}")).collect::<Vec<_>>();
        let errno_22 = |said: &str| format!("Some(Refused {{ errno: 22, said: {said} }})");
        let text = errno_22("Some(\"htb: tree is too deep\")");
        assert_eq!(read(&refusal(-22, HAS_ATTRIBUTES, &said)), [text]);
        assert_eq!(read(&refusal(-22, 0, &said)), [errno_22("None")]);
        assert_eq!(read(&refusal(0, 0, &[])), ["Some(Done { is_interrupted: false })"]);
        assert_eq!(answers(&refusal(0, 0, &[]), 4).next(), Some(Some(Answer::OfAnother)));
    }

    #[test]
    fn bytes_that_are_no_message_end_the_list() {
        for bytes in [&[1_u8, 2, 3][..], &[0; 16], &[255; 40]] {
            assert_eq!(answers(bytes, 0).collect::<Vec<_>>(), [None]);
        }
        assert_eq!(attributes(&[3, 0, 0, 0]).count(), 0, "shorter than its own header");
        assert_eq!(attributes(&[200, 0, 1, 0, 1, 2]).count(), 0, "longer than there are bytes");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(0_u8..=255, 0..200)) {
            for answer in answers(&bytes, 0).flatten() {
                if let Answer::Part { body, .. } = answer {
                    attributes(body).for_each(|(_, value)| drop(text(value)));
                }
            }
        }
    }
}
