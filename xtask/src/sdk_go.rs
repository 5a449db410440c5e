//! The grpc-go interceptors of `sdk/go`: their own tests, and their examples with the Rust example `tonic_work` at the
//! other end; and grpc-go on both sides of the proxy. What is asserted here holds at any speed: the services are given far more calls than they can serve.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::Value;

use crate::clock;
use crate::peers::{cargo, go};
use crate::places::Places;
use crate::process::Group;
use crate::server::Server;
use crate::steps::{self, Steps};

/// Compiling the example and grpc-go from nothing takes minutes.
const BUILD_LIMIT: Duration = Duration::from_mins(30);
/// Loads end by themselves after seconds.
const LOAD_LIMIT: Duration = Duration::from_mins(2);
/// Starting the proxy takes milliseconds; a debug build on a busy machine takes longer.
const START_LIMIT: Duration = Duration::from_mins(1);

/// Far more than what a service of 5 ms of work can serve, whatever the machine.
const OVERLOAD: &str = "rate 4000 seconds 2 warm-up 0.5 slo-us 10000000 connections 4 control tidegate";
/// Enough calls after the first answer to count those that are sent against the level.
const CLOSED_OUT: &str = "rate 4000 seconds 2 warm-up 0 slo-us 10000000 connections 1 control tidegate";
/// What a proxy serves without being short of anything.
const THROUGH_PROXY: &str = "rate 400 seconds 1 warm-up 0 slo-us 10000000 connections 4 control none";
/// And what makes it refuse some of these calls.
const SHORT: &str = "[proxy.limits]\npatience = \"0s\"\n[proxy.limits.capacities]\nrequests = \"100/s\"\n";
/// Calls of a client that was never answered, at most: so many may be under way when the level comes.
const UNHEARD: u64 = 256;
/// Of the calls that a level keeps back, one in so many is sent all the same, so that the demand stays known.
const PROBE: u64 = 256;

/// Builds both sides, runs the Go module's own tests, then each client against the other's server.
pub(crate) fn run(places: &Places, steps: &mut Steps<'_>) {
    steps.step("sdk/go: vet and tests", || test(places).map(|()| String::new()));
    if steps.step("build the examples of both sides", || build(places).map(|()| String::new())) {
        steps.step("grpc-go interceptors: Go calls Rust", || go_calls_rust(places));
        steps.step("grpc-go interceptors: Rust calls Go", || rust_calls_go(places));
        steps.step("grpc-go interceptors: a level of 0 is obeyed", || level_is_obeyed(places));
        steps.step("grpc-go through the proxy", || go_through_the_proxy(places));
    }
}

fn module(places: &Places) -> PathBuf {
    places.root.join("sdk/go")
}

fn test(places: &Places) -> Result<()> {
    go(places, "sdk go vet", &module(places), &["vet", "./..."])?;
    go(places, "sdk go test", &module(places), &["test", "./..."])
}

/// Where the Go examples are built to.
pub(crate) fn programs(places: &Places) -> PathBuf {
    places.target.join("sdk-go")
}

fn tonic_work(places: &Places) -> PathBuf {
    places.target.join("debug/examples/tonic_work")
}

/// Builds the Go examples.
pub(crate) fn build_examples(places: &Places) -> Result<()> {
    let programs = programs(places);
    std::fs::create_dir_all(&programs).into_diagnostic()?;
    let to = format!("{}/", programs.display());
    go(places, "sdk go build", &module(places), &["build", "-trimpath", "-o", &to, "./example/..."])
}

fn tidegate(places: &Places) -> PathBuf {
    places.target.join("debug/tidegate")
}

fn build(places: &Places) -> Result<()> {
    build_examples(places)?;
    for package in [&["tidegate-rpc", "--example", "tonic_work"][..], &["tidegate"]] {
        let mut command = cargo(places);
        command.args(["build", "--locked", "--package"]).args(package);
        let done = steps::run(places, "build for sdk go", &mut command, BUILD_LIMIT, steps::quiet)?;
        steps::finish(&command, &done)?;
    }
    Ok(())
}

/// The Rust server tells levels, the Go client obeys them.
fn go_calls_rust(places: &Places) -> Result<String> {
    let mut command = Command::new(tonic_work(places));
    command.args(["serve", "--work-us", "5000"]);
    let folder = places.scratch("sdk-go-rust")?;
    let server = Server::start(&folder.path, "rust", &mut command)?;
    let report = go_load(places, server.said("addr")?, OVERLOAD)?;
    let said = server.stop()?;
    let client = &report["client"];
    holds("every call ended, and every refusal was marked", &report, "/failed", |failed| failed == 0)?;
    holds("calls were served", &report, "/served_us/calls", |calls| calls > 0)?;
    holds("calls were kept back here", &report, "/shed_local_us/calls", |calls| calls > 0)?;
    holds("grants were heard", client, "/Grants", |grants| grants > 0)?;
    let (sent, answered, shed) = (number(client, "/Sent")?, number(client, "/Served")?, number(client, "/ShedThere")?);
    if sent != answered + shed {
        miette::bail!("{sent} calls were sent, {answered} served and {shed} shed: {client}");
    }
    holds("both sides count the same calls served", &said, "/served", |there| there == answered)?;
    Ok(format!("{} served, {} kept back", report["served_us"]["calls"], report["shed_local_us"]["calls"]))
}

/// The Go server tells levels, the Rust client obeys them.
fn rust_calls_go(places: &Places) -> Result<String> {
    let mut command = Command::new(programs(places).join("server"));
    command.args(["-work-us", "5000"]);
    let folder = places.scratch("sdk-go-go")?;
    let server = Server::start(&folder.path, "go", &mut command)?;
    let report = rust_load(places, server.said("addr")?, OVERLOAD)?;
    let said = server.stop()?;
    holds("every call ended, and every refusal was marked", &report, "/failed", |failed| failed == 0)?;
    holds("no call is without an end", &report, "/unanswered", |unanswered| unanswered == 0)?;
    holds("calls were served", &report, "/served_us/calls", |calls| calls > 0)?;
    holds("calls were kept back beside their callers", &report, "/shed_local_us/calls", |calls| calls > 0)?;
    holds("each connection is a client, and all are their address first", &said, "/Sessions", |sessions| {
        sessions == 5
    })?;
    let answered = number(&report, "/served_us/calls")?;
    holds("the server counts those of the warm-up as well", &said, "/Served", |there| there >= answered)?;
    holds("nothing is left in flight", &said, "/InFlight", |in_flight| in_flight == 0)?;
    Ok(format!("{answered} served, {} kept back", report["shed_local_us"]["calls"]))
}

/// A Go server that answers at once and tells a level of 0 for a minute; both clients.
fn level_is_obeyed(places: &Places) -> Result<String> {
    let mut notes = Vec::new();
    for (name, load) in [("Go", go_load as fn(&Places, &str, &str) -> Result<Value>), ("Rust", rust_load)] {
        let mut command = Command::new(programs(places).join("server"));
        command.args(["-work-us", "0", "-tell", "w=0,l=0,t=60000000,s=1"]);
        let folder = places.scratch("sdk-go-tells")?;
        let server = Server::start(&folder.path, "tells", &mut command)?;
        let report = load(places, server.said("addr")?, CLOSED_OUT)?;
        let sent = number(&server.stop()?, "/Served")?;
        let kept = number(&report, "/shed_local_us/calls")?;
        if sent == 0 || kept == 0 || sent > UNHEARD + (sent + kept) / PROBE + 1 {
            miette::bail!("the {name} client sent {sent} calls and kept {kept} back, at a level of 0");
        }
        notes.push(format!("{name} sent {sent} of {}", sent + kept));
    }
    Ok(notes.join(", "))
}

/// grpc-go calls grpc-go through `tidegate proxy`: every call is served; and with fewer requests than there are calls the
/// client understands what the proxy says to the others.
fn go_through_the_proxy(places: &Places) -> Result<String> {
    let mut notes = Vec::new();
    for (limits, is_short) in [("", false), (SHORT, true)] {
        let mut command = Command::new(programs(places).join("server"));
        command.args(["-work-us", "0"]);
        let folder = places.scratch("sdk-go-proxy")?;
        let server = Server::start(&folder.path, "proxied", &mut command)?;
        let proxy = Proxy::start(places, &folder.path, server.said("bare_addr")?, limits)?;
        let report = go_load(places, &proxy.address, THROUGH_PROXY)?;
        drop(proxy);
        // The client counts RESOURCE_EXHAUSTED, who is over its share, as refused, and UNAVAILABLE, there is no more for anybody,
        // as failed.
        let first = report["first_failure"].as_str().unwrap_or_default();
        let is_known = is_short && first.starts_with("rpc error: code = Unavailable desc = There is not enough");
        let as_grpc = |failed| failed == 0 || is_known;
        holds("every call was served or refused as gRPC has it", &report, "/failed", as_grpc)?;
        holds("calls were served", &report, "/served_us/calls", |calls| calls > 0)?;
        holds("only a proxy that is short of requests refuses", &report, "/shed_remote_us/calls", |calls| {
            (calls > 0) == is_short
        })?;
        notes.push(format!("{} served, {} refused", report["served_us"]["calls"], report["shed_remote_us"]["calls"]));
    }
    Ok(notes.join("; "))
}

/// `tidegate proxy`. Dropping it ends it.
struct Proxy {
    _group: Group,
    address: String,
}

impl Proxy {
    /// Before the server of HTTP/2 at `upstream`.
    fn start(places: &Places, folder: &Path, upstream: &str, limits: &str) -> Result<Self> {
        let address =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).into_diagnostic()?.to_string();
        let config = format!(
            "[proxy]\nadmin_address = \"\"\n[[proxy.listen]]\naddress = \"{address}\"\n[[proxy.upstream]]\nname = \"go\"\n\
             protocol = \"h2c\"\nservers = [\"{upstream}\"]\n[[proxy.route]]\nupstream = \"go\"\n{limits}"
        );
        let file = folder.join("tidegate.toml");
        std::fs::write(&file, config).into_diagnostic()?;
        let log = File::create(folder.join("proxy")).into_diagnostic()?;
        let mut command = Command::new(tidegate(places));
        command.args(["proxy", "-c"]).arg(&file).current_dir(folder);
        command.stdin(Stdio::null()).stdout(log.try_clone().into_diagnostic()?).stderr(log);
        let group = Group::spawn(&mut command)?;
        if clock::poll(START_LIMIT, || TcpStream::connect(&address).ok()).is_none() {
            let said = std::fs::read_to_string(folder.join("proxy")).unwrap_or_default();
            miette::bail!("no proxy at {address}; it said:\n{said}");
        }
        Ok(Self { _group: group, address })
    }
}

fn go_load(places: &Places, addr: &str, options: &str) -> Result<Value> {
    let mut command = Command::new(programs(places).join("client"));
    command.args(flags("-", addr, options));
    report(places, "sdk go load", &mut command)
}

fn rust_load(places: &Places, addr: &str, options: &str) -> Result<Value> {
    let mut command = Command::new(tonic_work(places));
    command.arg("load").args(flags("--", addr, options));
    report(places, "sdk go rust load", &mut command)
}

/// Both loads have the same options, but for the dashes.
fn flags(dashes: &str, addr: &str, options: &str) -> Vec<String> {
    let mut flags = vec![format!("{dashes}addr"), addr.to_owned()];
    for (at, word) in options.split(' ').enumerate() {
        flags.push(if at % 2 == 0 { format!("{dashes}{word}") } else { word.to_owned() });
    }
    flags
}

/// Runs a load and reads the JSON that it prints.
fn report(places: &Places, name: &str, command: &mut Command) -> Result<Value> {
    let done = steps::run(places, name, command, LOAD_LIMIT, steps::quiet)?;
    steps::finish(command, &done)?;
    let line = done.tail.lines().last().unwrap_or_default();
    serde_json::from_str(line).into_diagnostic().wrap_err_with(|| format!("{name} said {line}"))
}

fn number(of: &Value, key: &str) -> Result<u64> {
    of.pointer(key).and_then(Value::as_u64).ok_or_else(|| miette::miette!("no number {key} in {of}"))
}

/// Fails with what was expected if `test` says no to the number at `key`.
fn holds(what: &str, of: &Value, key: &str, test: impl FnOnce(u64) -> bool) -> Result<()> {
    if test(number(of, key)?) { Ok(()) } else { miette::bail!("it does not hold that {what}: {key} in {of}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_of_either_program() {
        assert_eq!(flags("-", "a:1", "rate 5 seed 2"), ["-addr", "a:1", "-rate", "5", "-seed", "2"]);
        assert_eq!(flags("--", "a:1", "rate 5"), ["--addr", "a:1", "--rate", "5"]);
    }

    #[test]
    fn what_does_not_hold_is_said_with_the_numbers() {
        let report = serde_json::json!({ "failed": 3 });
        assert!(holds("nothing fails", &report, "/failed", |failed| failed == 3).is_ok());
        let error = holds("nothing fails", &report, "/failed", |failed| failed == 0).unwrap_err();
        assert!(error.to_string().contains("nothing fails") && error.to_string().contains("\"failed\":3"));
        assert!(holds("it is there", &report, "/served", |_| true).is_err());
    }
}
