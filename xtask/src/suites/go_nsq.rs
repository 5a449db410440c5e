//! go-nsq's own tests.
//!
//! Its topics are named after the second in which a test starts, so two tests of one second would meet in one topic:
//! each test has a fresh broker, started with what its `test.sh` gives it. The module ships no client certificate;
//! one is made, and the tests that are about it run against a broker that demands it.

use std::process::Command;
use std::time::Duration;

use miette::{IntoDiagnostic, Result};

use super::server::{self, LOOKUPD_TCP, Server};
use super::{Results, Subject, Verdict};
use crate::places::Places;
use crate::{peers, process};

/// The slowest test waits for heartbeats, for a little over a second.
const TEST_LIMIT: Duration = Duration::from_mins(1);

/// Runs each test against a broker of its own.
pub(super) fn run(places: &Places, subject: &Subject) -> Result<Results> {
    let program = peers::go_nsq_tests(places);
    let names = process::output(Command::new(&program).args(["-test.list", "."]))?;
    server::make_certificates(&subject.scratch.join("test"))?;
    let _lookupd = Server::nsqlookupd(places, subject)?;
    let mut results = Results::new();
    for name in names.lines().filter(|name| name.starts_with("Test")) {
        let tls = ["-tls-cert=test/server.pem", "-tls-key=test/server.key", "-tls-root-ca-file=test/ca.pem"];
        let mut arguments = vec!["-lookupd-tcp-address", LOOKUPD_TCP];
        arguments.extend(tls);
        if name.contains("ClientCert") {
            // A policy alone would demand TLS of the HTTP port too, and the tests publish there in the clear.
            arguments.extend(["-tls-client-auth-policy=require-verify", "-tls-required=tcp-https"]);
        }
        let broker = Server::nsqd(subject, name, &arguments)?;
        results.insert(name.to_owned(), run_test(subject, &program, name)?);
        drop(broker);
    }
    Ok(results)
}

fn run_test(subject: &Subject, program: &std::path::Path, name: &str) -> Result<Verdict> {
    let mut command = Command::new(program);
    command.args(["-test.v", "-test.run", &format!("^{name}$")]).current_dir(&subject.scratch);
    let log = subject.scratch.join(format!("{name}.test.log"));
    let done = process::run(&mut command, TEST_LIMIT, &log, |_| {})?;
    let output = std::fs::read_to_string(&log).into_diagnostic()?;
    // The line counts and not the exit code: the mock tests' own logger panics when a connection of theirs closes late.
    if output.contains(&format!("--- PASS: {name} ")) {
        return Ok(Verdict::Passed(String::new()));
    }
    Ok(Verdict::Failed(format!("{}\n{}", done.ending(), done.tail)))
}
