//! Fields that are rewritten, with the checksum kept right.

use super::{Ecn, Flags, Parsed};

/// In a TCP header: header length with flags, window, checksum.
const FLAGS_AT: usize = 12;
const WINDOW_AT: usize = 14;
const CHECKSUM_AT: usize = 16;
/// In a header of IPv4.
const IP_CHECKSUM_AT: usize = 10;

/// Writes `window` into the window field of the frame that `parsed` was read from. The checksum changes by the difference
/// alone, so that it is as right or wrong afterwards as it was before; also one that the hardware is to finish.
///
/// Source: RFC 1624, equation 3.
pub fn set_window(frame: &mut [u8], parsed: &Parsed, window: u16) {
    if let Some(header) = frame.get_mut(parsed.header_at..) {
        set_word(header, WINDOW_AT, CHECKSUM_AT, window);
    }
}

/// Writes the flags of TCP.
pub fn set_flags(frame: &mut [u8], parsed: &Parsed, flags: Flags) {
    let Some(header) = frame.get_mut(parsed.header_at..) else { return };
    if let Some(&length) = header.get(FLAGS_AT) {
        set_word(header, FLAGS_AT, CHECKSUM_AT, u16::from_be_bytes([length, flags.0]));
    }
}

/// Writes the bits of congestion notification into the IP header.
pub fn set_ecn(frame: &mut [u8], parsed: &Parsed, ecn: Ecn) {
    let Some(header) = frame.get_mut(parsed.ip_at..) else { return };
    let &mut [first, second, ..] = header else { return };
    if first >> 4 == 4 {
        set_word(header, 0, IP_CHECKSUM_AT, u16::from_be_bytes([first, second & !3 | ecn.0 & 3]));
    } else {
        // IPv6 has no checksum of its own, and TCP's leaves the traffic class out.
        header[1] = second & !0x30 | (ecn.0 & 3) << 4;
    }
}

fn set_word(header: &mut [u8], at: usize, checksum_at: usize, new: u16) {
    let word = |header: &[u8], at: usize| Some(u16::from_be_bytes(*header.get(at..)?.first_chunk()?));
    let (Some(old), Some(checksum)) = (word(header, at), word(header, checksum_at)) else { return };
    header[at..at + 2].copy_from_slice(&new.to_be_bytes());
    header[checksum_at..checksum_at + 2].copy_from_slice(&updated(checksum, old, new).to_be_bytes());
}

fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).expect("twice folded, a sum of three words fits in one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The checksum over `words`, in full.
    fn full(words: &[u16]) -> u16 {
        let mut sum: u32 = words.iter().map(|word| u32::from(*word)).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    proptest! {
        #[test]
        fn the_changed_checksum_is_that_of_the_changed_words(
            mut words in proptest::collection::vec(any::<u16>(), 2..30),
            new: u16,
        ) {
            // All zeros do not occur: a header has a length.
            words[0] |= 1;
            let before = full(&words);
            let old = std::mem::replace(&mut words[1], new);
            prop_assert_eq!(updated(before, old, new), full(&words));
        }
    }
}
