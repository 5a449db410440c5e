//! CRC-32C (Castagnoli), as in RFC 3720 Appendix B.4.

/// The polynomial 0x1EDC6F41 with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut rest = byte;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { (rest >> 1) ^ POLYNOMIAL } else { rest >> 1 };
            bit += 1;
        }
        table[byte as usize] = rest;
        byte += 1;
    }
    table
}

/// The checksum of some pieces, one behind the other.
pub(super) fn checksum(pieces: &[&[u8]]) -> u32 {
    let bytes = pieces.iter().flat_map(|piece| piece.iter());
    !bytes.fold(u32::MAX, |rest, &byte| {
        let [low, ..] = rest.to_le_bytes();
        TABLE[usize::from(low ^ byte)] ^ (rest >> 8)
    })
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn checksums_are_those_published() {
        assert_eq!(checksum(&[b"123456789"]), 0xe306_9283);
        assert_eq!(checksum(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(checksum(&[&[0xff; 20], &[0xff; 12]]), 0x62a8_ab43);
    }
}
