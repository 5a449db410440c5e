//! Writes a small corpus for each target: sound inputs for the fuzzer to spoil.

#![forbid(unsafe_code)]

use std::path::Path;
use std::{fs, io};

use tidegate_broker::io::transport;
use tidegate_core::lend::{Asks, Circle, Entry, Frame, Member, Stamp};
use tidegate_wire::http1::vectors;
use tidegate_wire::nsq::client;
use tidegate_wire::nsq::frame::{self, Header, hex_id};
use tidegate_wire::proxy_protocol::{Fields, Origin, Tls, Transport, put_v2};
use tidegate_wire::{lend, rpc};

fn main() -> io::Result<()> {
    let session = session();
    write("nsq_session", &[&session])?;
    let lines: Vec<&[u8]> = vec![b"PUB topic\n", b"SUB topic channel#ephemeral\r\n", b"RDY 2500\n", b"CLS\n"];
    write("nsq_command", &lines)?;
    let mut batch = Vec::new();
    let mut messages = client::Batch::begin(&mut batch, "t");
    messages.push(b"one");
    messages.push(b"another");
    messages.finish();
    // The target looks at what stands behind the line and the size, too.
    write("nsq_command", &[&batch[b"MPUB t\n".len() + 4..]])?;
    write("nsq_client_frames", &[&frames()])?;
    write(
        "transport",
        &[&compressed(0, transport::Transport::start_snappy), &compressed(1, |transport| transport.start_deflate(6))],
    )?;
    write("rpc_frame", &[&calls(), &answers()])?;
    write("lend_datagram", &[&lending(0), &lending(3)])?;
    write("config_toml", &[include_bytes!("../../../tidegate.example.toml"), b"mem_queue_size = 0\nid = 7\n"])?;
    let answer = br#"{"ttl":60,"identity":"ada","identity_url":"","authorizations":[
        {"topic":"^t.*$","channels":[".*","c[0-9]"],"permissions":["publish","subscribe"]}]}"#;
    write("auth_answer", &[answer])?;
    for case in requests()? {
        // Where to cut stands before what is cut.
        write("http1_guard", &[&[&[5, 40, 90], &case[..]].concat()])?;
    }
    for case in answers_of_upstreams()? {
        // Before it what it answers, and where to cut.
        write("http1_answer", &[&[&[case.to as u8, 9, 30, 60], &case.bytes[..]].concat()])?;
    }
    write("tls_hello", &[&hello(200), &hello(1)])?;
    write("trace_context", &[b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0b1902b7-01"])?;
    write("proxy_protocol", &[b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 443\r\n", &proxied()])?;
    write("profile", &[&(0..64_u8).collect::<Vec<_>>()])
}

/// Adds `inputs` to the corpus of `target`, next to those of earlier calls.
fn write(target: &str, inputs: &[&[u8]]) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    for input in inputs {
        // FNV-1a as a name: the same input is the same file.
        let name =
            input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        fs::write(folder.join(format!("seed-{name:016x}")), input)?;
    }
    Ok(())
}

fn session() -> Vec<u8> {
    let mut bytes = vec![3, 11, 40]; // Where to cut.
    bytes.extend_from_slice(client::MAGIC);
    client::put_identify(&mut bytes, br#"{"feature_negotiation":true,"heartbeat_interval":1000}"#);
    client::put_sub(&mut bytes, "t", "c");
    client::put_rdy(&mut bytes, 2);
    client::put_pub(&mut bytes, "t", b"message");
    client::put_dpub(&mut bytes, "t", 100, b"later");
    client::put_fin(&mut bytes, b"0123456789abcdef");
    client::put_req(&mut bytes, b"0123456789abcdef", 10);
    client::put_touch(&mut bytes, b"0123456789abcdef");
    client::put_nop(&mut bytes);
    client::put_cls(&mut bytes);
    bytes
}

fn frames() -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::put_ok(&mut bytes);
    frame::put_error(&mut bytes, b"E_BAD_TOPIC x");
    frame::put_message(&mut bytes, &Header { timestamp: 1, attempts: 2, id: hex_id(3) }, b"body");
    bytes
}

/// A frame of a member that lends, signed as the target reads it.
fn lending(circles: u64) -> Vec<u8> {
    let entry = |circle| Entry { circle: Circle(circle), given: 9, room: 4, level: -1, want: 5, over: circle == 1 };
    let frame = Frame {
        from: Member(1),
        to: Member(2),
        mine: 3,
        yours: 4,
        sent: Stamp(5),
        echo: (circles > 0).then_some(Stamp(6)),
        asks: Asks::Answer,
        entries: (0..circles).map(entry).collect(),
    };
    let mut out = Vec::new();
    lend::put(&mut out, &frame, lend::Key::new([1; 16]));
    out
}

fn calls() -> Vec<u8> {
    let mut bytes = Vec::new();
    let wish = rpc::client::Wish { demand: 3, credited: true, priority: 128, budget_ns: 9, ..Default::default() };
    rpc::client::put_hello(&mut bytes, 1);
    rpc::client::put_request(&mut bytes, 7, &wish, b"payload");
    rpc::client::put_demand(&mut bytes, &wish);
    rpc::client::put_cancel(&mut bytes, 7);
    bytes
}

fn answers() -> Vec<u8> {
    let mut bytes = Vec::new();
    let grant = rpc::server::Grant { lease_ns: 1_000, window: 4, level: 2 };
    for status in [rpc::server::Status::Served, rpc::server::Status::Shed { reason: 3 }, rpc::server::Status::Failed] {
        let response = rpc::server::Response { id: 7, status, server_time_ns: 50, grant: Some(grant) };
        rpc::server::put_response(&mut bytes, &response, b"answer");
    }
    rpc::server::put_grant(&mut bytes, &grant);
    bytes
}

fn compressed(kind: u8, start: impl FnOnce(&mut transport::Transport)) -> Vec<u8> {
    let mut transport = transport::Transport::default();
    start(&mut transport);
    let mut bytes = vec![kind, 7];
    transport.send(&b"PUB topic\n".repeat(50), &mut bytes).expect("compressing needs nobody");
    bytes
}

/// The cases of `vectors/http1/` that are not long.
fn requests() -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for text in vector_files("http1")? {
        let cases = vectors::read(&text).map_err(io::Error::other)?;
        found.extend(cases.into_iter().map(|case| case.bytes).filter(|bytes| bytes.len() < 400));
    }
    Ok(found)
}

/// The cases of `vectors/http1_answers/` that are not long.
fn answers_of_upstreams() -> io::Result<Vec<vectors::answers::Case>> {
    let mut found = Vec::new();
    for text in vector_files("http1_answers")? {
        let cases = vectors::answers::read(&text).map_err(io::Error::other)?;
        found.extend(cases.into_iter().filter(|case| case.bytes.len() < 400));
    }
    Ok(found)
}

/// The texts of a folder's files of cases.
fn vector_files(folder: &str) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors").join(folder))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            texts.push(fs::read_to_string(&path)?);
        }
    }
    Ok(texts)
}

/// A `ClientHello` with a server name, protocols and versions, in records of `size` bytes.
fn hello(size: usize) -> Vec<u8> {
    let extensions = b"\0\0\0\x0e\0\x0c\0\0\x09a.example\0\x10\0\x05\0\x03\x02h2\0\x2b\0\x03\x02\x03\x04";
    let mut message = b"\x01\0\0\0\x03\x03".to_vec();
    message.extend_from_slice(&[7; 32]);
    message.extend_from_slice(b"\0\0\x02\x13\x01\x01\0\0");
    message.push(u8::try_from(extensions.len()).expect("it is short"));
    message.extend_from_slice(extensions);
    message[3] = u8::try_from(message.len() - 4).expect("it is short");
    let record = |part: &[u8]| [&[22, 3, 1, 0, u8::try_from(part.len()).expect("it is short")][..], part].concat();
    message.chunks(size).flat_map(record).collect()
}

fn proxied() -> Vec<u8> {
    let mut bytes = Vec::new();
    let address = |last: u8| ([192, 0, 2, last], 4711).into();
    let origin = Origin::Client { source: address(1), destination: address(2), transport: Transport::Stream };
    let tls = Tls { used: true, verified: true, version: Some("TLSv1.3".into()), ..Tls::default() };
    let fields = Fields { authority: Some("a.example".into()), tls: Some(tls), checked: true, ..Fields::default() };
    put_v2(&mut bytes, &origin, &fields);
    bytes
}
