//! Scripts against servers that do one thing each.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::context::Context;
use super::dial::Dial;
use super::frame::{self, Head, PREFACE, flag, kind};
use super::smuggling::{Case, Recorder, Verdict, corpus, differential};
use super::*;

/// What a flood has sent when the server has had enough.
const ENOUGH: usize = 60_000;

/// One connection of `script` to what `server` does with it.
fn meet<T>(script: impl AsyncFnOnce(&Context), server: impl AsyncFnOnce(TcpStream) -> T) -> (T, Tally) {
    runtime().unwrap().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Loopback::new(listener.local_addr().unwrap()).unwrap();
        let config = AttackConfig { path: "/x".to_owned(), ..AttackConfig::new(Script::Smuggling, target) };
        let dial = Dial::new(target, false, "noisy.example").unwrap().with_many_sources();
        let hello = dial.hello().unwrap();
        let context = Context::new(&config, dial, hello);
        let accept = async { server(listener.accept().await.unwrap().0).await };
        let ((), found) = tokio::join!(script(&context), accept);
        (found, context.tally())
    })
}

/// Reads some frames, then says that it is enough, and closes when the client has.
async fn calm_down(mut stream: TcpStream) -> Vec<Head> {
    let mut bytes = vec![0; ENOUGH];
    stream.read_exact(&mut bytes).await.unwrap();
    let mut last_words = Vec::new();
    frame::write(&mut last_words, kind::HEADERS, flag::END_HEADERS, 1, b"\x48\x03429");
    frame::write(&mut last_words, kind::RST_STREAM, 0, 1, &[0, 0, 0, 7]);
    frame::write(&mut last_words, kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xb]);
    stream.write_all(&last_words).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = vec![0; ENOUGH];
    while stream.read(&mut rest).await.is_ok_and(|length| length > 0) {}
    heads(&bytes)
}

/// The heads of the whole frames behind a preface.
fn heads(bytes: &[u8]) -> Vec<Head> {
    let mut rest = bytes.strip_prefix(PREFACE).expect("a client begins so");
    let mut heads = Vec::new();
    while let Some((head, payload)) = rest.split_first_chunk() {
        let head = Head::read(head);
        let Some(after) = payload.get(head.length..) else { break };
        heads.push(head);
        rest = after;
    }
    heads
}

/// The kinds of the frames behind the settings, without the repetitions of `period` frames.
fn kinds(heads: &[Head]) -> Vec<u8> {
    assert_eq!(heads[0].kind, kind::SETTINGS);
    let mut kinds: Vec<u8> = heads[1..].iter().map(|head| head.kind).collect();
    kinds.dedup();
    kinds
}

/// The script sends frames of these kinds, and hears all that [`calm_down`] says.
fn check(script: impl AsyncFnOnce(&Context), expected: &[u8]) {
    let (heads, tally) = meet(script, calm_down);
    assert_eq!(kinds(&heads), expected);
    assert!(tally.attempts >= 1 && tally.bytes_sent > 0, "{tally:?}");
    let answers = (tally.statuses[&429], tally.resets["REFUSED_STREAM"], tally.goaways["ENHANCE_YOUR_CALM"]);
    assert_eq!((answers, tally.closed_by_target, tally.open_max), ((1, 1, 1), 1, 1));
}

#[test]
fn every_flood_is_what_its_name_says_and_hears_the_answer() {
    check(async |context| flood::continuation(context, false).await, &[kind::HEADERS, kind::CONTINUATION]);
    check(async |context| flood::continuation(context, true).await, &[kind::HEADERS, kind::CONTINUATION]);
    check(async |context| flood::settings(context, false).await, &[kind::SETTINGS]);
    check(async |context| flood::ping(context, false).await, &[kind::PING]);
    check(flood::window_update, &[kind::HEADERS, kind::WINDOW_UPDATE]);
    check(flood::zero_length_data, &[kind::HEADERS, kind::DATA]);
    check(flood::header_bomb, &[kind::HEADERS]);
}

#[test]
fn each_stream_of_a_rapid_reset_is_new_and_cancelled() {
    let (heads, tally) = meet(flood::rapid_reset, calm_down);
    let streams: Vec<(u8, u32)> = heads[1..].iter().map(|head| (head.kind, head.stream)).collect();
    assert_eq!(streams[..4], [(kind::HEADERS, 1), (kind::RST_STREAM, 1), (kind::HEADERS, 3), (kind::RST_STREAM, 3)]);
    assert!(usize::try_from(tally.attempts).unwrap() >= heads.len() / 2, "{tally:?}");
}

#[test]
fn a_server_that_speaks_no_http2_is_heard() {
    let ((), tally) = meet(flood::rapid_reset, async |mut stream: TcpStream| {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let mut rest = vec![0; ENOUGH];
        while stream.read(&mut rest).await.is_ok_and(|length| length > 0) {}
    });
    assert_eq!((tally.statuses.get(&400), tally.closed_by_target), (Some(&1), 1));
}

#[test]
fn who_leaves_answers_unread_notices_the_end_all_the_same() {
    let ((), tally) = meet(
        async |context: &Context| flood::ping(context, true).await,
        async |mut stream: TcpStream| {
            let mut bytes = vec![0; ENOUGH];
            stream.read_exact(&mut bytes).await.unwrap();
        },
    );
    assert_eq!(tally.closed_by_target, 1);
}

#[test]
fn slowloris_names_its_host_before_it_is_slow() {
    let (head, tally) = meet(slow::slowloris, async |mut stream: TcpStream| {
        let mut head = vec![0; b"GET /x HTTP/1.1\r\nHost: noisy.example\r\n".len()];
        stream.read_exact(&mut head).await.unwrap();
        stream.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        head
    });
    assert_eq!(head, b"GET /x HTTP/1.1\r\nHost: noisy.example\r\n");
    assert_eq!((tally.statuses[&408], tally.closed_by_target), (1, 1));
}

#[test]
fn a_hello_that_is_refused_is_an_alert() {
    let (first, tally) = meet(hello::flood, async |mut stream: TcpStream| {
        let mut first = [0; 6];
        stream.read_exact(&mut first).await.unwrap();
        stream.write_all(&[21, 3, 3, 0, 2, 2, 49]).await.unwrap();
        first
    });
    assert_eq!((first[0], first[5]), (22, 1));
    assert_eq!((tally.attempts, tally.handshakes.alerts), (1, 1));
}

#[test]
fn a_target_that_answers_nobody_is_no_finding() {
    // Bound and then closed: nobody listens there.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = AttackConfig::new(Script::PingFlood, Loopback::new(address).unwrap());
    assert!(matches!(run(&config), Err(LoadError::Unanswered { .. })));
}

#[test]
fn settings_without_a_meaning_are_refused() {
    let target = "127.0.0.1:1".parse().unwrap();
    let refused = |change: fn(&mut AttackConfig)| {
        let mut config = AttackConfig::new(Script::PingFlood, target);
        change(&mut config);
        matches!(run(&config), Err(LoadError::Config { .. }))
    };
    assert!(refused(|config| config.script = Script::HandshakeFlood));
    assert!(refused(|config| config.seconds = 0));
    assert!(refused(|config| config.connections = Some(0)));
    assert!(refused(|config| config.victim_rate_per_s = f64::NAN));
    assert!(refused(|config| config.path = "no slash".to_owned()));
}

#[test]
fn what_is_missing_on_this_machine_is_said_exactly() {
    let mut config = AttackConfig::new(Script::Slowloris, "127.0.0.1:1".parse().unwrap());
    let error = config.connections(4_096).unwrap_err().to_string();
    assert!(error.contains("10000 connections need 10400 open files") && error.contains("6304 are missing"), "{error}");
    config.script = Script::FdExhaustion;
    assert_eq!(config.connections(4_096).unwrap(), 3_696);
}

/// The recorder itself as the target: a lenient server in front of itself.
#[test]
fn the_differential_tells_a_lenient_server_from_a_strict_one() {
    let recorder = Recorder::start("127.0.0.1:0".parse().unwrap()).unwrap();
    let target = Loopback::new(recorder.address()).unwrap();
    let case = |name: &str, bytes: &[u8], verdict| Case {
        name: name.to_owned(),
        bytes: bytes.to_vec(),
        verdict,
        reference: String::new(),
    };
    let cases = [
        case("sound", b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", Verdict::Accept { requests: 1, open: false }),
        case("line feeds", b"GET /a HTTP/1.1\nHost: a\n\n", Verdict::Refuse { status: 400, after: 0 }),
        case("no version", b"GET /a\r\n\r\n", Verdict::Refuse { status: 400, after: 0 }),
    ];
    let report = differential(target, &recorder, &cases, "a").unwrap();
    assert_eq!((report.cases, report.desyncs, report.laxer), (3, 0, 1), "{report:#?}");
    let found: Vec<&str> = report.reports.iter().map(|report| report.found.as_str()).collect();
    assert_eq!(found, ["1 accepted", "1 accepted", "refused with 400"]);
    assert_eq!(report.reports[1].unclean.as_deref(), Some("a bare line feed"));
}

#[test]
fn the_corpus_has_the_size_that_is_asked_for() {
    assert!(corpus().len() >= 200);
}

#[test]
fn a_case_of_the_corpus_is_an_attempt() {
    let script = async |context: &Context| smuggling::attack(context, 0).await;
    let ((), tally) = meet(script, async |mut stream: TcpStream| {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let mut rest = vec![0; ENOUGH];
        while stream.read(&mut rest).await.is_ok_and(|length| length > 0) {}
    });
    assert_eq!((tally.attempts, tally.statuses.get(&400)), (1, Some(&1)));
}
