//! The project's own commands. `cargo xtask help` lists them.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command line tool: what it prints is its product")]

mod check;
mod clock;
mod demo;
mod etcd;
mod http;
mod measure;
mod metrics;
mod mutants;
mod namespaces;
mod nsq;
mod peers;
mod places;
mod process;
mod rng;
mod sdk_go;
mod server;
mod setup;
mod source;
mod steps;
mod suites;
mod test;

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result};

use crate::places::Places;
use crate::steps::Steps;
use crate::suites::Suite;

const HELP: &str = "\
cargo xtask COMMAND

  demo                set up, build, start the demo and print its address
  test                set up, build, run every test
  check               format, lints, documents, licences, rules of the style
  measure [ISSUE] [--only ROW] [--quick]
                      every bar at full size, beside the real nsqd and other limiters, as one table
  metrics             sizes and ratios of the sources
  mutants PATH [--seed N]
                      change the code at PATH in some hundred places: is there a test that fails?
  peers               build the real nsqd, its tools and the client libraries' tests
  suite NAME [BROKER] run one compatibility suite against nsqd and against BROKER
                      (protocol, go-nsq, nsqjs, tools, steer; BROKER: a program that acts as nsqd
                      when it is called so, by default the release binary)
  suite etcd [BINARY] kill, stop and take away the leader of three real etcd servers under BINARY, a tidegate
                      that is built with the feature etcd
  suite sdk-go        run the grpc-go interceptors against the Rust layers, both ways, and through the proxy
";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    process::end_children_on_signal()?;
    let places = Places::find();
    match words.as_slice() {
        ["demo", arguments @ ..] => demo::run(&places, arguments),
        ["test"] => test::run(&places),
        ["check"] => check::run(&places),
        ["measure", options @ ..] => measure::run(&places, &measure::Options::parse(options)?),
        ["mutants", options @ ..] => mutants::run(&places, options),
        ["metrics"] => metrics::print(&places),
        ["peers"] => build_peers(&places),
        ["suite", "sdk-go"] => run_sdk_go(&places),
        ["suite", "etcd", binary @ ..] => run_etcd(&places, binary),
        ["suite", name, broker @ ..] => run_suite(&places, name, broker),
        ["suite-inside", name, broker, scratch, results] => {
            suites::run_inside(&places, suite(name)?, Path::new(broker), Path::new(scratch), Path::new(results))
        }
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        other => miette::bail!(help = HELP, "unknown command: {}", other.join(" ")),
    }
}

fn build_peers(places: &Places) -> Result<()> {
    setup::ensure(places, setup::PEERS)?;
    let mut steps = Steps::new(places);
    steps.step("build nsqd and its tools", || peers::build_go(places));
    steps.step("install nsqjs", || peers::install_nsqjs(places));
    steps.close()
}

fn run_suite(places: &Places, name: &str, broker: &[&str]) -> Result<()> {
    let suite = suite(name)?;
    setup::ensure(places, setup::TEST)?;
    let mut steps = Steps::new(places);
    steps.step("build nsqd and its tools", || peers::build_go(places));
    steps.step("install nsqjs", || peers::install_nsqjs(places));
    let broker = match broker {
        [] => {
            steps.step("build tidegate", || peers::build_tidegate(places));
            places.tidegate()
        }
        [path, ..] => PathBuf::from(path),
    };
    steps.step(name, || suites::compare(places, suite, &broker));
    steps.close()
}

fn run_sdk_go(places: &Places) -> Result<()> {
    setup::ensure(places, setup::SDK_GO)?;
    let mut steps = Steps::new(places);
    sdk_go::run(places, &mut steps);
    steps.close()
}

fn run_etcd(places: &Places, binary: &[&str]) -> Result<()> {
    setup::ensure(places, setup::ETCD_NODES)?;
    let mut steps = Steps::new(places);
    let binary = match binary {
        [] => peers::build_tidegate_with(places, "etcd")?,
        [path, ..] => PathBuf::from(path).canonicalize().into_diagnostic()?,
    };
    etcd::run_short(places, &mut steps, &binary);
    steps.close()
}

fn suite(name: &str) -> Result<Suite> {
    Suite::named(name).ok_or_else(|| {
        let names: Vec<&str> = Suite::ALL.iter().map(|suite| suite.name()).collect();
        miette::miette!("no suite {name}; there are: {}", names.join(", "))
    })
}
