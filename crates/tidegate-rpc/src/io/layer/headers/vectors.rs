//! The readers and writers against every case of `vectors/rpc/headers.json`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::machine::credits::Level;

fn vectors() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/rpc/headers.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The cases of a section, each of a name of its own.
fn cases(vectors: &Value, section: &str, kind: &str) -> Vec<Value> {
    let cases = vectors[section][kind].as_array().unwrap_or_else(|| panic!("no {section}, {kind}")).clone();
    let names: BTreeSet<_> = cases.iter().filter_map(|case| case["name"].as_str()).collect();
    assert!(cases[0]["name"].is_null() || names.len() == cases.len(), "{section}, {kind}");
    cases
}

/// The headers of a case; `None` if no HTTP library lets them through.
fn headers(name: &HeaderName, case: &Value) -> Option<HeaderMap> {
    let value = HeaderValue::from_bytes(case["value"].as_str().unwrap().as_bytes()).ok()?;
    Some(HeaderMap::from_iter([(name.clone(), value)]))
}

/// Reads each case of a header and compares what `read` makes of it with what stands at `key`.
fn read_all(name: &HeaderName, key: &str, read: impl Fn(&HeaderMap) -> Value) {
    for case in cases(&vectors(), name.as_str(), "read") {
        let read = headers(name, &case).map_or(Value::Null, |headers| read(&headers));
        assert_eq!(read, case[key], "{name}: {case}");
    }
}

fn write_all(name: &HeaderName, key: &str, write: impl Fn(&Value) -> HeaderValue) {
    for case in cases(&vectors(), name.as_str(), "write") {
        assert_eq!(write(&case[key]), case["value"].as_str().unwrap(), "{name}: {case}");
    }
}

fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {of}"))
}

fn number_32(of: &Value, key: &str) -> u32 {
    u32::try_from(number(of, key)).unwrap()
}

fn span(of: &Value, key: &str) -> Duration {
    Duration::from_nanos(number(of, key))
}

#[test]
fn asks_are_as_the_vectors_say() {
    read_all(&ASK, "ask", |headers| {
        read_ask(headers).map_or(Value::Null, |ask| {
            assert!(ask.aware);
            json!({
                "demand": ask.demand, "exact": ask.exact, "credited": ask.credited, "priority": ask.priority.0,
                "tenant": ask.tenant.0, "budget_ns": ask.budget.map(ns), "round_trip_ns": ns(ask.round_trip),
            })
        })
    });
    write_all(&ASK, "ask", |ask| {
        write_ask(&Ask {
            demand: number_32(ask, "demand"),
            exact: ask["exact"].as_bool().unwrap(),
            credited: ask["credited"].as_bool().unwrap(),
            priority: Priority(u8::try_from(number(ask, "priority")).unwrap()),
            tenant: Tenant(number_32(ask, "tenant")),
            budget: ask["budget_ns"].as_u64().map(Duration::from_nanos),
            round_trip: span(ask, "round_trip_ns"),
            ..Ask::default()
        })
    });
}

#[test]
fn grants_are_as_the_vectors_say() {
    read_all(&GRANT, "grant", |headers| {
        read_grant(headers).map_or(Value::Null, |GrantHeader { grant, server_time, instance }| {
            json!({
                "window": grant.window, "level": grant.level, "lease_ns": ns(grant.lease),
                "server_time_ns": ns(server_time), "instance": instance,
            })
        })
    });
    write_all(&GRANT, "grant", |grant| {
        write_grant(&GrantHeader {
            grant: Grant {
                window: number_32(grant, "window"),
                level: number_32(grant, "level"),
                lease: span(grant, "lease_ns"),
            },
            server_time: span(grant, "server_time_ns"),
            instance: number(grant, "instance"),
        })
    });
}

#[test]
fn clients_are_as_the_vectors_say() {
    read_all(&CLIENT, "client", |headers| {
        read_client(headers).map_or(Value::Null, |client| json!(format!("{client:x}")))
    });
    write_all(&CLIENT, "client", |client| write_client(u64::from_str_radix(client.as_str().unwrap(), 16).unwrap()));
}

#[test]
fn reasons_are_as_the_vectors_say() {
    read_all(&SHED, "reason", |headers| json!(shed_reason(headers)));
    write_all(&SHED, "reason", |reason| {
        HeaderValue::from_static(reason_word(serde_json::from_value(reason.clone()).unwrap()))
    });
    let words: Vec<_> = cases(&vectors(), SHED.as_str(), "write").iter().map(|case| case["reason"].clone()).collect();
    assert_eq!(json!(words), json!(ShedReason::ALL), "in the order of their numbers on the wire");
}

#[test]
fn times_to_come_back_are_as_the_vectors_say() {
    let name = HeaderName::from_static("grpc-retry-pushback-ms");
    read_all(&name, "ms", |headers| {
        json!(read_pushback(&headers[&name]).map(|span| span.as_secs() * 1_000 + u64::from(span.subsec_millis())))
    });
    read_all(&name, "ms", |headers| json!(read_retry_after(&headers[&name]).map(|span| span.as_secs())));
}

#[test]
fn timeouts_are_as_the_vectors_say() {
    read_all(&GRPC_TIMEOUT, "timeout", |headers| {
        json!(read_grpc_timeout(headers).map(|span| json!({ "seconds": span.as_secs(), "nanos": span.subsec_nanos() })))
    });
    write_all(&GRPC_TIMEOUT, "timeout", |timeout| {
        write_grpc_timeout(Duration::new(number(timeout, "seconds"), number_32(timeout, "nanos")))
    });
}

#[test]
fn levels_are_as_the_vectors_say() {
    let priority = |case: &Value| Priority(u8::try_from(number(case, "priority")).unwrap());
    for case in cases(&vectors(), "level", "parts") {
        let level = Level::from_wire(number_32(&case, "level"));
        assert_eq!(level.parts(priority(&case)), number_32(&case, "parts"), "{case}");
    }
    for case in cases(&vectors(), "level", "sent") {
        let (level, mut carry) = (Level::from_wire(number_32(&case, "level")), number_32(&case, "carry"));
        for (call, sent) in case["sent"].as_str().unwrap().bytes().enumerate() {
            assert_eq!(level.passes(priority(&case), &mut carry), sent == b'1', "call {call} of {case}");
        }
    }
}
