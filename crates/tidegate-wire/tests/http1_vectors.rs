//! The guard against every case of `vectors/http1/`, and laws that hold for any bytes.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its cases has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tidegate_wire::http1::vectors::{self, Case, Verdict};
use tidegate_wire::http1::{Guard, Limits, Phase, Violation};

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/http1");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        vectors::read(&fs::read_to_string(path).unwrap()).unwrap_or_else(|bad| panic!("{}: {bad}", path.display()))
    };
    paths.iter().flat_map(read).collect()
}

/// What a guard made of bytes, however they came.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Outcome {
    passed: usize,
    requests: u64,
    phase: Phase,
    violation: Option<Violation>,
}

/// Feeds `input` in pieces that end at `cuts` and at its end, as a connection would.
fn outcome(input: &[u8], cuts: impl IntoIterator<Item = usize>) -> Outcome {
    let mut guard = Guard::new(Limits::default());
    let mut passed = 0;
    for end in cuts.into_iter().chain([input.len()]) {
        let Ok(bytes) = guard.feed(&input[passed..end.max(passed)]) else { break };
        passed += bytes;
    }
    Outcome { passed, requests: guard.requests(), phase: guard.phase(), violation: guard.violation() }
}

#[test]
fn there_are_many_cases_and_each_has_its_own_name() {
    let cases = cases();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 400, "{}", cases.len());
}

#[test]
fn each_case_has_the_verdict_that_it_names() {
    let mut wrong = Vec::new();
    for Case { name, bytes, verdict, .. } in cases() {
        let seen = outcome(&bytes, []);
        let right = match verdict {
            Verdict::Accept { requests, open } => {
                seen.violation.is_none() && seen.requests == requests && (seen.phase != Phase::Idle) == open
                    // Alone at the end of a case, a request that may change the protocol is whole.
                    || seen.phase == Phase::Answer && seen.requests == requests && (seen.passed < bytes.len()) == open
            }
            Verdict::Refuse { status, after } => {
                seen.requests == after && seen.violation.is_some_and(|violation| violation.status == status)
            }
        };
        if !right {
            wrong.push(format!("{name}: expected {verdict:?}, got {seen:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn byte_by_byte_is_like_all_at_once() {
    for Case { name, bytes, .. } in cases() {
        assert_eq!(outcome(&bytes, 0..bytes.len()), outcome(&bytes, []), "{name}");
    }
}

/// Pieces of requests, sound and unsound, in any order: more often interesting than bytes.
fn strange_requests() -> impl Strategy<Value = Vec<u8>> {
    let pieces: &[&[u8]] = &[
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"A: b\r\n",
        b" ",
        b"\r\n",
        b"\r",
        b"\n",
        b"\0",
        b"abc",
        b"3\r\n",
        b"abc\r\n",
        b"0\r\n",
        b"3;a=b\r\n",
    ];
    proptest::collection::vec(proptest::sample::select(pieces), 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn where_bytes_are_cut_changes_nothing(
        input in strange_requests(),
        mut cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cuts: Vec<_> = cuts.drain(..).map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(outcome(&input, cuts), outcome(&input, []));
    }

    #[test]
    fn spoilt_cases_are_cut_like_whole_ones(
        case in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        thread_local!(static CASES: Vec<Case> = cases());
        let mut bytes = CASES.with(|cases| case.get(cases).bytes.clone());
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let cut = cut.index(bytes.len() + 1);
        prop_assert_eq!(outcome(&bytes, [cut]), outcome(&bytes, []));
    }

    #[test]
    fn nothing_passes_behind_what_was_found(input in strange_requests()) {
        let seen = outcome(&input, []);
        prop_assert!(seen.passed <= input.len());
        if let Some(violation) = seen.violation {
            prop_assert!(violation.offset >= seen.passed as u64 && violation.offset <= input.len() as u64);
        }
    }
}
