//! The line before a chunk. RFC 9112 §7.1.

use super::grammar::{TOKEN, VISIBLE, first_not};
use super::limits::Fault;

/// What such a line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SizeLine {
    /// Bytes of data that follow; 0 is the last.
    pub(super) size: u64,
    /// Bytes of extensions in the line.
    pub(super) extension_bytes: usize,
}

/// Reads a line without its end. Faults count from its start.
pub(super) fn size_line(line: &[u8]) -> Result<SizeLine, Fault> {
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    if digits == 0 {
        return Err(Fault::bad("a chunk size is not a hexadecimal number", 0));
    }
    // Sixteen digits are 64 bits. Zeros in front of a longer number would fit, but nobody needs them.
    if digits > 16 {
        return Err(Fault::bad("a chunk size has more than 16 digits", 16));
    }
    let size = line[..digits].iter().fold(0_u64, |size, &digit| {
        let value = char::from(digit).to_digit(16).expect("all of these are hexadecimal digits");
        size << 4 | u64::from(value)
    });
    let extensions = &line[digits..];
    check_extensions(extensions).map_err(|fault| fault.shifted(digits))?;
    Ok(SizeLine { size, extension_bytes: extensions.len() })
}

/// `;name`, `;name=token` or `;name="text"`, any number of them.
///
/// Spaces may stand inside, not before the first semicolon: some readers end the number there, others go on.
fn check_extensions(text: &[u8]) -> Result<(), Fault> {
    const BROKEN: &str = "a chunk extension is broken";
    if text.is_empty() {
        return Ok(());
    }
    if text[0] != b';' {
        return Err(Fault::bad("something stands behind a chunk size", 0));
    }
    if let Some(bad) = first_not(VISIBLE, text) {
        return Err(Fault::bad("a chunk extension has a control byte", bad));
    }
    let mut rest = text;
    let place = |rest: &[u8]| text.len() - rest.len();
    while !rest.is_empty() {
        let name = rest.strip_prefix(b";").ok_or_else(|| Fault::bad(BROKEN, place(rest)))?.trim_ascii_start();
        rest = after_token(name).ok_or_else(|| Fault::bad(BROKEN, place(name)))?;
        if let Some(value) = rest.trim_ascii_start().strip_prefix(b"=") {
            let value = value.trim_ascii_start();
            let end = if value.first() == Some(&b'"') { after_quoted(value) } else { after_token(value) };
            rest = end.ok_or_else(|| Fault::bad(BROKEN, place(value)))?;
        }
        // Space before the next semicolon belongs to it; at the end of the line there is none.
        if !rest.trim_ascii_start().is_empty() {
            rest = rest.trim_ascii_start();
        }
    }
    Ok(())
}

fn after_token(text: &[u8]) -> Option<&[u8]> {
    let end = first_not(TOKEN, text).unwrap_or(text.len());
    (end > 0).then(|| &text[end..])
}

fn after_quoted(text: &[u8]) -> Option<&[u8]> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(&text[at + 1..]),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_extensions_are_read() {
        assert_eq!(size_line(b"1aF"), Ok(SizeLine { size: 0x1af, extension_bytes: 0 }));
        assert_eq!(size_line(b"ffffffffffffffff").map(|line| line.size), Ok(u64::MAX));
        assert_eq!(size_line(b"0000000000000005").map(|line| line.size), Ok(5));
        for sound in [&b"5;a"[..], b"5;a=b", b"5; a = \"b;\\\"c\" ;d", b"5;a;b=c"] {
            assert_eq!(size_line(sound), Ok(SizeLine { size: 5, extension_bytes: sound.len() - 1 }));
        }
    }

    #[test]
    fn what_readers_differ_about_is_refused() {
        for bad in [
            &b""[..],
            b" 5",
            b"5 ",
            b"5 ;a",
            b"0x5",
            b"+5",
            b"-5",
            b"5,",
            b"5;",
            b"5;;a",
            b"5;a=",
            b"5;a=\"b",
            b"5;a ",
            b"5;\xff",
            b"5;a\0",
            b"5;a\r",
            b"00000000000000005",
            b"g",
            b"5_0",
            b"5;a=\"b\"c",
            b"5;a=\"\\",
        ] {
            assert!(size_line(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}
