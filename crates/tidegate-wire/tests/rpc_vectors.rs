//! Readers and writers of frames against every case of `vectors/rpc/frames.json`.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its cases has failed")]

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use tidegate_wire::rpc::client::{self, Wish};
use tidegate_wire::rpc::server::{self, Grant, Response, Status};
use tidegate_wire::rpc::{BadFrame, Decoded};

/// The bound on payloads, and the cases of one side.
fn cases(side: &str) -> (u32, Vec<Value>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/rpc/frames.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = vectors[side].as_array().unwrap().clone();
    let names: BTreeSet<_> = cases.iter().map(|case| case["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), cases.len(), "each has its own name");
    (u32::try_from(vectors["payload_bytes_max"].as_u64().unwrap()).unwrap(), cases)
}

fn from_hex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// The error's name in the vectors.
fn name_of(bad: BadFrame) -> &'static str {
    match bad {
        BadFrame::TooLarge { .. } => "too_large",
        BadFrame::Kind(_) => "kind",
        BadFrame::Field { .. } => "field",
        BadFrame::Magic { .. } => "magic",
        BadFrame::Version { .. } => "version",
        _ => panic!("the vectors have no name for {bad}"),
    }
}

fn merged(mut kind: Value, fields: &Value) -> Value {
    kind.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    kind
}

fn wish(wish: &Wish) -> Value {
    json!({
        "demand": wish.demand, "exact": wish.exact, "credited": wish.credited, "aware": wish.aware,
        "priority": wish.priority, "budget_ns": wish.budget_ns, "round_trip_ns": wish.round_trip_ns,
    })
}

fn client_frame(frame: &client::Frame<'_>) -> Value {
    match frame {
        client::Frame::Hello { tenant } => json!({ "kind": "hello", "tenant": tenant }),
        client::Frame::Request { id, wish: asked, payload } => {
            merged(json!({ "kind": "request", "id": id, "payload": to_hex(payload) }), &wish(asked))
        }
        client::Frame::Demand(asked) => merged(json!({ "kind": "demand" }), &wish(asked)),
        client::Frame::Cancel { id } => json!({ "kind": "cancel", "id": id }),
    }
}

fn grant(Grant { lease_ns, window, level }: Grant) -> Value {
    json!({ "window": window, "level": level, "lease_ns": lease_ns })
}

fn server_frame(frame: &server::Frame<'_>) -> Value {
    match frame {
        server::Frame::Response(Response { id, status, server_time_ns, grant: granted }, payload) => {
            let (status, reason) = match status {
                Status::Served => ("served", None),
                Status::Shed { reason } => ("shed", Some(reason)),
                Status::Failed => ("failed", None),
            };
            json!({
                "kind": "response", "id": id, "status": status, "reason": reason, "server_time_ns": server_time_ns,
                "grant": granted.map(grant), "payload": to_hex(payload),
            })
        }
        server::Frame::Grant(granted) => merged(json!({ "kind": "grant" }), &grant(*granted)),
    }
}

/// What reading a case gave: the frame and its bytes as they are written again, how much is needed, or what is wrong.
fn outcome<F>(read: Result<Decoded<F>, BadFrame>, show: impl FnOnce(&F) -> (Value, Vec<u8>)) -> (Value, Vec<u8>) {
    match read {
        Ok(Decoded::Frame(frame, used)) => {
            let (shown, written) = show(&frame);
            assert_eq!(written.len(), used);
            (json!({ "frame": shown }), written)
        }
        Ok(Decoded::Need(bytes)) => (json!({ "need": bytes }), Vec::new()),
        Err(bad) => (json!({ "error": name_of(bad) }), Vec::new()),
    }
}

fn compare(case: &Value, (outcome, written): (Value, Vec<u8>), bytes: &[u8]) {
    let keys = ["frame", "need", "error"];
    let key = keys.into_iter().find(|key| !case[key].is_null()).unwrap();
    assert_eq!(outcome[key], case[key], "{case}");
    assert!(bytes.starts_with(&written), "{case} is written as {}", to_hex(&written));
}

#[test]
fn frames_of_clients_are_as_the_vectors_say() {
    let (payload_max, cases) = cases("client");
    for case in cases {
        let bytes = from_hex(&case["hex"]);
        let read = outcome(client::frame(&bytes, payload_max), |frame| {
            let mut written = Vec::new();
            client::put(&mut written, frame);
            (client_frame(frame), written)
        });
        compare(&case, read, &bytes);
    }
}

#[test]
fn frames_of_servers_are_as_the_vectors_say() {
    let (payload_max, cases) = cases("server");
    for case in cases {
        let bytes = from_hex(&case["hex"]);
        let read = outcome(server::frame(&bytes, payload_max), |frame| {
            let mut written = Vec::new();
            server::put(&mut written, frame);
            (server_frame(frame), written)
        });
        compare(&case, read, &bytes);
    }
}
