//! The window field, with the checksum kept right.

use super::Parsed;

const WINDOW_AT: usize = 14;
const CHECKSUM_AT: usize = 16;

/// Writes `window` into the window field of the frame that `parsed` was read from. The checksum changes by the difference
/// alone, so that it is as right or wrong afterwards as it was before; also one that the hardware is to finish.
///
/// Source: RFC 1624, equation 3.
pub fn set_window(frame: &mut [u8], parsed: &Parsed, window: u16) {
    let Some(header) = frame.get_mut(parsed.header_at..parsed.header_at + CHECKSUM_AT + 2) else { return };
    let old = u16::from_be_bytes([header[WINDOW_AT], header[WINDOW_AT + 1]]);
    let checksum = u16::from_be_bytes([header[CHECKSUM_AT], header[CHECKSUM_AT + 1]]);
    header[WINDOW_AT..CHECKSUM_AT].copy_from_slice(&window.to_be_bytes());
    header[CHECKSUM_AT..].copy_from_slice(&updated(checksum, old, window).to_be_bytes());
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
