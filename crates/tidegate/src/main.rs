//! The `tidegate` binary: the broker, its console, the demo and the laboratory behind one command.
//!
//! | module | its one job |
//! |---|---|
//! | `cli` | the command line |
//! | `settings` | `tidegate.toml`, checked once |
//! | `up`, `broker`, `proxy`, `control`, `steer`, `shaper` | what runs until it is told to stop |
//! | `demo` | the same overload twice, side by side |
//! | `check`, `status`, `explain`, `limits`, `place`, `profile`, `bucket`, `lab` | the verbs that answer and leave |
//! | `bench_mcap` | what a broker takes within an objective |
//! | `attack` | abuse scripts against a proxy on this machine |
//! | `rpc` | a server of short calls that computes |
//! | `rpc_watch` | what that server shows of itself: admin API, metrics, console |
//! | `reload` | SIGHUP: the file is read again |
//! | `running` | a whole broker, started and stopped in order |
//! | `servers`, `signals`, `token`, `scratch` | what it stands on |
//! | `limit_book` | limits set live, and their history, in the control store |
//! | `admin_client` | requests to a running broker |
//! | `failure`, `output` | how a command ends, and what it prints |
//!
//! Started under the name `nsqd`, it is `tidegate broker`.

mod admin_client;
mod attack;
mod bench_mcap;
mod broker;
mod bucket;
mod check;
mod cli;
mod control;
mod demo;
mod explain;
mod failure;
mod lab;
mod limit_book;
mod limits;
mod output;
mod place;
mod placed;
mod profile;
mod proxy;
mod reload;
mod rpc;
mod rpc_watch;
mod running;
mod scratch;
mod servers;
mod settings;
mod shaper;
mod signals;
mod sim_neighbours;
mod sim_placement;
mod sim_rpc;
mod status;
mod steer;
mod store_copy;
mod store_section;
mod token;
mod up;
mod words;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use miette::MietteHandlerOpts;
use tidegate_load::LoadError;
use tidegate_load::cli::Outcome;

use crate::cli::{Bench, Cli, Lab, Rpc, Sim, Theory, Verb};
use crate::failure::Failure;

fn main() -> ExitCode {
    // Fails only if a hook is set already.
    let _ = miette::set_hook(Box::new(|_| Box::new(MietteHandlerOpts::new().unicode(true).width(110).build())));
    match run(std::env::args_os().collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let code = ExitCode::from(failure.exit as u8);
            eprint!("{:?}", miette::Report::new(failure));
            code
        }
    }
}

fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let name = args.first().map(Path::new).and_then(Path::file_name);
    if name.is_some_and(|name| name == "nsqd") {
        return broker::run(broker::Name::Nsqd, &args[1..]);
    }
    // Go's flag syntax is not clap's, so the broker reads its arguments itself.
    if args.get(1).is_some_and(|verb| verb == "broker") {
        return broker::run(broker::Name::Tidegate, &args[2..]);
    }
    if args.len() < 2 {
        return output::line(cli::command().render_help());
    }
    match Cli::parse_from(args).verb {
        Verb::Up(args) => up::run(&args),
        Verb::Proxy(args) => proxy::run(&args),
        Verb::Steer(args) => steer::run(&args),
        Verb::Control(args) => control::run(&args),
        Verb::Shaper(args) => shaper::run(&args),
        Verb::Place(args) => place::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Broker => broker::run(broker::Name::Tidegate, &[]),
        Verb::Check(args) => check::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Limits(verb) => limits::run(verb),
        Verb::Store(verb) => store_copy::run(&verb),
        Verb::Profile(args) => profile::run(&args),
        Verb::Theory(Theory::Bucket(args)) => bucket::theory(&args),
        Verb::Sim(Sim::Bucket(args)) => bucket::simulate(&args),
        Verb::Sim(Sim::Rpc(args)) => sim_rpc::simulate(&args),
        Verb::Sim(Sim::Neighbours(args)) => sim_neighbours::simulate(&args),
        Verb::Sim(Sim::Placement(args)) => sim_placement::simulate(&args),
        Verb::Lab(Lab::Run(args)) => lab::run(&args),
        Verb::Lab(Lab::List(args)) => lab::list(&args),
        Verb::Attack(args) => attack::run(&args),
        Verb::Bench(Bench::Nsq { args }) => bench(tidegate_load::cli::execute(&args)),
        Verb::Bench(Bench::Mcap(args)) => bench_mcap::run(&args),
        Verb::Bench(Bench::Http { args }) => bench(tidegate_load::cli::execute_http(&args)),
        Verb::Bench(Bench::Upstream { args }) => bench_upstream(&args),
        Verb::Bench(Bench::Tcp { args }) => bench(tidegate_load::cli::execute_tcp(&args)),
        Verb::Bench(Bench::Rpc { args }) => bench(tidegate_load::cli::execute_rpc(&args)),
        Verb::Rpc(Rpc::Serve(args)) => rpc::serve(&args),
        Verb::Completions { shell } => {
            clap_complete::generate(shell, &mut cli::command(), "tidegate", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// Serves until a signal ends the process.
fn bench_upstream(args: &[String]) -> Result<(), Failure> {
    let upstream = tidegate_load::cli::start_upstream(args).map_err(load_failure)?;
    output::line(format!("{{\"address\":\"{}\"}}", upstream.address()))?;
    upstream.wait().map_err(load_failure)
}

fn load_failure(error: LoadError) -> Failure {
    let failure = match error {
        LoadError::Config { .. } | LoadError::Argument { .. } => Failure::usage(&error),
        _ => Failure::new(&error),
    };
    failure.because(error)
}

fn bench(outcome: Result<Outcome, LoadError>) -> Result<(), Failure> {
    let outcome = outcome.map_err(load_failure)?;
    output::line(&outcome.json)?;
    if outcome.is_valid {
        return Ok(());
    }
    Err(Failure::new("the run does not count").help("its report says why under `invalid`"))
}
