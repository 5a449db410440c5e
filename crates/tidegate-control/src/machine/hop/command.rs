//! Commands of a producer, as far as the hop reads them: where they end, and which topic they are for.

use std::ops::Range;

use tidegate_wire::nsq::command::{self, Line};

/// Longest body of IDENTIFY and AUTH, bytes: both are kept for as long as the connection.
pub(super) const KEPT_BODY_BYTES_MAX: usize = 64 * 1024;

/// What a producer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Identify,
    Auth,
    Pub,
    Mpub,
    Dpub,
    Nop,
    Cls,
}

impl Verb {
    /// As it stands on the wire.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Identify => "IDENTIFY",
            Self::Auth => "AUTH",
            Self::Pub => "PUB",
            Self::Mpub => "MPUB",
            Self::Dpub => "DPUB",
            Self::Nop => "NOP",
            Self::Cls => "CLS",
        }
    }

    /// The text of an error that says that it failed, and why.
    pub(super) fn failed(self, why: &str) -> String {
        let verb = self.text();
        format!("E_{verb}_FAILED {verb} failed {why}")
    }
}

/// A command that is there as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Command {
    pub(super) verb: Verb,
    /// Bytes of its line, with its end.
    pub(super) line: usize,
    /// All its bytes.
    pub(super) bytes: usize,
    /// Where the topic's name stands; empty without one.
    pub(super) topic: Range<usize>,
}

/// What bytes begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Read {
    /// This command.
    Whole(Command),
    /// A command of which at least so many bytes are still to come.
    Partial { lacks: usize },
    /// None that a producer may send: the error that ends the connection.
    Wrong(String),
}

/// Reads the first command of `input`; bodies of publishes have at most `max_body` bytes.
pub(super) fn read(input: &[u8], max_body: usize) -> Read {
    let (line, used) = match command::line(input) {
        Ok(Some(found)) => found,
        Ok(None) => return Read::Partial { lacks: 1 },
        Err(too_long) => return Read::Wrong(format!("E_INVALID {too_long}")),
    };
    let verb = match verb_of(&line) {
        Ok(verb @ (Verb::Nop | Verb::Cls)) => {
            return Read::Whole(Command { verb, line: used, bytes: used, topic: 0..0 });
        }
        Ok(verb) => verb,
        Err(text) => return Read::Wrong(text),
    };
    let topic = match topic_of(verb, &line) {
        Ok(topic) => topic,
        Err(text) => return Read::Wrong(text),
    };
    let rest = &input[used..];
    let Some(announced) = command::length(rest) else { return Read::Partial { lacks: 4 - rest.len() } };
    let most = if matches!(verb, Verb::Identify | Verb::Auth) { max_body.min(KEPT_BODY_BYTES_MAX) } else { max_body };
    match body_bytes(verb, announced, most) {
        Ok(body) if rest.len() - 4 < body => Read::Partial { lacks: body - (rest.len() - 4) },
        Ok(body) => Read::Whole(Command { verb, line: used, bytes: used + 4 + body, topic }),
        Err(text) => Read::Wrong(text),
    }
}

fn verb_of(line: &Line<'_>) -> Result<Verb, String> {
    let text = || String::from_utf8_lossy(line.verb_text);
    match line.verb {
        command::Verb::Identify => Ok(Verb::Identify),
        command::Verb::Auth => Ok(Verb::Auth),
        command::Verb::Pub => Ok(Verb::Pub),
        command::Verb::Mpub => Ok(Verb::Mpub),
        command::Verb::Dpub => Ok(Verb::Dpub),
        command::Verb::Nop => Ok(Verb::Nop),
        command::Verb::Cls => Ok(Verb::Cls),
        command::Verb::Sub => {
            Err("E_INVALID cannot SUB at tidegate steer, which serves producers; consumers connect to \
                                   the brokers"
                .to_owned())
        }
        command::Verb::Rdy | command::Verb::Fin | command::Verb::Req | command::Verb::Touch => {
            Err(format!("E_INVALID cannot {} in current state", text()))
        }
        command::Verb::Unknown => Err(format!("E_INVALID invalid command {}", text())),
    }
}

/// Where the name of a publish stands in its line: the first parameter, behind the verb and one space.
fn topic_of(verb: Verb, line: &Line<'_>) -> Result<Range<usize>, String> {
    let wanted = match verb {
        Verb::Pub | Verb::Mpub => 1,
        Verb::Dpub => 2,
        Verb::Identify | Verb::Auth | Verb::Nop | Verb::Cls => return Ok(0..0),
    };
    match line.param(0) {
        Some(name) if line.param_count() >= wanted => {
            let start = line.verb_text.len() + 1;
            Ok(start..start + name.len())
        }
        _ => Err(format!("E_INVALID {} insufficient number of parameters", verb.text())),
    }
}

/// The size of a body that announces `announced` bytes; errors are nsqd's.
fn body_bytes(verb: Verb, announced: i32, most: usize) -> Result<usize, String> {
    let (code, noun) = match verb {
        Verb::Pub | Verb::Dpub => ("E_BAD_MESSAGE", "message"),
        _ => ("E_BAD_BODY", "body"),
    };
    let verb = verb.text();
    let Some(bytes) = usize::try_from(announced).ok().filter(|bytes| *bytes > 0) else {
        let noun = if noun == "message" { "message body" } else { noun };
        return Err(format!("{code} {verb} invalid {noun} size {announced}"));
    };
    if bytes > most {
        return Err(format!("{code} {verb} {noun} too big {announced} > {most}"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use tidegate_wire::nsq::client;

    use super::*;

    fn wrong(input: &[u8]) -> String {
        match read(input, 100) {
            Read::Wrong(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_publish_says_where_it_ends_and_where_its_topic_is() {
        let mut bytes = Vec::new();
        client::put_dpub(&mut bytes, "orders", 250, b"abc");
        let whole = bytes.len();
        bytes.extend_from_slice(b"NOP\n");
        let Read::Whole(command) = read(&bytes, 100) else { panic!("it is whole") };
        assert_eq!((command.verb, command.line, command.bytes), (Verb::Dpub, 16, whole));
        assert_eq!(&bytes[command.topic], b"orders");
        for cut in 1..whole {
            let Read::Partial { lacks } = read(&bytes[..cut], 100) else { panic!("{cut} bytes are no command") };
            assert!((1..=whole - cut).contains(&lacks), "{cut} bytes lack {lacks}");
        }
    }

    #[test]
    fn what_no_producer_may_send_is_answered_as_nsqd_does() {
        assert!(wrong(b"SUB t c\n").starts_with("E_INVALID cannot SUB at tidegate steer"));
        assert_eq!(wrong(b"FIN 0123456789abcdef\n"), "E_INVALID cannot FIN in current state");
        assert_eq!(wrong(b"GET / HTTP/1.1\n"), "E_INVALID invalid command GET");
        assert_eq!(wrong(b"PUB\n"), "E_INVALID PUB insufficient number of parameters");
        assert_eq!(wrong(b"DPUB t\n"), "E_INVALID DPUB insufficient number of parameters");
        assert_eq!(wrong(b"PUB t\n\0\0\0\0"), "E_BAD_MESSAGE PUB invalid message body size 0");
        assert_eq!(wrong(b"PUB t\n\0\0\0\x65"), "E_BAD_MESSAGE PUB message too big 101 > 100");
        assert_eq!(wrong(b"MPUB t\n\xff\xff\xff\xff"), "E_BAD_BODY MPUB invalid body size -1");
        assert_eq!(wrong(b"MPUB t\n\0\0\0\x65"), "E_BAD_BODY MPUB body too big 101 > 100");
        assert!(wrong(&[b'x'; command::LINE_BYTES_MAX]).starts_with("E_INVALID command line exceeds"));
        let Read::Wrong(text) = read(b"AUTH\n\0\x10\0\0", usize::MAX) else { panic!("a secret of a mebibyte") };
        assert_eq!(text, "E_BAD_BODY AUTH body too big 1048576 > 65536");
    }
}
