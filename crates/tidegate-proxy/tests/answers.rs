//! Upstreams' answers against every case of `vectors/http1_answers/`, and laws that hold for any bytes.
#![cfg(feature = "io")]
#![expect(clippy::unwrap_used, reason = "a test that cannot read its cases has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tidegate_proxy::io::answers::read;
use tidegate_wire::http1::vectors::answers::{self, Case, Then, To};

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/http1_answers");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        answers::read(&fs::read_to_string(path).unwrap()).unwrap_or_else(|bad| panic!("{}: {bad}", path.display()))
    };
    paths.iter().flat_map(read).collect()
}

#[test]
fn there_are_many_cases_and_each_has_its_own_name() {
    let cases = cases();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 60, "{}", cases.len());
}

#[test]
fn each_case_is_read_as_it_says() {
    let mut wrong = Vec::new();
    for Case { name, to, bytes, reading, .. } in cases() {
        let seen = read(to, &bytes, []);
        if seen != reading {
            wrong.push(format!("{name}: expected {reading:?}, got {seen:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn byte_by_byte_is_like_all_at_once() {
    for Case { name, to, bytes, .. } in cases() {
        // Each byte of a long head is looked at again with the next one.
        let cuts = (0..bytes.len()).filter(|cut| bytes.len() < 4_096 || cut % 1_021 == 0);
        assert_eq!(read(to, &bytes, cuts), read(to, &bytes, []), "{name}");
    }
}

/// Pieces of answers, sound and unsound, in any order: more often interesting than bytes.
fn strange_answers() -> impl Strategy<Value = Vec<u8>> {
    let pieces: &[&[u8]] = &[
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 204 No Content\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n",
        b"Content-Length: 3\r\n",
        b"Content-Length: 4\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"A: b\r\n",
        b"\r\n",
        b"\n",
        b" ",
        b"\0",
        b"abc",
        b"3\r\n",
        b"03 ;a=b\r\n",
        b"abc\r\n",
        b"0\r\n",
    ];
    proptest::collection::vec(proptest::sample::select(pieces), 0..16).prop_map(|pieces| pieces.concat())
}

fn any_request() -> impl Strategy<Value = To> {
    proptest::sample::select(&[To::Get, To::Head, To::WebSocket][..])
}

proptest! {
    #[test]
    fn where_bytes_are_cut_changes_nothing(
        to in any_request(),
        input in strange_answers(),
        mut cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cuts: Vec<_> = cuts.drain(..).map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(read(to, &input, cuts), read(to, &input, []));
    }

    #[test]
    fn spoilt_cases_are_cut_like_whole_ones(
        case in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        thread_local!(static CASES: Vec<Case> = cases());
        let (to, mut bytes) = CASES.with(|cases| (case.get(cases).to, case.get(cases).bytes.clone()));
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let cut = cut.index(bytes.len() + 1);
        prop_assert_eq!(read(to, &bytes, [cut]), read(to, &bytes, []));
    }

    #[test]
    fn nothing_that_comes_behind_a_whole_answer_belongs_to_it_or_to_the_next(
        to in any_request(),
        input in strange_answers(),
        more in proptest::collection::vec(any::<u8>(), 1..8),
    ) {
        let seen = read(to, &input, []);
        prop_assert!(seen.content <= input.len() as u64);
        if matches!(seen.then, Then::Keep | Then::Close) {
            let longer = read(to, &[input, more].concat(), []);
            prop_assert_eq!((longer.status, longer.content, longer.then), (seen.status, seen.content, Then::Close));
        }
    }
}
