//! Answers in the order of commands: what comes early waits for its turn.

use std::collections::VecDeque;

use bytes::Bytes;
use tidegate_wire::nsq::frame;

use super::command::Verb;

/// Commands without an answer above which a producer is not read.
pub const OUTSTANDING_MAX: usize = 4_096;
/// Their bytes above which it is not read. One command may come on top.
pub const OUTSTANDING_BYTES_MAX: usize = 8 << 20;

/// What a command is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// `OK`.
    Ok,
    /// A frame as a broker sent it.
    Frame(Bytes),
    /// A response of the hop's own.
    Response(&'static [u8]),
    /// An error of the hop's own.
    Error(String),
}

#[derive(Debug)]
struct Slot {
    verb: Verb,
    bytes: usize,
    answer: Option<(Answer, Then)>,
}

/// What comes behind an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// The next one.
    GoOn,
    /// Nothing: the connection ends.
    End,
}

/// The commands that are not answered yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Number of the first one.
    first: u64,
    slots: VecDeque<Slot>,
    bytes: usize,
}

impl Answers {
    /// Enters a command of so many bytes, and numbers it.
    pub(super) fn push(&mut self, verb: Verb, bytes: usize) -> u64 {
        let number = self.first + self.slots.len() as u64;
        self.slots.push_back(Slot { verb, bytes, answer: None });
        self.bytes += bytes;
        number
    }

    /// Enters a command that is answered already.
    pub(super) fn push_answered(&mut self, verb: Verb, answer: Answer, then: Then) {
        self.slots.push_back(Slot { verb, bytes: 0, answer: Some((answer, then)) });
    }

    /// What command `number` was, as long as it waits for its answer or its turn.
    pub(super) fn verb(&self, number: u64) -> Option<Verb> {
        self.slots.get(self.place(number)?).map(|slot| slot.verb)
    }

    /// Answers command `number`.
    pub(super) fn settle(&mut self, number: u64, answer: Answer, then: Then) {
        if let Some(slot) = self.place(number).and_then(|place| self.slots.get_mut(place)) {
            debug_assert!(slot.answer.is_none(), "a command has one answer");
            slot.answer = Some((answer, then));
        }
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// Appends the answers to `out` whose turn it is. After [`Then::End`] there are no more.
    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Then {
        while let Some(slot) = self.slots.pop_front_if(|slot| slot.answer.is_some()) {
            self.first += 1;
            self.bytes -= slot.bytes;
            let Some((answer, then)) = slot.answer else { continue };
            match answer {
                Answer::Ok => frame::put_ok(out),
                Answer::Frame(frame) => out.extend_from_slice(&frame),
                Answer::Response(text) => frame::put_response(out, text),
                Answer::Error(text) => frame::put_error(out, text.as_bytes()),
            }
            if then == Then::End {
                *self = Self { first: self.first + self.slots.len() as u64, ..Self::default() };
                return Then::End;
            }
        }
        Then::GoOn
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the next command has to wait.
    pub(super) fn is_full(&self) -> bool {
        self.slots.len() >= OUTSTANDING_MAX || self.bytes >= OUTSTANDING_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(out: &[u8]) -> String {
        String::from_utf8_lossy(out).replace('\0', "")
    }

    #[test]
    fn an_early_answer_waits_for_its_turn() {
        let (mut answers, mut out) = (Answers::default(), Vec::new());
        let [a, b] = [Verb::Pub, Verb::Mpub].map(|verb| answers.push(verb, 10));
        answers.settle(b, Answer::Error("E_MPUB_FAILED".to_owned()), Then::GoOn);
        assert_eq!(answers.flush(&mut out), Then::GoOn);
        assert!(out.is_empty());
        answers.settle(a, Answer::Ok, Then::GoOn);
        answers.flush(&mut out);
        assert_eq!(text(&out), "\u{6}OK\u{11}\u{1}E_MPUB_FAILED");
        assert!(answers.is_empty() && answers.bytes == 0);
    }

    #[test]
    fn behind_the_last_answer_nothing_is_said() {
        let (mut answers, mut out) = (Answers::default(), Vec::new());
        let a = answers.push(Verb::Pub, 10);
        answers.push_answered(Verb::Nop, Answer::Error("E_INVALID".to_owned()), Then::End);
        let c = answers.push(Verb::Pub, 10);
        answers.settle(c, Answer::Ok, Then::GoOn);
        answers.settle(a, Answer::Ok, Then::GoOn);
        assert_eq!(answers.flush(&mut out), Then::End);
        assert!(answers.is_empty() && !text(&out).ends_with("OK"));
        answers.settle(c, Answer::Ok, Then::GoOn);
        assert!(answers.is_empty(), "what comes late is for nobody");
    }

    #[test]
    fn bytes_and_commands_are_bounded() {
        let mut answers = Answers::default();
        answers.push(Verb::Pub, OUTSTANDING_BYTES_MAX - 1);
        assert!(!answers.is_full());
        answers.push(Verb::Pub, 1);
        assert!(answers.is_full());
        let mut answers = Answers::default();
        (0..OUTSTANDING_MAX).for_each(|_| _ = answers.push(Verb::Pub, 0));
        assert!(answers.is_full());
    }
}
