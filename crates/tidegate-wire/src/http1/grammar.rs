//! Which byte may stand where, and lines.

use super::limits::Fault;

/// Part of a token: methods, field names, list members. RFC 9110 §5.6.2.
pub(super) const TOKEN: u8 = 1;
/// Part of a path. What RFC 3986 §3.3 allows, and `^`, `{`, `|`, `}`, which browsers send as they are.
pub(super) const PATH: u8 = 2;
/// Part of a query: the same, `?`, `\` and the grave accent.
pub(super) const QUERY: u8 = 4;
/// Part of a host name.
pub(super) const NAME: u8 = 8;
/// Part of a chunk extension: visible, space or tab.
pub(super) const VISIBLE: u8 = 16;

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0_u8;
    while byte < 0x7f {
        let mut class = 0;
        let alphanumeric = byte.is_ascii_alphanumeric();
        if alphanumeric || among(byte, b"!#$%&'*+-.^_`|~") {
            class |= TOKEN;
        }
        if alphanumeric || among(byte, b"-._~!$&'()*+,;=:@/%[]^{|}") {
            class |= PATH | QUERY;
        }
        if among(byte, b"?\\`") {
            class |= QUERY;
        }
        if alphanumeric || among(byte, b"-._") {
            class |= NAME;
        }
        if byte >= b' ' || byte == b'\t' {
            class |= VISIBLE;
        }
        classes[byte as usize] = class;
        byte += 1;
    }
    classes
}

const fn among(byte: u8, set: &[u8]) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

#[inline]
pub(super) fn is(class: u8, byte: u8) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

/// Where the first byte is that is not of `class`.
#[inline]
pub(super) fn first_not(class: u8, bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| !is(class, byte))
}

#[inline]
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && first_not(TOKEN, bytes).is_none()
}

/// Neither visible, space, tab nor of the upper half. RFC 9110 §5.5.
#[inline]
const fn is_control(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
}

/// Where the first control byte is. The search without an exit is what a compiler makes vectors of.
#[inline]
pub(super) fn first_control(bytes: &[u8]) -> Option<usize> {
    let any = bytes.iter().fold(false, |any, &byte| any | is_control(byte));
    if any { bytes.iter().position(|&byte| is_control(byte)) } else { None }
}

/// Without spaces and tabs around it.
#[inline]
pub(super) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The members of a comma-separated list; empty ones are skipped, as RFC 9110 §5.6.1 asks.
pub(super) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trimmed).filter(|member| !member.is_empty())
}

/// A number of decimal digits only, if it has any and fits.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, &digit| {
        let value = char::from(digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(value))
    })
}

/// A line that came whole: without its end, and where the next begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) end: usize,
    pub(super) next: usize,
}

/// The line of `input` that begins at `start`; no LF stands before `searched`, which moves on when the end is not there.
///
/// `too_long` is the answer when no end can come before `end_max`.
#[inline]
pub(super) fn line(
    input: &[u8],
    start: usize,
    searched: &mut usize,
    end_max: usize,
    too_long: (u16, &'static str),
) -> Result<Option<Line>, Fault> {
    let window = input.len().min(end_max);
    let from = (*searched).max(start);
    let Some(found) = input.get(from..window).and_then(|rest| memchr::memchr(b'\n', rest)) else {
        if input.len() >= end_max {
            return Err(Fault::new(too_long.0, too_long.1, end_max));
        }
        *searched = window;
        return Ok(None);
    };
    let feed = from + found;
    if feed == start || input[feed - 1] != b'\r' {
        return Err(Fault::bad("a line ends with LF alone", feed));
    }
    Ok(Some(Line { end: feed - 1, next: feed + 1 }))
}

/// Name and value of a field line; the name is a token and the value free of control bytes.
///
/// `start` is where the line begins in what was looked at.
#[inline]
pub(super) fn field(line: &[u8], start: usize) -> Result<(&[u8], &[u8]), Fault> {
    let at = first_not(TOKEN, line).unwrap_or(line.len());
    match line.get(at) {
        Some(b':') if at > 0 => {}
        Some(b':') => return Err(Fault::bad("a field has no name", start)),
        Some(b' ' | b'\t') if at == 0 => return Err(Fault::bad("a line is folded or begins with a space", start)),
        Some(b' ' | b'\t') => {
            return Err(Fault::bad("a space stands before or in place of a field's colon", start + at));
        }
        Some(_) => return Err(Fault::bad("a field name has a byte that none has", start + at)),
        None => return Err(Fault::bad("a field line has no colon", start + at)),
    }
    let (name, value) = (&line[..at], &line[at + 1..]);
    match first_control(value) {
        Some(bad) => Err(Fault::bad("a field value has a control byte", start + at + 1 + bad)),
        None => Ok((name, trimmed(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_the_standards() {
        let all = |class| (0..=255_u8).filter(|&byte| is(class, byte)).map(char::from).collect::<String>();
        assert_eq!(all(TOKEN), "!#$%&'*+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ^_`abcdefghijklmnopqrstuvwxyz|~");
        assert!(!all(PATH).contains(['#', '"', '<', '>', '\\', '?', ' ', '`']));
        assert!(!all(QUERY).contains(['#', '"', '<', '>', ' ']));
        assert_eq!(all(VISIBLE).len(), 96);
    }

    #[test]
    fn control_bytes_are_found_where_they_are() {
        assert_eq!(first_control(b"a value\twith \xff and more than sixteen bytes"), None);
        assert_eq!(first_control(b"a value with more than sixteen bytes \r and \0"), Some(37));
        assert_eq!(first_control(b"\x7f"), Some(0));
    }

    #[test]
    fn lists_skip_empty_members() {
        let found: Vec<_> = members(b" a,, b\t, ,c").collect();
        assert_eq!(found, [&b"a"[..], b"b", b"c"]);
    }
}
