//! Both sides of a case put together.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::client::{self, Heard};
use super::reading::{Manner, read};
use super::recorder::{Connection, Recorder};
use super::{Case, Verdict};
use crate::attack::Loopback;
use crate::error::LoadError;

/// What a proxy made of a case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaseReport {
    /// The case.
    pub name: String,
    /// Where it is written down.
    pub reference: String,
    /// What a strict server makes of it.
    pub expected: String,
    /// The same in the same words: what this one made of it.
    pub found: String,
    /// Statuses of the final answers to the client, in order.
    pub statuses: Vec<u16>,
    /// Requests that the upstream answered, with method and target.
    pub seen: Vec<String>,
    /// The same, beside a strict server.
    pub conduct: Conduct,
    /// A refusal has the expected status, too.
    pub same_status: bool,
    /// Why this is a desync.
    pub desync: Option<String>,
    /// What reached the upstream is not what a strict sender writes: others may read it differently.
    pub unclean: Option<String>,
}

/// A proxy beside a strict server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conduct {
    /// The same requests went through, and the rest was refused, with whatever status.
    Same,
    /// It refused more, which is its right: a route that is not there, a method that it does not serve.
    Stricter,
    /// It refused nothing yet, and let nothing through: it waits for more, or takes this for another protocol.
    Waits,
    /// It let through what a strict server refuses.
    Laxer,
}

/// All cases.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DifferentialReport {
    /// Number of cases.
    pub cases: usize,
    /// Those that were desyncs.
    pub desyncs: usize,
    /// Those that sent unclean bytes upstream.
    pub unclean: usize,
    /// Those in which more went through than through a strict server.
    pub laxer: usize,
    /// Those in which less went through.
    pub stricter: usize,
    /// Those in which it waited for more where a strict server refuses.
    pub waits: usize,
    /// Each.
    pub reports: Vec<CaseReport>,
}

/// Sends every case through `target` to `recorder`, one after the other.
///
/// After each case another client asks through the same proxy, as `host`: its request must reach the upstream as it was
/// sent, and its answer must be its own.
///
/// # Errors
/// [`LoadError::Connect`] if the proxy accepts nobody any more; [`LoadError::Unanswered`] if it does not even pass a sound
/// request to the recorder before the first case.
pub fn differential(
    target: Loopback,
    recorder: &Recorder,
    cases: &[Case],
    host: &str,
) -> Result<DifferentialReport, LoadError> {
    let address = target.address();
    if let Some(trouble) = canary(address, host, usize::MAX)? {
        return Err(LoadError::Unanswered { address, answer: trouble });
    }
    // What came before the first case is nobody's.
    let _ = recorder.take();
    let mut report = DifferentialReport { cases: cases.len(), ..DifferentialReport::default() };
    for (number, case) in cases.iter().enumerate() {
        let heard = client::ask(address, &case.bytes, expected_answers(case.verdict))?;
        let poisoned = canary(address, host, number)?;
        let judged = judge(case, &heard, &recorder.take(), &canary_name(number), poisoned);
        report.desyncs += usize::from(judged.desync.is_some());
        report.unclean += usize::from(judged.unclean.is_some());
        match judged.conduct {
            Conduct::Same => {}
            Conduct::Stricter => report.stricter += 1,
            Conduct::Waits => report.waits += 1,
            Conduct::Laxer => report.laxer += 1,
        }
        report.reports.push(judged);
    }
    Ok(report)
}

fn canary_name(number: usize) -> String {
    format!("GET /canary-{number}")
}

/// Another client's request; what is wrong with its answer.
fn canary(address: SocketAddr, host: &str, number: usize) -> Result<Option<String>, LoadError> {
    let name = canary_name(number);
    let request = format!("{name} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let heard = client::ask(address, request.as_bytes(), 1)?;
    Ok(match heard.answers.as_slice() {
        [answer] if answer.seen.as_deref() == Some(&name) => None,
        [] => Some("the next client was not answered".to_owned()),
        [answer] => Some(match &answer.seen {
            Some(seen) => format!("the next client got the answer to `{seen}`"),
            None => format!("the next client was refused with {}", answer.status),
        }),
        answers => Some(format!("the next client got {} answers", answers.len())),
    })
}

fn expected_answers(verdict: Verdict) -> usize {
    let count = match verdict {
        Verdict::Accept { requests, .. } => requests,
        Verdict::Refuse { after, .. } => after + 1,
    };
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn judge(case: &Case, heard: &Heard, connections: &[Connection], canary: &str, poisoned: Option<String>) -> CaseReport {
    let mut seen: Vec<String> = connections.iter().flat_map(|connection| connection.requests.clone()).collect();
    let is_canary = |request: &String| request.as_str() == canary;
    let canaries = seen.iter().filter(|request| is_canary(request)).count();
    seen.retain(|request| !is_canary(request));
    let statuses: Vec<u16> = heard.answers.iter().map(|answer| answer.status).collect();
    let answered: Vec<&String> = heard.answers.iter().filter_map(|answer| answer.seen.as_ref()).collect();
    let refusals = heard.answers.iter().filter(|answer| answer.seen.is_none());
    let refused = refusals.map(|answer| answer.status).find(|status| *status >= 400);
    let desync = if poisoned.is_some() {
        poisoned
    } else if canaries != 1 {
        Some(format!("the upstream saw the next client's request {canaries} times"))
    } else if seen.len() != answered.len() {
        Some(format!("the upstream saw {} requests, the client got {} answers of it", seen.len(), answered.len()))
    } else if !seen.iter().eq(answered.iter().copied()) && connections.len() == 1 {
        Some("answers came in another order than requests".to_owned())
    } else {
        None
    };
    let passed = seen.len() as u64;
    // A connection that is closed without a word is a refusal too.
    let conduct = conduct(case.verdict, passed, refused.is_some() || heard.is_closed, refused.is_some());
    let same_status = match case.verdict {
        Verdict::Accept { .. } => refused.is_none(),
        Verdict::Refuse { status, .. } => refused == Some(status),
    };
    CaseReport {
        name: case.name.clone(),
        reference: case.reference.clone(),
        expected: in_words(case.verdict),
        found: found_in_words(passed, refused, heard.is_closed),
        statuses,
        seen,
        conduct,
        same_status,
        desync,
        unclean: unclean(connections),
    }
}

/// `ended`: the connection is closed or was refused something; `refused`: something.
fn conduct(verdict: Verdict, passed: u64, ended: bool, refused: bool) -> Conduct {
    match verdict {
        // What follows an upgrade or CONNECT depends on the upstream's answer, which the corpus does not know.
        Verdict::Accept { requests, open } if passed > requests => {
            if open {
                Conduct::Same
            } else {
                Conduct::Laxer
            }
        }
        Verdict::Accept { requests, .. } if passed < requests || refused => Conduct::Stricter,
        Verdict::Accept { .. } => Conduct::Same,
        Verdict::Refuse { after, .. } if passed > after => Conduct::Laxer,
        Verdict::Refuse { after, .. } if passed < after => Conduct::Stricter,
        Verdict::Refuse { .. } if ended => Conduct::Same,
        Verdict::Refuse { .. } => Conduct::Waits,
    }
}

/// What a strict reader finds wrong in what the upstream received.
fn unclean(connections: &[Connection]) -> Option<String> {
    connections.iter().find_map(|connection| {
        let strict = read(&connection.bytes, Manner::Strict);
        match strict.fault {
            Some(fault) => Some(fault.to_owned()),
            None if strict.requests != connection.requests => Some("two readers see other requests".to_owned()),
            None => None,
        }
    })
}

fn in_words(verdict: Verdict) -> String {
    match verdict {
        Verdict::Accept { requests, open } => {
            format!("{requests} accepted{}", if open { ", more to come" } else { "" })
        }
        Verdict::Refuse { status, after: 0 } => format!("refused with {status}"),
        Verdict::Refuse { status, after } => format!("{after} accepted, then refused with {status}"),
    }
}

fn found_in_words(passed: u64, refused: Option<u16>, is_closed: bool) -> String {
    match (passed, refused, is_closed) {
        (0, Some(status), _) => format!("refused with {status}"),
        (passed, Some(status), _) => format!("{passed} accepted, then refused with {status}"),
        (0, None, true) => "closed".to_owned(),
        (passed, None, true) => format!("{passed} accepted, then closed"),
        (passed, None, false) => format!("{passed} accepted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attack::smuggling::client::Answer;

    const CANARY: &[u8] = b"GET /canary-0 HTTP/1.1\r\nHost: a\r\n\r\n";

    fn case(verdict: Verdict) -> Case {
        Case { name: "a".into(), bytes: Vec::new(), verdict, reference: "RFC".into() }
    }

    fn answer(status: u16, seen: Option<&str>) -> Answer {
        Answer { status, seen: seen.map(str::to_owned) }
    }

    fn upstream(first: &[u8], requests: &[&str]) -> Vec<Connection> {
        let requests = requests.iter().map(|request| (*request).to_owned()).chain(["GET /canary-0".to_owned()]);
        vec![Connection { bytes: [first, CANARY].concat(), requests: requests.collect() }]
    }

    fn judged(verdict: Verdict, heard: Vec<Answer>, connections: &[Connection]) -> CaseReport {
        judge(&case(verdict), &Heard { answers: heard, is_closed: false }, connections, "GET /canary-0", None)
    }

    #[test]
    fn a_sound_request_that_went_through_is_as_expected() {
        let accept = Verdict::Accept { requests: 1, open: false };
        let connections = upstream(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", &["GET /a"]);
        let report = judged(accept, vec![answer(200, Some("GET /a"))], &connections);
        assert!(report.conduct == Conduct::Same && report.desync.is_none() && report.unclean.is_none(), "{report:?}");
    }

    #[test]
    fn a_refusal_that_let_nothing_through_is_as_expected() {
        let refuse = Verdict::Refuse { status: 400, after: 0 };
        let report = judged(refuse, vec![answer(501, None)], &upstream(b"", &[]));
        assert!(report.conduct == Conduct::Same && !report.same_status && report.desync.is_none(), "{report:?}");
        assert_eq!((report.expected.as_str(), report.found.as_str()), ("refused with 400", "refused with 501"));
    }

    #[test]
    fn a_request_that_nobody_was_answered_for_is_a_desync() {
        let refuse = Verdict::Refuse { status: 400, after: 0 };
        let two = b"POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n";
        let connections = upstream(two, &["POST /a", "GET /smuggled"]);
        let report = judged(refuse, vec![answer(200, Some("POST /a"))], &connections);
        assert!(report.desync.is_some() && report.conduct == Conduct::Laxer, "{report:?}");
    }

    #[test]
    fn who_refuses_more_is_stricter_and_who_says_nothing_waits() {
        let accept = |requests, open| Verdict::Accept { requests, open };
        let refuse = Verdict::Refuse { status: 400, after: 1 };
        for (verdict, passed, ended, refused, expected) in [
            (accept(1, false), 0, true, true, Conduct::Stricter),
            (accept(1, false), 2, false, false, Conduct::Laxer),
            (accept(1, true), 2, false, false, Conduct::Same),
            (accept(1, true), 1, true, true, Conduct::Stricter),
            (refuse, 1, true, false, Conduct::Same),
            (refuse, 1, false, false, Conduct::Waits),
            (refuse, 0, true, true, Conduct::Stricter),
            (refuse, 2, true, true, Conduct::Laxer),
        ] {
            assert_eq!(conduct(verdict, passed, ended, refused), expected, "{verdict:?}, {passed} passed");
        }
    }

    #[test]
    fn a_strangers_answer_is_a_desync() {
        let accept = Verdict::Accept { requests: 0, open: true };
        let poisoned = Some("the next client got the answer to `GET /smuggled`".to_owned());
        let report = judge(&case(accept), &Heard::default(), &upstream(b"", &[]), "GET /canary-0", poisoned.clone());
        assert_eq!(report.desync, poisoned);
    }

    #[test]
    fn both_lengths_upstream_are_unclean() {
        let accept = Verdict::Accept { requests: 1, open: false };
        let both = b"POST /a HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let report = judged(accept, vec![answer(200, Some("POST /a"))], &upstream(both, &["POST /a"]));
        assert_eq!(report.unclean.as_deref(), Some("Content-Length beside Transfer-Encoding"));
    }
}
