//! Where a message of HTTP/1.1 ends.

/// No head of a message is longer, nor a chunk's first line.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The peer sent no HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BadMessage;

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Head,
    Length(u64),
    /// A chunk's length is next.
    ChunkSize,
    /// Bytes of a chunk and its line's end.
    Chunk(u64),
    Trailer,
    UntilClosed,
}

/// What was read of one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Read {
    /// Bytes of the input that belong to the message.
    pub(super) used: usize,
    /// It has ended with them.
    pub(super) is_complete: bool,
}

/// Finds the ends of messages, one after the other; bodies are thrown away.
#[derive(Debug)]
pub(super) struct Framing {
    part: Part,
    /// What has come of a head or line that is not complete.
    line: Vec<u8>,
}

impl Framing {
    pub(super) fn new() -> Self {
        Self { part: Part::Head, line: Vec::new() }
    }

    /// Bytes of a message have come, but not all.
    pub(super) fn has_begun(&self) -> bool {
        self.part != Part::Head || !self.line.is_empty()
    }

    /// The message under way, if it is one that ends with the connection, has ended.
    pub(super) fn on_close(&mut self) -> bool {
        std::mem::replace(&mut self.part, Part::Head) == Part::UntilClosed
    }

    /// Takes bytes up to the end of a message; `on_head` is given its head and says what follows.
    pub(super) fn read(
        &mut self,
        input: &[u8],
        mut on_head: impl FnMut(&str) -> Result<Part, BadMessage>,
    ) -> Result<Read, BadMessage> {
        let mut used = 0;
        while used < input.len() {
            let rest = &input[used..];
            used += match self.part {
                Part::Head => {
                    let Some(length) = self.take_until(rest, b"\r\n\r\n")? else { break };
                    self.part = on_head(std::str::from_utf8(&self.line).map_err(|_| BadMessage)?)?;
                    self.line.clear();
                    length
                }
                Part::Length(left) => {
                    let length = left.min(rest.len() as u64);
                    self.part = Part::Length(left - length);
                    usize::try_from(length).expect("at most the length of a slice")
                }
                Part::ChunkSize => {
                    let Some(length) = self.take_until(rest, b"\r\n")? else { break };
                    let size = chunk_size(&self.line).ok_or(BadMessage)?;
                    self.line.clear();
                    self.part = if size == 0 { Part::Trailer } else { Part::Chunk(size.saturating_add(2)) };
                    length
                }
                Part::Chunk(left) => {
                    let length = left.min(rest.len() as u64);
                    self.part = if left == length { Part::ChunkSize } else { Part::Chunk(left - length) };
                    usize::try_from(length).expect("at most the length of a slice")
                }
                Part::Trailer => {
                    let Some(length) = self.take_until(rest, b"\r\n")? else { break };
                    if self.line == b"\r\n" {
                        self.part = Part::Length(0);
                    }
                    self.line.clear();
                    length
                }
                Part::UntilClosed => rest.len(),
            };
            if self.part == Part::Length(0) {
                self.part = Part::Head;
                return Ok(Read { used, is_complete: true });
            }
        }
        Ok(Read { used: input.len(), is_complete: false })
    }

    /// Appends to `line` until it ends with `end`; how much of `input` was used, if it does.
    fn take_until(&mut self, input: &[u8], end: &[u8]) -> Result<Option<usize>, BadMessage> {
        let before = self.line.len();
        // The end may have begun in what came before.
        let from = before.saturating_sub(end.len() - 1);
        self.line.extend_from_slice(input);
        let found = self.line[from..].windows(end.len()).position(|window| window == end);
        let Some(found) = found else {
            return if self.line.len() > HEAD_BYTES_MAX { Err(BadMessage) } else { Ok(None) };
        };
        let length = from + found + end.len();
        self.line.truncate(length);
        Ok(Some(length - before))
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| matches!(byte, b';' | b'\r')).next()?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_come_together_are_told_apart() {
        let input = b"A\r\n\r\nB\r\n\r\n12C\r\n\r\n";
        let mut heads = Vec::new();
        let (mut framing, mut at) = (Framing::new(), 0);
        while at < input.len() {
            let read = framing
                .read(&input[at..], |head| {
                    heads.push(head.trim_end().to_owned());
                    Ok(Part::Length(if head.starts_with('B') { 2 } else { 0 }))
                })
                .unwrap();
            assert!(read.is_complete);
            at += read.used;
        }
        assert_eq!(heads, ["A", "B", "C"]);
        assert!(!framing.has_begun());
    }
}
