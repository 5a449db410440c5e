//! Lists of arrivals, as people write them.

use tidegate_core::Instant;

use super::LIST_MAX;

const SECOND_NS: u64 = 1_000_000_000;

/// Text that is no list of instants.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseListError {
    /// A word is no instant.
    #[error("line {line}: `{found}` is no number of seconds with at most nine decimals, such as 0.000125")]
    Number {
        /// From 1.
        line: usize,
        /// The word.
        found: String,
    },
    /// There are too many.
    #[error("there are more than {LIST_MAX} instants")]
    TooMany,
}

/// Reads instants in seconds, separated by blanks, commas or lines; what follows a `#` is a comment. Exact to the
/// nanosecond.
///
/// # Errors
/// Names the first line that does not read.
pub fn parse_list(text: &str) -> Result<Vec<Instant>, ParseListError> {
    let mut instants = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default();
        for word in content.split([',', ' ', '\t', '\r']).filter(|word| !word.is_empty()) {
            let instant = seconds(word).ok_or_else(|| ParseListError::Number { line, found: word.to_owned() })?;
            if instants.len() == LIST_MAX {
                return Err(ParseListError::TooMany);
            }
            instants.push(instant);
        }
    }
    Ok(instants)
}

fn seconds(word: &str) -> Option<Instant> {
    let (whole, decimals) = word.split_once('.').unwrap_or((word, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if decimals.len() > 9 || !is_number(whole) || !is_number(decimals) || whole.len() + decimals.len() == 0 {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let nanos: u64 = format!("{decimals:0<9}").parse().ok()?;
    Some(Instant::from_nanos(whole.checked_mul(SECOND_NS)?.checked_add(nanos)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read_to_the_nanosecond() {
        let nanos =
            |text: &str| parse_list(text).map(|list| list.into_iter().map(Instant::as_nanos).collect::<Vec<_>>());
        assert_eq!(nanos("0, 0.000000001\t1.5\n# comment\n.25 # more").unwrap(), [0, 1, 1_500_000_000, 250_000_000]);
        for wrong in ["1e3", "-1", ".", "1.0000000001", "99999999999999"] {
            let expected = ParseListError::Number { line: 2, found: wrong.to_owned() };
            assert_eq!(nanos(&format!("0\n{wrong}")), Err(expected));
        }
    }
}
