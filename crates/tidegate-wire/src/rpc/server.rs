//! What servers answer.

use super::frame::{BadFrame, Decoded, Fields, HEAD_BYTES, Head, body, check_bits, payload_bytes};

const RESPONSE: u8 = 5;
const GRANT: u8 = 6;

const RESPONSE_BYTES: usize = 40;
const GRANT_BYTES: usize = 24;

const HAS_GRANT: u8 = 1;

const SERVED: u8 = 0;
const SHED: u8 = 1;
const FAILED: u8 = 2;

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The handler ran; the payload is its answer.
    Served,
    /// The handler did not run, so the call may be sent again.
    Shed {
        /// Why, in numbers that the two ends agree on.
        reason: u8,
    },
    /// The handler ran and failed; the payload is what it says about it.
    Failed,
}

/// A permission to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// How long it holds, in nanoseconds; 0 until the next one.
    pub lease_ns: u64,
    /// Calls that may be in flight.
    pub window: u32,
    /// The scheme's own.
    pub level: u32,
}

/// A response without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response {
    /// The request's.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// From the reading of the request's bytes to the response, in nanoseconds.
    pub server_time_ns: u64,
    /// `None` from a server without overload control.
    pub grant: Option<Grant>,
}

/// A frame of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// The end of a call, and its payload.
    Response(Response, &'a [u8]),
    /// A grant without an answer.
    Grant(Grant),
}

impl Grant {
    #[inline]
    fn put_fields(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lease_ns.to_le_bytes());
        out.extend_from_slice(&self.window.to_le_bytes());
        out.extend_from_slice(&self.level.to_le_bytes());
    }

    #[inline]
    fn read(fields: &mut Fields<'_>) -> Self {
        Self { lease_ns: fields.u64(), window: fields.u32(), level: fields.u32() }
    }
}

impl Status {
    #[inline]
    fn marks(self) -> [u8; 2] {
        match self {
            Self::Served => [SERVED, 0],
            Self::Shed { reason } => [SHED, reason],
            Self::Failed => [FAILED, 0],
        }
    }

    #[inline]
    fn read(status: u8, reason: u8) -> Result<Self, BadFrame> {
        match (status, reason) {
            (SERVED, 0) => Ok(Self::Served),
            (SHED, reason) => Ok(Self::Shed { reason }),
            (FAILED, 0) => Ok(Self::Failed),
            (SERVED | FAILED, value) => Err(BadFrame::Field { field: "reason", value }),
            (value, _) => Err(BadFrame::Field { field: "status", value }),
        }
    }
}

/// Appends a response.
///
/// # Panics
/// If the payload is not below 4 GiB.
#[inline]
pub fn put_response(out: &mut Vec<u8>, response: &Response, payload: &[u8]) {
    let [status, reason] = response.status.marks();
    let flags = u8::from(response.grant.is_some()) * HAS_GRANT;
    Head { payload: payload_bytes(payload), kind: RESPONSE, marks: [flags, status, reason] }.put(out);
    out.extend_from_slice(&response.id.to_le_bytes());
    out.extend_from_slice(&response.server_time_ns.to_le_bytes());
    response.grant.unwrap_or_default().put_fields(out);
    out.extend_from_slice(payload);
}

/// Appends a grant.
pub fn put_grant(out: &mut Vec<u8>, grant: &Grant) {
    Head { payload: 0, kind: GRANT, marks: [0; 3] }.put(out);
    grant.put_fields(out);
}

/// The first frame of `input`, as a client reads it.
///
/// `payload_max` bounds the payload in bytes: a frame that announces more is refused before it is waited for.
///
/// # Errors
/// [`BadFrame`] when the bytes cannot become a frame; the stream is lost then.
#[inline]
pub fn frame(input: &[u8], payload_max: u32) -> Result<Decoded<Frame<'_>>, BadFrame> {
    let Some(head) = input.first_chunk::<HEAD_BYTES>() else { return Ok(Decoded::Need(HEAD_BYTES)) };
    let head = Head::read(*head);
    let [flags, status, reason] = head.marks;
    match head.kind {
        RESPONSE => {
            head.check_payload(payload_max)?;
            check_bits("flags", flags, HAS_GRANT)?;
            let status = Status::read(status, reason)?;
            let (mut fields, payload, total) = match body(input, RESPONSE_BYTES, head.payload) {
                Ok(body) => body,
                Err(need) => return Ok(Decoded::Need(need)),
            };
            let (id, server_time_ns, grant) = (fields.u64(), fields.u64(), Grant::read(&mut fields));
            let has_grant = flags & HAS_GRANT != 0;
            if !has_grant && grant != Grant::default() {
                return Err(BadFrame::Field { field: "flags", value: flags });
            }
            let response = Response { id, status, server_time_ns, grant: has_grant.then_some(grant) };
            Ok(Decoded::Frame(Frame::Response(response, payload), total))
        }
        GRANT => {
            head.check_payload(0)?;
            check_bits("reserved", flags | status | reason, 0)?;
            Ok(match body(input, GRANT_BYTES, 0) {
                Ok((mut fields, _, total)) => Decoded::Frame(Frame::Grant(Grant::read(&mut fields)), total),
                Err(need) => Decoded::Need(need),
            })
        }
        kind => Err(BadFrame::Kind(kind)),
    }
}

/// Appends `frame` as it would be sent.
pub fn put(out: &mut Vec<u8>, frame: &Frame<'_>) {
    match frame {
        Frame::Response(response, payload) => put_response(out, response, payload),
        Frame::Grant(grant) => put_grant(out, grant),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MAX: u32 = 64;

    fn response() -> impl Strategy<Value = Response> {
        (any::<[u64; 3]>(), 0..3_u8, any::<u8>(), any::<bool>(), any::<[u32; 2]>()).prop_map(
            |([id, server_time_ns, lease_ns], status, reason, has_grant, [window, level])| Response {
                id,
                server_time_ns,
                status: [Status::Served, Status::Shed { reason }, Status::Failed][usize::from(status)],
                grant: has_grant.then_some(Grant { lease_ns, window, level }),
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
        assert_eq!(head(MAX + 1, RESPONSE, [0; 3]), Err(BadFrame::TooLarge { announced: MAX + 1, limit: MAX }));
        assert_eq!(head(1, GRANT, [0; 3]), Err(BadFrame::TooLarge { announced: 1, limit: 0 }));
        assert_eq!(head(0, 2, [0; 3]), Err(BadFrame::Kind(2)), "a request comes from a client");
        assert_eq!(head(0, RESPONSE, [2, 0, 0]), Err(BadFrame::Field { field: "flags", value: 2 }));
        assert_eq!(head(0, RESPONSE, [0, 3, 0]), Err(BadFrame::Field { field: "status", value: 3 }));
        assert_eq!(head(0, RESPONSE, [0, SERVED, 1]), Err(BadFrame::Field { field: "reason", value: 1 }));
        assert_eq!(head(0, RESPONSE, [0, SHED, 200]), Ok(()));
    }

    proptest! {
        #[test]
        fn frames_read_as_they_were_written_however_they_are_split(response in response(), payload in vec(any::<u8>(), 0..40), cut in any::<prop::sample::Index>()) {
            let mut out = Vec::new();
            let sent = [Frame::Response(response, &payload), Frame::Grant(response.grant.unwrap_or_default())];
            for each in &sent {
                put(&mut out, each);
            }
            let arrived = &out[..cut.index(out.len() + 1)];
            let (mut rest, mut found) = (arrived, 0);
            loop {
                match frame(rest, MAX).unwrap() {
                    Decoded::Frame(read, used) => {
                        prop_assert_eq!(read, sent[found]);
                        found += 1;
                        rest = &rest[used..];
                    }
                    Decoded::Need(bytes) => {
                        prop_assert!(bytes > rest.len());
                        break;
                    }
                }
            }
            prop_assert!(arrived.len() < out.len() || found == sent.len());
        }

        #[test]
        fn what_can_be_read_is_written_again_byte_by_byte(input in vec(any::<u8>(), 0..80), kind in 4..8_u8) {
            let mut input = input;
            if input.len() > 8 {
                let head = [input[0] % 40, 0, 0, 0, kind, input[5] % 2, input[6] % 3, input[7] % 2];
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
