//! What a segment with SYN offers.

/// Most options that a header can hold: each takes a byte at least.
const OPTIONS_MAX: usize = 40;
/// Larger scales count as this one. Source: RFC 7323, §2.3.
const SCALE_MAX: u8 = 14;

/// Options of a SYN that matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SynOptions {
    /// The window scale, at most 14; `None` if it is not offered.
    pub window_scale: Option<u8>,
    /// The largest segment that its sender takes.
    pub mss: Option<u16>,
    /// True if timestamps are offered, which take 12 bytes of each segment if the other side does too.
    pub timestamps: bool,
}

/// Reads the options of a TCP header. What is broken ends the list.
pub(super) fn read_options(mut rest: &[u8]) -> SynOptions {
    let mut found = SynOptions::default();
    for _ in 0..OPTIONS_MAX {
        rest = match rest {
            [] | [0, ..] => break,
            [1, rest @ ..] => rest,
            [kind, length, ..] => {
                let Some(option) = rest.get(2..usize::from(*length)) else { break };
                match (kind, option) {
                    (2, &[high, low]) => found.mss = Some(u16::from_be_bytes([high, low])),
                    (3, &[scale]) => found.window_scale = Some(scale.min(SCALE_MAX)),
                    (8, option) if option.len() == 8 => found.timestamps = true,
                    _ => {}
                }
                &rest[usize::from(*length)..]
            }
            _ => break,
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_any_order() {
        let linux = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!(read_options(&linux), SynOptions { window_scale: Some(7), mss: Some(1_460), timestamps: true });
        assert_eq!(read_options(&[1, 3, 3, 250]), SynOptions { window_scale: Some(14), ..SynOptions::default() });
    }

    #[test]
    fn broken_options_end_the_list() {
        for broken in [&[2, 4, 5][..], &[3], &[3, 0, 1], &[3, 1, 7], &[0, 3, 3, 7], &[3, 200, 7]] {
            assert_eq!(read_options(broken), SynOptions::default(), "{broken:?}");
        }
    }
}
