//! What clients send.

use super::frame::{BadFrame, Decoded, Fields, HEAD_BYTES, Head, VERSION, body, check_bits, payload_bytes};

const HELLO: u8 = 1;
const REQUEST: u8 = 2;
const DEMAND: u8 = 3;
const CANCEL: u8 = 4;

const HELLO_BYTES: usize = 16;
const REQUEST_BYTES: usize = 32;
const DEMAND_BYTES: usize = 24;
const CANCEL_BYTES: usize = 16;

/// `TGRP`, as the first bytes of a hello's own fields.
const MAGIC: u32 = u32::from_le_bytes(*b"TGRP");

const EXACT: u8 = 1;
const CREDITED: u8 = 2;
const AWARE: u8 = 4;
const FLAGS: u8 = EXACT | CREDITED | AWARE;

/// What the client wants, beside every call and on its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// Calls that wait at the client.
    pub demand: u32,
    /// The demand is all there is.
    pub exact: bool,
    /// Sent under a credit.
    pub credited: bool,
    /// The client obeys grants.
    pub aware: bool,
    /// 0 matters most, 255 least.
    pub priority: u8,
    /// Nanoseconds that are left to the deadline; 0 if there is none.
    pub budget_ns: u64,
    /// The shortest round trip seen, in nanoseconds; 0 if none was. Longer ones than 4.29 s are written as that.
    pub round_trip_ns: u32,
}

/// A frame of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// Who speaks; the first frame and no other.
    Hello {
        /// Whom the calls belong to; 0 if nobody said.
        tenant: u32,
    },
    /// A call.
    Request {
        /// Unique among the calls of the connection that have no answer yet.
        id: u64,
        /// What comes with it.
        wish: Wish,
        /// For the handler.
        payload: &'a [u8],
    },
    /// The demand without a call.
    Demand(Wish),
    /// The answer to this call is not wanted any more, and none will come if it has not left yet.
    Cancel {
        /// The call.
        id: u64,
    },
}

impl Wish {
    #[inline]
    fn marks(&self) -> [u8; 3] {
        let flags = [(self.exact, EXACT), (self.credited, CREDITED), (self.aware, AWARE)];
        [flags.iter().map(|&(is_set, bit)| u8::from(is_set) * bit).sum(), self.priority, 0]
    }

    #[inline]
    fn put_fields(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.budget_ns.to_le_bytes());
        out.extend_from_slice(&self.demand.to_le_bytes());
        out.extend_from_slice(&self.round_trip_ns.to_le_bytes());
    }

    #[inline]
    fn read(marks: [u8; 3], fields: &mut Fields<'_>) -> Self {
        let [flags, priority, _] = marks;
        Self {
            budget_ns: fields.u64(),
            demand: fields.u32(),
            round_trip_ns: fields.u32(),
            exact: flags & EXACT != 0,
            credited: flags & CREDITED != 0,
            aware: flags & AWARE != 0,
            priority,
        }
    }

    #[inline]
    fn check(marks: [u8; 3]) -> Result<(), BadFrame> {
        check_bits("flags", marks[0], FLAGS)?;
        check_bits("reserved", marks[2], 0)
    }
}

/// Appends a hello.
pub fn put_hello(out: &mut Vec<u8>, tenant: u32) {
    Head { payload: 0, kind: HELLO, marks: [VERSION, 0, 0] }.put(out);
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&tenant.to_le_bytes());
}

/// Appends a request.
///
/// # Panics
/// If the payload is not below 4 GiB.
#[inline]
pub fn put_request(out: &mut Vec<u8>, id: u64, wish: &Wish, payload: &[u8]) {
    Head { payload: payload_bytes(payload), kind: REQUEST, marks: wish.marks() }.put(out);
    out.extend_from_slice(&id.to_le_bytes());
    wish.put_fields(out);
    out.extend_from_slice(payload);
}

/// Appends a demand.
pub fn put_demand(out: &mut Vec<u8>, wish: &Wish) {
    Head { payload: 0, kind: DEMAND, marks: wish.marks() }.put(out);
    wish.put_fields(out);
}

/// Appends a cancel.
pub fn put_cancel(out: &mut Vec<u8>, id: u64) {
    Head { payload: 0, kind: CANCEL, marks: [0; 3] }.put(out);
    out.extend_from_slice(&id.to_le_bytes());
}

/// The first frame of `input`, as a server reads it.
///
/// `payload_max` bounds the payload in bytes: a frame that announces more is refused before it is waited for.
///
/// # Errors
/// [`BadFrame`] when the bytes cannot become a frame; the stream is lost then.
#[inline]
pub fn frame(input: &[u8], payload_max: u32) -> Result<Decoded<Frame<'_>>, BadFrame> {
    let Some(head) = input.first_chunk::<HEAD_BYTES>() else { return Ok(Decoded::Need(HEAD_BYTES)) };
    let head = Head::read(*head);
    let marks = head.marks;
    let header_bytes = match head.kind {
        REQUEST => {
            head.check_payload(payload_max)?;
            Wish::check(marks)?;
            REQUEST_BYTES
        }
        HELLO => {
            head.check_payload(0)?;
            if marks[0] != VERSION {
                return Err(BadFrame::Version { found: marks[0] });
            }
            check_bits("reserved", marks[1] | marks[2], 0)?;
            HELLO_BYTES
        }
        DEMAND => {
            head.check_payload(0)?;
            Wish::check(marks)?;
            DEMAND_BYTES
        }
        CANCEL => {
            head.check_payload(0)?;
            check_bits("reserved", marks[0] | marks[1] | marks[2], 0)?;
            CANCEL_BYTES
        }
        kind => return Err(BadFrame::Kind(kind)),
    };
    let (mut fields, payload, total) = match body(input, header_bytes, head.payload) {
        Ok(body) => body,
        Err(need) => return Ok(Decoded::Need(need)),
    };
    let frame = match head.kind {
        REQUEST => Frame::Request { id: fields.u64(), wish: Wish::read(marks, &mut fields), payload },
        HELLO => match fields.u32() {
            MAGIC => Frame::Hello { tenant: fields.u32() },
            found => return Err(BadFrame::Magic { found }),
        },
        DEMAND => Frame::Demand(Wish::read(marks, &mut fields)),
        _ => Frame::Cancel { id: fields.u64() },
    };
    Ok(Decoded::Frame(frame, total))
}

/// Appends `frame` as it would be sent.
pub fn put(out: &mut Vec<u8>, frame: &Frame<'_>) {
    match frame {
        Frame::Hello { tenant } => put_hello(out, *tenant),
        Frame::Request { id, wish, payload } => put_request(out, *id, wish, payload),
        Frame::Demand(wish) => put_demand(out, wish),
        Frame::Cancel { id } => put_cancel(out, *id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MAX: u32 = 64;

    fn wish() -> impl Strategy<Value = Wish> {
        (any::<u32>(), any::<[bool; 3]>(), any::<u8>(), any::<u64>(), any::<u32>()).prop_map(
            |(demand, [exact, credited, aware], priority, budget_ns, round_trip_ns)| Wish {
                demand,
                exact,
                credited,
                aware,
                priority,
                budget_ns,
                round_trip_ns,
            },
        )
    }

    #[derive(Clone, Debug)]
    struct Owned(Frame<'static>, Vec<u8>);

    impl Owned {
        fn frame(&self) -> Frame<'_> {
            match self.0 {
                Frame::Request { id, wish, .. } => Frame::Request { id, wish, payload: &self.1 },
                other => other,
            }
        }
    }

    fn any_frame() -> impl Strategy<Value = Owned> {
        (0..4_u8, any::<u64>(), any::<u32>(), wish(), vec(any::<u8>(), 0..40)).prop_map(
            |(kind, id, tenant, wish, payload)| {
                let frame = match kind {
                    0 => Frame::Hello { tenant },
                    1 => Frame::Request { id, wish, payload: b"" },
                    2 => Frame::Demand(wish),
                    _ => Frame::Cancel { id },
                };
                Owned(frame, payload)
            },
        )
    }

    #[test]
    fn impossible_frames_are_refused_at_their_first_eight_bytes() {
        let head = |payload: u32, kind, marks| {
            let mut out = Vec::new();
            Head { payload, kind, marks }.put(&mut out);
            frame(&out, MAX).map(|_| ())
        };
        assert_eq!(head(MAX + 1, REQUEST, [0; 3]), Err(BadFrame::TooLarge { announced: MAX + 1, limit: MAX }));
        assert_eq!(head(1, CANCEL, [0; 3]), Err(BadFrame::TooLarge { announced: 1, limit: 0 }));
        assert_eq!(head(0, 5, [0; 3]), Err(BadFrame::Kind(5)), "a response comes from a server");
        assert_eq!(head(0, REQUEST, [8, 0, 0]), Err(BadFrame::Field { field: "flags", value: 8 }));
        assert_eq!(head(0, DEMAND, [0, 0, 1]), Err(BadFrame::Field { field: "reserved", value: 1 }));
        assert_eq!(head(0, HELLO, [2, 0, 0]), Err(BadFrame::Version { found: 2 }));
        assert_eq!(head(MAX, REQUEST, [7, 255, 0]), Ok(()));
    }

    #[test]
    fn another_protocol_is_not_a_hello() {
        let mut out = Vec::new();
        put_hello(&mut out, 7);
        out[8] ^= 1;
        assert!(matches!(frame(&out, MAX), Err(BadFrame::Magic { .. })));
        assert!(frame(b"GET / HTTP/1.1\r\n", MAX).is_err());
    }

    proptest! {
        #[test]
        fn frames_read_as_they_were_written_however_they_are_split(frames in vec(any_frame(), 1..6), cut in any::<prop::sample::Index>()) {
            let mut out = Vec::new();
            for each in &frames {
                put(&mut out, &each.frame());
            }
            // The whole, as far as it has arrived, says the same frames and then how much is missing.
            let arrived = &out[..cut.index(out.len() + 1)];
            let mut rest = arrived;
            let mut found = 0;
            loop {
                match frame(rest, MAX).unwrap() {
                    Decoded::Frame(read, used) => {
                        prop_assert_eq!(read, frames[found].frame());
                        found += 1;
                        rest = &rest[used..];
                    }
                    Decoded::Need(bytes) => {
                        prop_assert!(bytes > rest.len());
                        let begun = arrived.len() - rest.len();
                        prop_assert!(begun == out.len() || begun + bytes <= out.len(), "it never asks for the next frame");
                        break;
                    }
                }
            }
            prop_assert!(arrived.len() < out.len() || found == frames.len());
        }

        #[test]
        fn what_can_be_read_is_written_again_byte_by_byte(input in vec(any::<u8>(), 0..80), kind in 0..6_u8) {
            let mut input = input;
            if input.len() > 8 {
                let head = [input[0] % 40, 0, 0, 0, kind, input[5] % 8, input[6], 0];
                input[..8].copy_from_slice(&head);
            }
            if let Ok(Decoded::Frame(read, used)) = frame(&input, MAX) {
                let mut again = Vec::new();
                put(&mut again, &read);
                prop_assert_eq!(&again[..], &input[..used]);
            }
        }
    }
}
