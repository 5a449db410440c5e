//! Frames of the broker, as it writes them: `[u32 size][u32 type][data]`.

/// Bytes of an id: hexadecimal digits.
pub const ID_BYTES: usize = 16;

/// Bytes of a message before its body: timestamp, attempts, id.
pub const MESSAGE_HEADER_BYTES: usize = 8 + 2 + ID_BYTES;

const RESPONSE: u32 = 0;
const ERROR: u32 = 1;
const MESSAGE: u32 = 2;

/// A message without its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Unix time of the publish, ns.
    pub timestamp: i64,
    /// Deliveries so far, this one included.
    pub attempts: u16,
    /// Sixteen bytes that name the message.
    pub id: [u8; ID_BYTES],
}

impl Header {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.timestamp.to_be_bytes());
        out.extend_from_slice(&self.attempts.to_be_bytes());
        out.extend_from_slice(&self.id);
    }
}

fn put_head(out: &mut Vec<u8>, kind: u32, data_bytes: usize) {
    // Bodies are bounded far below 4 GiB before they get here.
    let size = u32::try_from(data_bytes + 4).expect("a frame is below 4 GiB");
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
}

/// Appends a response frame.
pub fn put_response(out: &mut Vec<u8>, data: &[u8]) {
    put_head(out, RESPONSE, data.len());
    out.extend_from_slice(data);
}

/// Appends the response `OK`.
#[inline]
pub fn put_ok(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\0\0\0\x06\0\0\0\0OK");
}

/// Appends an error frame: a code, and a text for people.
pub fn put_error(out: &mut Vec<u8>, data: &[u8]) {
    put_head(out, ERROR, data.len());
    out.extend_from_slice(data);
}

/// Appends a message frame.
#[inline]
pub fn put_message(out: &mut Vec<u8>, header: &Header, body: &[u8]) {
    put_head(out, MESSAGE, MESSAGE_HEADER_BYTES + body.len());
    header.put(out);
    out.extend_from_slice(body);
}

/// Appends a record of the message log: `[u32 size]`, then the message as in a frame.
pub fn put_record(out: &mut Vec<u8>, header: &Header, body: &[u8]) {
    let size = u32::try_from(MESSAGE_HEADER_BYTES + body.len()).expect("a record is below 4 GiB");
    out.extend_from_slice(&size.to_be_bytes());
    header.put(out);
    out.extend_from_slice(body);
}

/// The first record of `records`, its body, and the bytes it took; `None` if it is torn.
#[must_use]
pub fn record(records: &[u8]) -> Option<(Header, &[u8], usize)> {
    let (size, rest) = records.split_first_chunk::<4>()?;
    let size = u32::from_be_bytes(*size) as usize;
    let message = rest.get(..size)?;
    let (timestamp, message) = message.split_first_chunk::<8>()?;
    let (attempts, message) = message.split_first_chunk::<2>()?;
    let (id, body) = message.split_first_chunk::<ID_BYTES>()?;
    let header = Header { timestamp: i64::from_be_bytes(*timestamp), attempts: u16::from_be_bytes(*attempts), id: *id };
    Some((header, body, 4 + size))
}

/// Sixteen hexadecimal digits of `number`.
#[inline]
#[must_use]
pub fn hex_id(number: u64) -> [u8; ID_BYTES] {
    // Spreads each nibble into a byte of its own, then turns all of them into digits at once.
    let spread = |half: u32| {
        let mut x = u64::from(half);
        x = (x | (x << 16)) & 0x0000_ffff_0000_ffff;
        x = (x | (x << 8)) & 0x00ff_00ff_00ff_00ff;
        x = (x | (x << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
        // 1 in each byte whose nibble is above 9: those need 'a' - '0' - 10 = 39 more.
        let letters = ((x + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
        (x + 0x3030_3030_3030_3030 + letters * 39).to_be_bytes()
    };
    let mut id = [0; ID_BYTES];
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number")]
    let (high, low) = ((number >> 32) as u32, number as u32);
    id[..8].copy_from_slice(&spread(high));
    id[8..].copy_from_slice(&spread(low));
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_have_their_size_first() {
        let mut out = Vec::new();
        put_ok(&mut out);
        let mut long = Vec::new();
        put_response(&mut long, b"OK");
        assert_eq!(out, long);
    }

    proptest! {
        #[test]
        fn records_round_trip(timestamp in any::<i64>(), attempts in any::<u16>(), number in any::<u64>(), body in proptest::collection::vec(any::<u8>(), 1..99)) {
            let header = Header { timestamp, attempts, id: hex_id(number) };
            prop_assert_eq!(header.id.to_vec(), format!("{number:016x}").into_bytes());
            let mut out = Vec::new();
            put_record(&mut out, &header, &body);
            prop_assert_eq!(record(&out), Some((header, &body[..], out.len())));
            prop_assert_eq!(record(&out[..out.len() - 1]), None);
        }
    }
}
