//! Frames of members that lend each other tokens, one in a datagram.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `TGLN` |
//! | 1 | version, 1 |
//! | 1 | flags: 1 asks for an answer, 2 has an echo |
//! | 1 | number of entries, at most [`ENTRIES_MAX`] |
//! | 1 | 0 |
//! | 2, 2 | sender, receiver |
//! | 8, 8 | the sender's number of the session, the receiver's |
//! | 8, 8 | stamp of the sender, echo of the receiver's or 0 |
//! | 4 | a bit for each entry that says that one has left, the lowest for the first |
//! | 32 each | entries: circle, given, room (8 each), level, want (4 each) |
//! | 16 | `SipHash`-2-4 of all before it, of 128 bits, under the members' key |
//!
//! Numbers are little-endian. A datagram is as long as its number of entries says and has no bit without a meaning, so
//! that what was read is written again byte by byte.
//!
//! The members of a circle share a [`Key`]: whoever has it may take all tokens of the circle, whoever has not can add
//! nothing. What is said is no secret and may be heard by others; what is said again by others has no effect, as the
//! machine expects datagrams that come twice or late. To change keys, members read with both, and write with the new
//! one once all read it.
//! Source of the tag: Aumasson and Bernstein, "`SipHash`: a fast short-input PRF" (2012), §3.

use core::fmt;

use siphasher::sip128::{Hash128, SipHasher24};
use tidegate_core::lend::{Asks, Circle, ENTRIES_MAX, Entry, Frame, Member, Stamp};

/// The version that this module reads and writes.
pub const VERSION: u8 = 1;
/// No datagram is longer, and none is shorter than one without entries.
pub const DATAGRAM_BYTES_MAX: usize = HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES + TAG_BYTES;

const MAGIC: [u8; 4] = *b"TGLN";
const HEAD_BYTES: usize = 48;
const ENTRY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;

const ASKS: u8 = 1;
const ECHO: u8 = 2;

// A datagram of 1,200 bytes passes every path of today unfragmented: RFC 9000, §14; and the bits are those of a u32.
const _: () = assert!(DATAGRAM_BYTES_MAX <= 1_200 && ENTRIES_MAX <= 32);

/// The secret that the members of a circle share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl Key {
    /// A key of 128 bits, best all random.
    #[must_use]
    pub fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    fn tag(self, bytes: &[u8]) -> Hash128 {
        SipHasher24::new_with_key(&self.0).hash(bytes)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A datagram that says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadDatagram {
    /// It is shorter or longer than it says, or than any is.
    #[error("datagram of {bytes} bytes is not as long as its entries say")]
    Length {
        /// How long it is.
        bytes: usize,
    },
    /// It is of another protocol.
    #[error("datagram begins with {found:02x?}, which is another protocol")]
    Magic {
        /// What stands in its place.
        found: [u8; 4],
    },
    /// Its sender speaks another version.
    #[error("datagram is of version {found}, this side speaks {VERSION}")]
    Version {
        /// The sender's.
        found: u8,
    },
    /// It announces too many entries.
    #[error("datagram of {found} entries, the limit is {ENTRIES_MAX}")]
    Entries {
        /// How many.
        found: u8,
    },
    /// Its tag is not of any of the keys.
    #[error("datagram is not of a member that has the key")]
    Tag,
    /// A bit without a meaning is set.
    #[error("field `{field}` of a datagram has no meaning")]
    Field {
        /// Which.
        field: &'static str,
    },
    /// Two entries are of one circle.
    #[error("datagram says two things of circle {circle}")]
    Twice {
        /// Which.
        circle: u64,
    },
}

/// Appends `frame` as one datagram, signed with `key`.
///
/// # Panics
/// If it has more than [`ENTRIES_MAX`] entries.
pub fn put(out: &mut Vec<u8>, frame: &Frame, key: Key) {
    assert!(frame.entries.len() <= ENTRIES_MAX, "the machine makes no longer frames");
    let start = out.len();
    let count = u8::try_from(frame.entries.len()).expect("bounded just above");
    let asks = if frame.asks == Asks::Answer { ASKS } else { 0 };
    let (echo, has_echo) = frame.echo.map_or((0, 0), |echo| (echo.0, ECHO));
    let left = frame.entries.iter().rev().fold(0_u32, |bits, entry| (bits << 1) | u32::from(entry.over));
    out.reserve(HEAD_BYTES + frame.entries.len() * ENTRY_BYTES + TAG_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, asks | has_echo, count, 0]);
    out.extend_from_slice(&frame.from.0.to_le_bytes());
    out.extend_from_slice(&frame.to.0.to_le_bytes());
    for number in [frame.mine, frame.yours, frame.sent.0, echo] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&left.to_le_bytes());
    for entry in &frame.entries {
        for number in [entry.circle.0, entry.given, entry.room] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&entry.level.to_le_bytes());
        out.extend_from_slice(&entry.want.to_le_bytes());
    }
    let tag = key.tag(&out[start..]);
    out.extend_from_slice(&tag.as_bytes());
}

/// Reads a whole datagram that was signed with one of `keys`.
///
/// # Errors
/// [`BadDatagram`]; nothing is allocated for one.
pub fn read(datagram: &[u8], keys: &[Key]) -> Result<Frame, BadDatagram> {
    let bytes = datagram.len();
    let Some((&head, _)) = datagram.split_first_chunk::<HEAD_BYTES>() else {
        return Err(BadDatagram::Length { bytes });
    };
    let mut fields = Fields(&head);
    let magic = fields.take();
    if magic != MAGIC {
        return Err(BadDatagram::Magic { found: magic });
    }
    let [version, flags, count, zero] = fields.take();
    if version != VERSION {
        return Err(BadDatagram::Version { found: version });
    }
    if usize::from(count) > ENTRIES_MAX {
        return Err(BadDatagram::Entries { found: count });
    }
    let signed = HEAD_BYTES + usize::from(count) * ENTRY_BYTES;
    let (body, tag) = datagram.split_at_checked(signed).ok_or(BadDatagram::Length { bytes })?;
    let tag: [u8; TAG_BYTES] = tag.try_into().map_err(|_| BadDatagram::Length { bytes })?;
    let tag = Hash128::from(u128::from_le_bytes(tag));
    if !keys.iter().any(|key| key.tag(body) == tag) {
        return Err(BadDatagram::Tag);
    }
    if flags & !(ASKS | ECHO) != 0 {
        return Err(BadDatagram::Field { field: "flags" });
    }
    if zero != 0 {
        return Err(BadDatagram::Field { field: "reserved" });
    }
    let mut frame = Frame {
        from: Member(u16::from_le_bytes(fields.take())),
        to: Member(u16::from_le_bytes(fields.take())),
        mine: u64::from_le_bytes(fields.take()),
        yours: u64::from_le_bytes(fields.take()),
        sent: Stamp(u64::from_le_bytes(fields.take())),
        echo: Some(Stamp(u64::from_le_bytes(fields.take()))).filter(|_| flags & ECHO != 0),
        asks: if flags & ASKS != 0 { Asks::Answer } else { Asks::Nothing },
        entries: Vec::new(),
    };
    if flags & ECHO == 0 && head[36..44] != [0; 8] {
        return Err(BadDatagram::Field { field: "echo" });
    }
    let left = u32::from_le_bytes(fields.take());
    if u64::from(left) >> count != 0 {
        return Err(BadDatagram::Field { field: "left" });
    }
    let (entries, _) = body[HEAD_BYTES..].as_chunks::<ENTRY_BYTES>();
    for (place, entry) in entries.iter().enumerate() {
        // At most 32 short comparisons for each.
        if entries[..place].iter().any(|before| before[..8] == entry[..8]) {
            return Err(BadDatagram::Twice { circle: u64::from_le_bytes(Fields(entry).take()) });
        }
    }
    frame.entries.reserve_exact(entries.len());
    frame.entries.extend(entries.iter().zip(0..).map(|(entry, place)| read_entry(entry, (left >> place) & 1 != 0)));
    Ok(frame)
}

fn read_entry(bytes: &[u8; ENTRY_BYTES], over: bool) -> Entry {
    let mut fields = Fields(bytes);
    Entry {
        circle: Circle(u64::from_le_bytes(fields.take())),
        given: u64::from_le_bytes(fields.take()),
        room: u64::from_le_bytes(fields.take()),
        level: i32::from_le_bytes(fields.take()),
        want: u32::from_le_bytes(fields.take()),
        over,
    }
}

/// Fields of fixed sizes, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// The next `N` bytes.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.0.split_first_chunk().expect("the sizes of all fields are that of the array");
        self.0 = rest;
        *bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const KEY: Key = Key([7; 16]);
    const OTHER: Key = Key([8; 16]);

    fn entry() -> impl Strategy<Value = Entry> {
        (any::<[u64; 2]>(), any::<i32>(), any::<u32>(), any::<bool>())
            .prop_map(|([given, room], level, want, over)| Entry { circle: Circle(0), given, room, level, want, over })
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let numbers = (any::<[u16; 2]>(), any::<[u64; 3]>(), any::<Option<u64>>(), any::<bool>(), any::<u64>());
        (numbers, vec(entry(), 0..=ENTRIES_MAX)).prop_map(
            |(([from, to], [mine, yours, sent], echo, answer, first), mut entries)| {
                for (entry, place) in entries.iter_mut().zip(0..) {
                    entry.circle = Circle(first.wrapping_add(place));
                }
                Frame {
                    from: Member(from),
                    to: Member(to),
                    mine,
                    yours,
                    sent: Stamp(sent),
                    echo: echo.map(Stamp),
                    asks: if answer { Asks::Answer } else { Asks::Nothing },
                    entries,
                }
            },
        )
    }

    fn written(frame: &Frame) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, frame, KEY);
        out
    }

    fn frame(entries: u64) -> Frame {
        let entry = |circle| Entry { circle: Circle(circle), given: 2, room: 3, level: -4, want: 5, over: circle == 1 };
        Frame {
            from: Member(1),
            to: Member(0x0203),
            mine: 4,
            yours: 5,
            sent: Stamp(6),
            echo: None,
            asks: Asks::Answer,
            entries: (0..entries).map(entry).collect(),
        }
    }

    /// `frame(1)` with a byte changed, signed again.
    fn changed(place: usize, byte: u8) -> Result<Frame, BadDatagram> {
        let mut out = written(&frame(1));
        out[place] = byte;
        let signed = out.len() - TAG_BYTES;
        let tag = KEY.tag(&out[..signed]).as_bytes();
        out[signed..].copy_from_slice(&tag);
        read(&out, &[KEY])
    }

    #[test]
    fn the_tag_is_the_published_one() {
        // The first of the reference implementation's vectors of 128 bits.
        let key = Key(core::array::from_fn(|place| u8::try_from(place).unwrap()));
        let expected = [0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93];
        assert_eq!(key.tag(&[]).as_bytes(), expected);
        assert_eq!(format!("{key:?}"), "Key(..)");
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        let mut out = written(&frame(2));
        assert_eq!(out.len(), 48 + 2 * 32 + 16);
        out.truncate(48 + 32);
        let expected: Vec<u8> = [
            &b"TGLN"[..],
            &[1, 1, 2, 0, 1, 0, 3, 2],
            &[4, 0, 0, 0, 0, 0, 0, 0],
            &[5, 0, 0, 0, 0, 0, 0, 0],
            &[6, 0, 0, 0, 0, 0, 0, 0],
            &[0; 8],
            &[2, 0, 0, 0],
            &[0; 8],
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[0xfc, 0xff, 0xff, 0xff, 5, 0, 0, 0],
        ]
        .concat();
        assert_eq!(out, expected);
    }

    #[test]
    fn what_has_no_meaning_is_refused_even_with_the_key() {
        assert_eq!(changed(8, 1), Ok(frame(1)), "unchanged");
        assert_eq!(changed(0, b'X'), Err(BadDatagram::Magic { found: *b"XGLN" }));
        assert_eq!(changed(4, 2), Err(BadDatagram::Version { found: 2 }));
        assert_eq!(changed(5, 4), Err(BadDatagram::Field { field: "flags" }));
        assert_eq!(changed(6, 33), Err(BadDatagram::Entries { found: 33 }));
        assert_eq!(changed(6, 2), Err(BadDatagram::Length { bytes: 96 }));
        assert_eq!(changed(6, 0), Err(BadDatagram::Length { bytes: 96 }));
        assert_eq!(changed(7, 1), Err(BadDatagram::Field { field: "reserved" }));
        assert_eq!(changed(43, 1), Err(BadDatagram::Field { field: "echo" }));
        assert_eq!(changed(44, 2), Err(BadDatagram::Field { field: "left" }));
        let mut twice = frame(3);
        twice.entries[2].circle = Circle(1);
        assert_eq!(read(&written(&twice), &[KEY]), Err(BadDatagram::Twice { circle: 1 }));
    }

    #[test]
    fn any_of_the_keys_will_do_and_no_other() {
        let out = written(&frame(1));
        assert_eq!(read(&out, &[OTHER, KEY]), Ok(frame(1)));
        assert_eq!(read(&out, &[OTHER]), Err(BadDatagram::Tag));
        assert_eq!(read(&out, &[]), Err(BadDatagram::Tag));
    }

    proptest! {
        #[test]
        fn frames_read_as_they_were_written(frame in frames(), before in vec(any::<u8>(), 0..5)) {
            let mut out = before.clone();
            put(&mut out, &frame, KEY);
            let datagram = &out[before.len()..];
            prop_assert!(datagram.len() <= DATAGRAM_BYTES_MAX && out.starts_with(&before));
            prop_assert_eq!(read(datagram, &[KEY]), Ok(frame));
        }

        #[test]
        fn no_other_bytes_pass(frame in frames(), place in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let mut out = written(&frame);
            let place = place.index(out.len());
            out[place] ^= flip;
            prop_assert!(read(&out, &[KEY]).is_err());
            out[place] ^= flip;
            prop_assert_eq!(read(&out[..place], &[KEY]).map(|_| ()), Err(BadDatagram::Length { bytes: place }));
            out.push(flip);
            prop_assert_eq!(read(&out, &[KEY]), Err(BadDatagram::Length { bytes: out.len() }));
        }

        #[test]
        fn what_can_be_read_is_written_again_byte_by_byte(
            bytes in vec(any::<u8>(), 0..DATAGRAM_BYTES_MAX + 40),
            sound in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if sound && bytes.len() >= HEAD_BYTES + TAG_BYTES {
                // So that some get past the first checks.
                let count = (bytes.len() - HEAD_BYTES - TAG_BYTES) / ENTRY_BYTES;
                bytes.truncate(HEAD_BYTES + count * ENTRY_BYTES + TAG_BYTES);
                bytes[..4].copy_from_slice(&MAGIC);
                (bytes[4], bytes[6]) = (VERSION, u8::try_from(count).unwrap());
                (bytes[5], bytes[7]) = ((bytes[5] & 3) | ECHO, 0);
                bytes[44..48].fill(0);
                let signed = bytes.len() - TAG_BYTES;
                let tag = KEY.tag(&bytes[..signed]).as_bytes();
                bytes[signed..].copy_from_slice(&tag);
            }
            match read(&bytes, &[KEY]) {
                Ok(frame) => prop_assert_eq!(written(&frame), bytes),
                Err(BadDatagram::Twice { .. } | BadDatagram::Entries { .. }) => {}
                Err(_) => prop_assert!(!sound || bytes.len() < HEAD_BYTES + TAG_BYTES),
            }
        }
    }
}
