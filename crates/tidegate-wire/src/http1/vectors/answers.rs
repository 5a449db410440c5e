//! Cases of answers, as an upstream sends them; the README in `vectors/http1_answers/` says what they mean.

use super::{BadVectors, bytes, literal, tables};

/// One case: what a server sends to one request, and what a strict proxy makes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// Unique over all files.
    pub name: String,
    /// What it answers.
    pub to: To,
    /// What is sent.
    pub bytes: Vec<u8>,
    /// What is expected.
    pub reading: Reading,
    /// Where it is written down.
    pub reference: String,
}

/// The request that is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// A GET.
    Get,
    /// A HEAD.
    Head,
    /// A GET that asks for `WebSocket`.
    WebSocket,
}

/// What is made of a server's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Of the final answer, if its head is whole and sound.
    pub status: Option<u16>,
    /// Bytes of its content that are there.
    pub content: u64,
    /// How it goes on.
    pub then: Then,
}

/// How it goes on behind a server's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// The answer is whole, and the connection can carry another request.
    Keep,
    /// The answer is whole, and the connection cannot: it was said so, or more came than the answer.
    Close,
    /// More of the answer is to come.
    More,
    /// It ends when the server closes.
    UntilClose,
    /// It is no answer, or its content breaks the rules: the connection ends, and what passed is all.
    Refuse,
}

/// The cases of a file, in order.
///
/// # Errors
/// The first line that is not as it should be.
pub fn read(text: &str) -> Result<Vec<Case>, BadVectors> {
    tables(text, Draft::set, Draft::finish)
}

/// A case whose keys are being read.
#[derive(Default)]
struct Draft {
    name: Option<String>,
    to: Option<To>,
    bytes: Option<Vec<u8>>,
    status: Option<u16>,
    content: u64,
    then: Option<Then>,
    reference: Option<String>,
}

impl Draft {
    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "name" => self.name = Some(literal(value)?.to_owned()),
            "to" => {
                self.to = Some(match literal(value)? {
                    "GET" => To::Get,
                    "HEAD" => To::Head,
                    "WebSocket" => To::WebSocket,
                    _ => return Err("`to` is GET, HEAD or WebSocket"),
                });
            }
            "bytes" => self.bytes = Some(bytes(literal(value)?)?),
            "status" => self.status = Some(value.parse().map_err(|_| "a status has three digits")?),
            "content" => self.content = value.parse().map_err(|_| "expected a whole number")?,
            "then" => {
                self.then = Some(match literal(value)? {
                    "keep" => Then::Keep,
                    "close" => Then::Close,
                    "more" => Then::More,
                    "until close" => Then::UntilClose,
                    "refuse" => Then::Refuse,
                    _ => return Err("`then` is keep, close, more, until close or refuse"),
                });
            }
            "reference" => self.reference = Some(literal(value)?.to_owned()),
            _ => return Err("no such key"),
        }
        Ok(())
    }

    fn finish(self) -> Result<Case, &'static str> {
        Ok(Case {
            name: self.name.ok_or("a case has no name")?,
            to: self.to.unwrap_or(To::Get),
            bytes: self.bytes.ok_or("a case has no bytes")?,
            reading: Reading {
                status: self.status,
                content: self.content,
                then: self.then.ok_or("a case does not say how it goes on")?,
            },
            reference: self.reference.ok_or("a case has no reference")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_and_a_mistake_is_where_it_is() {
        let text = "[[case]]\nname = 'a'\nto = 'HEAD'\nbytes = 'x'\nstatus = 200\nthen = 'keep'\nreference = 'RFC'\n";
        let case = Case {
            name: "a".to_owned(),
            to: To::Head,
            bytes: b"x".to_vec(),
            reading: Reading { status: Some(200), content: 0, then: Then::Keep },
            reference: "RFC".to_owned(),
        };
        assert_eq!(read(text), Ok(vec![case]));
        let line = |text: &str| read(text).map_err(|bad| bad.line);
        assert_eq!(line("[[case]]\nto = 'PUT'"), Err(2));
        assert_eq!(line("\n[[case]]\nname = 'a'\nbytes = ''\nreference = ''"), Err(2));
    }
}
