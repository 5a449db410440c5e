//! Elements of DER, as certificates and what is said of them are written.

/// Tag and content of the first element, and what stands behind it.
pub(crate) fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        let fits = bytes.len() <= 4;
        (fits.then(|| bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)))?, rest)
    };
    let (content, behind) = rest.split_at_checked(length)?;
    Some((tag, content, behind))
}
