//! Reads the files of cases in `vectors/http1/`; their README says what they mean.
//!
//! The files are TOML, of which they use so little that a few lines read it: comments, `[[case]]`, literal strings in
//! single quotes and whole numbers. [`answers`] reads those in `vectors/http1_answers/`.

pub mod answers;

/// One case: what a client sends, and what a strict server makes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// Unique over all files.
    pub name: String,
    /// What is sent.
    pub bytes: Vec<u8>,
    /// What is expected.
    pub verdict: Verdict,
    /// Where it is written down.
    pub reference: String,
}

/// What a strict server makes of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// So many requests are sound and whole.
    Accept {
        /// How many.
        requests: u64,
        /// The bytes end within another one, which may still become sound.
        open: bool,
    },
    /// The request behind `after` sound ones is refused.
    Refuse {
        /// With this status.
        status: u16,
        /// How many sound ones came before it.
        after: u64,
    },
}

/// A file that is not written as its README says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadVectors {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// The cases of a file, in order.
///
/// # Errors
/// The first line that is not as it should be.
pub fn read(text: &str) -> Result<Vec<Case>, BadVectors> {
    tables(text, Draft::set, Draft::finish)
}

/// The tables of a file, in order: `set` takes a key with its value, `finish` makes a case of what it took.
fn tables<D: Default, C>(
    text: &str,
    set: impl Fn(&mut D, &str, &str) -> Result<(), &'static str>,
    finish: impl Fn(D) -> Result<C, &'static str>,
) -> Result<Vec<C>, BadVectors> {
    let mut cases = Vec::new();
    let mut draft: Option<(usize, D)> = None;
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        let wrong = |what| BadVectors { line: number, what };
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[case]]" {
            if let Some((at, done)) = draft.replace((number, D::default())) {
                cases.push(finish(done).map_err(|what| BadVectors { line: at, what })?);
            }
            continue;
        }
        let (key, value) = line.split_once(" = ").ok_or_else(|| wrong("expected `key = value`"))?;
        let (_, draft) = draft.as_mut().ok_or_else(|| wrong("a key stands before the first [[case]]"))?;
        set(draft, key, value).map_err(wrong)?;
    }
    if let Some((at, done)) = draft {
        cases.push(finish(done).map_err(|what| BadVectors { line: at, what })?);
    }
    Ok(cases)
}

/// A case whose keys are being read.
#[derive(Default)]
struct Draft {
    name: Option<String>,
    bytes: Option<Vec<u8>>,
    reference: Option<String>,
    accept: Option<u64>,
    open: u64,
    refuse: Option<u16>,
    after: u64,
}

impl Draft {
    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let number = || value.parse::<u64>().map_err(|_| "expected a whole number");
        match key {
            "name" => self.name = Some(literal(value)?.to_owned()),
            "bytes" => self.bytes = Some(bytes(literal(value)?)?),
            "reference" => self.reference = Some(literal(value)?.to_owned()),
            "accept" => self.accept = Some(number()?),
            "open" => self.open = number()?,
            "refuse" => self.refuse = Some(u16::try_from(number()?).map_err(|_| "a status has three digits")?),
            "after" => self.after = number()?,
            _ => return Err("no such key"),
        }
        Ok(())
    }

    fn finish(self) -> Result<Case, &'static str> {
        let verdict = match (self.accept, self.refuse) {
            (Some(requests), None) if self.after == 0 => Verdict::Accept { requests, open: self.open > 0 },
            (None, Some(status)) if self.open == 0 => Verdict::Refuse { status, after: self.after },
            _ => return Err("a case has `accept` and perhaps `open`, or `refuse` and perhaps `after`"),
        };
        Ok(Case {
            name: self.name.ok_or("a case has no name")?,
            bytes: self.bytes.ok_or("a case has no bytes")?,
            verdict,
            reference: self.reference.ok_or("a case has no reference")?,
        })
    }
}

fn literal(value: &str) -> Result<&str, &'static str> {
    value
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''))
        .filter(|text| !text.contains('\''))
        .ok_or("expected a string in single quotes, with none inside")
}

/// The longest case: what `\{count:text}` may grow to.
const CASE_BYTES_MAX: usize = 1 << 20;

/// Undoes the escapes: `\r \n \t \0 \\ \xHH`, and `\{count:text}` for so many times the text, which may have escapes.
///
/// # Errors
/// What is wrong with them, for people.
pub fn bytes(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            out.push(*first);
            continue;
        }
        let [kind, tail @ ..] = rest else { return Err("a backslash stands alone") };
        rest = tail;
        match kind {
            b'r' => out.push(b'\r'),
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            b'0' => out.push(0),
            b'\\' => out.push(b'\\'),
            b'x' => {
                let digits =
                    rest.get(..2).and_then(|digits| str::from_utf8(digits).ok()).ok_or("\\x needs two digits")?;
                out.push(u8::from_str_radix(digits, 16).map_err(|_| "\\x needs two hexadecimal digits")?);
                rest = &rest[2..];
            }
            b'{' => {
                let end = memchr::memchr(b'}', rest).ok_or("a repetition has no end")?;
                let inside = str::from_utf8(&rest[..end]).map_err(|_| "a repetition is not text")?;
                let (count, repeated) = inside.split_once(':').ok_or("a repetition is \\{count:text}")?;
                let count = count.parse::<usize>().map_err(|_| "a repetition begins with its count")?;
                let repeated = bytes(repeated)?;
                if count.saturating_mul(repeated.len()) > CASE_BYTES_MAX {
                    return Err("a repetition is longer than 1 MiB");
                }
                out.extend_from_slice(&repeated.repeat(count));
                rest = &rest[end + 1..];
            }
            _ => return Err("no such escape"),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        assert_eq!(bytes(r"a\r\n\t\0\\\x7F\{3:\x41b}c").as_deref(), Ok(&b"a\r\n\t\0\\\x7fAbAbAbc"[..]));
        for bad in [r"\", r"\q", r"\x1", r"\xgg", r"\{3}", r"\{3:a", r"\{a:b}", r"\{2000000:a}"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_case_is_read_and_a_mistake_is_where_it_is() {
        let text = "# c\n[[case]]\nname = 'a'\nbytes = 'x'\nrefuse = 400\nafter = 1\nreference = 'RFC'\n";
        let case = Case {
            name: "a".to_owned(),
            bytes: b"x".to_vec(),
            verdict: Verdict::Refuse { status: 400, after: 1 },
            reference: "RFC".to_owned(),
        };
        assert_eq!(read(text), Ok(vec![case]));
        let line = |text: &str| read(text).map_err(|bad| bad.line);
        assert_eq!(line("name = 'a'"), Err(1));
        assert_eq!(line("[[case]]\nname = \"a\""), Err(2));
        assert_eq!(line("\n[[case]]\nname = 'a'\nrefuse = 400\naccept = 1"), Err(2));
    }
}
