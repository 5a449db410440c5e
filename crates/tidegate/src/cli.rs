//! The command line.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Args, Command, CommandFactory, Parser, Subcommand, ValueHint};
use tidegate_broker::config::{FLAGS, Takes};
use tidegate_broker::io::admin::Target;
use tidegate_core::Rate;

use crate::admin_client::{ReadToken, authority};
use crate::sim_neighbours::SimNeighboursArgs;
use crate::sim_placement::SimPlacementArgs;
use crate::sim_rpc::SimRpcArgs;
use crate::words::{ArrivalsWord, BurstText, DisciplineWord, ModeWord, UnitWord};

const ABOUT: &str =
    "A message broker for NSQ clients, overload control for RPC, and a reverse proxy that mutes noisy neighbours";
/// Shown by `tidegate` alone: where to begin, in the order in which one would.
const FIRST_SCREEN: &str = "\
First steps:
  tidegate demo                         one overload twice: without a limit and with one
  tidegate demo rpc                     one overload, five schemes of overload control
  tidegate demo neighbours              one noisy neighbour twice: without limits and with them
  tidegate demo srtm                    a limit on six brokers: split, placed, and lent
  tidegate up                           broker and console, for this machine alone
  tidegate proxy -c FILE                in front of your services: no tenant can hurt another
  tidegate broker -data-path=DIR        in the place of nsqd: its flags, files and ports
  tidegate limits set TOPIC 500/s 50    limits a topic of the running broker, live
  tidegate control -c FILE              places topics on the fewest brokers that keep their promise
  tidegate shaper -c FILE               limits the traffic of devices, with short queues behind the limits
  tidegate check tidegate.toml          finds what is wrong, and what to write instead

Exit codes: 0 done, 1 failed, 2 usage, 3 configuration invalid, 4 objective missed.";

/// `tidegate`.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about = ABOUT, after_help = FIRST_SCREEN, max_term_width = 110)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run broker, admin API and console on this machine
    Up(crate::up::UpArgs),
    /// Run a reverse proxy in which no tenant can hurt another
    Proxy(crate::proxy::ProxyArgs),
    /// Run the broker alone, with nsqd's flags, files and ports
    #[command(disable_help_flag = true)]
    Broker,
    /// Steer unmodified NSQ producers to the brokers that their topics are placed on
    Steer(crate::steer::SteerArgs),
    /// Shape the traffic of devices with short queues behind their limits
    Shaper(crate::shaper::ShaperArgs),
    /// Show the same overload without a limit and with one, side by side
    Demo(Demo),
    /// Check a configuration file without starting anything
    Check(Check),
    /// Read and change the limits of a running broker
    #[command(subcommand)]
    Limits(Limits),
    /// Move what a control store holds
    #[command(subcommand)]
    Store(crate::store_copy::Store),
    /// Show the topics of a running broker, and the tenants of a running proxy
    Status(Status),
    /// Place topics on brokers, divide their limits, and keep both fitted
    Control(crate::control::ControlArgs),
    /// Find the brokers for a topic anew, or say what a new plan would be
    Place(crate::place::PlaceArgs),
    /// Say where a placed topic is, or what a running proxy would do with a request, and why
    Explain(crate::explain::ExplainArgs),
    /// Derive a limit from a recorded trace of arrivals
    Profile(Profile),
    /// Compute exactly how long messages wait for tokens
    #[command(subcommand)]
    Theory(Theory),
    /// Simulate it in virtual time, with the code that runs in production
    #[command(subcommand)]
    Sim(Sim),
    /// Run the experiments behind the book's figures
    #[command(subcommand)]
    Lab(Lab),
    /// Abuse a proxy on this machine as attackers do, and see what another tenant notices
    Attack(crate::attack::Attack),
    /// Measure a running server with open-loop load
    #[command(subcommand, hide = true)]
    Bench(Bench),
    /// Run a server of short calls that stays fast when it is asked for more than it can do
    #[command(subcommand)]
    Rpc(Rpc),
    /// Write a completion script for a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Demo {
    #[command(subcommand)]
    pub(crate) of: Option<DemoOf>,
    #[command(flatten)]
    pub(crate) showing: Showing,
}

/// What else there is to see, beside messages.
#[derive(Debug, Subcommand)]
pub(crate) enum DemoOf {
    /// One overload of a server, with five schemes of overload control side by side
    Rpc(Showing),
    /// One noisy neighbour in front of two proxies, without limits and with them
    Neighbours(Showing),
    /// A limit split over six brokers, then the topic placed on the fewest that keep its promise
    Srtm(Srtm),
    /// A limit of 1 Gbit/s between two namespaces, with long queues and with short ones; needs root
    Shaper(ShaperDemo),
}

/// `tidegate demo srtm`: on the terminal, in words.
#[derive(Debug, Args)]
pub(crate) struct Srtm {
    /// How many seconds of each act are measured
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(3..=50))]
    pub(crate) seconds: u64,
    /// Also serve a console with the placement, from the second act on and until Ctrl-C
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) console: Option<String>,
    /// Print JSON, at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tidegate demo shaper`: a page while it runs, and a table at its end.
#[derive(Debug, Args)]
pub(crate) struct ShaperDemo {
    /// Where the page is served
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
    pub(crate) address: String,
    /// Without a page
    #[arg(long)]
    pub(crate) headless: bool,
    /// How many seconds of each act are measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=200))]
    pub(crate) seconds: u64,
    /// Print JSON, at the end
    #[arg(long, requires = "headless")]
    pub(crate) json: bool,
}

/// How a demo is shown: as a page with a slider, or by script.
#[derive(Debug, Args)]
pub(crate) struct Showing {
    /// Where the page is served
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7070")]
    pub(crate) address: String,
    /// Without a page: an overload by script, then a table, then exit code 0 or 4
    #[arg(long)]
    pub(crate) headless: bool,
    /// How many seconds the overload of --headless lasts; `demo rpc` plays them as fast as it can
    #[arg(long, value_name = "N", default_value_t = 10, requires = "headless", value_parser = clap::value_parser!(u64).range(3..=600))]
    pub(crate) seconds: u64,
    /// With --headless: print JSON instead of the table; `demo rpc` prints a line for each second
    #[arg(long, requires = "headless")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The file, as for `tidegate up -c` and `tidegate proxy -c`
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the running broker is.
#[derive(Debug, Args)]
pub(crate) struct Running {
    /// The broker's admin API
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4153", value_parser = authority)]
    pub(crate) admin: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Only topics and tenants whose name starts so
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// The broker's admin API; without either address 127.0.0.1:4153
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = authority)]
    pub(crate) admin: Option<String>,
    /// The proxy's admin API; without either address 127.0.0.1:4154
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = authority)]
    pub(crate) proxy: Option<String>,
    #[command(flatten)]
    pub(crate) token: ReadToken,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Limits {
    /// List all limits
    List {
        #[command(flatten)]
        reading: Reading,
    },
    /// Put a limit in force, at once and for good
    Set(SetLimit),
    /// Remove a limit
    Remove {
        /// `topic` or `topic/channel`
        target: Target,
        #[command(flatten)]
        writing: Writing,
    },
    /// Let what still waits in a topic's line go at once, after its limit was removed or set to shadow
    Release {
        /// The topic
        topic: Target,
        #[command(flatten)]
        writing: Writing,
    },
    /// List the latest changes, newest first
    History {
        #[command(flatten)]
        reading: Reading,
    },
    /// Take the newest change back; again for the one before it, up to a hundred
    Undo {
        /// `topic` or `topic/channel`: take back the newest change of this limit
        target: Option<Target>,
        #[command(flatten)]
        writing: Writing,
    },
    /// Make the change again that was taken back last
    Redo {
        /// `topic` or `topic/channel`: the last one of this limit
        target: Option<Target>,
        #[command(flatten)]
        writing: Writing,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SetLimit {
    /// `topic` or `topic/channel`
    pub(crate) target: Target,
    /// Long-run rate, such as `500/s`, `11k/s` or `90/min`
    pub(crate) rate: Rate,
    /// How many may come at once, such as `50`; with --unit bytes also `64KiB`
    pub(crate) burst: BurstText,
    /// What one token buys
    #[arg(long, value_enum, default_value = "messages")]
    pub(crate) unit: UnitWord,
    /// What happens to a message that finds no token
    #[arg(long, value_enum, default_value = "wait")]
    pub(crate) discipline: DisciplineWord,
    /// Whether it acts, or only counts what it would have done
    #[arg(long, value_enum, default_value = "enforce")]
    pub(crate) mode: ModeWord,
    #[command(flatten)]
    pub(crate) writing: Writing,
}

/// Where the running broker is, and what lets us read from another machine.
#[derive(Debug, Args)]
pub(crate) struct Reading {
    #[command(flatten)]
    pub(crate) running: Running,
    #[command(flatten)]
    pub(crate) token: ReadToken,
}

/// Where the running broker is, and what lets us change it.
#[derive(Debug, Args)]
pub(crate) struct Writing {
    #[command(flatten)]
    pub(crate) running: Running,
    /// The file with the broker's token; `tidegate up` made it
    #[arg(long, value_name = "FILE", default_value = "tidegate-data/admin.token", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: PathBuf,
}

/// Traces come from a running broker: `POST /api/v1/record/TOPIC` of its admin API writes TOPIC.trace into its data folder.
#[derive(Debug, Args)]
#[command(after_help = "A running broker records a trace of a topic into its data folder:\n  \
    curl -X POST -H \"Authorization: Bearer $(cat tidegate-data/admin.token)\" \\\n    \
    'http://127.0.0.1:4153/api/v1/record/orders?seconds=60'")]
pub(crate) struct Profile {
    /// The trace
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) trace: PathBuf,
    /// Rate of the limit over the mean rate of the trace
    #[arg(long, default_value_t = 1.1)]
    pub(crate) margin: f64,
    /// Share of the messages that the burst lets pass without waiting
    #[arg(long, default_value_t = 0.99)]
    pub(crate) undelayed: f64,
    /// What one token is to buy
    #[arg(long, value_enum, default_value = "messages")]
    pub(crate) unit: UnitWord,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Theory {
    /// A token bucket: Poisson arrivals (M/D/1), or a list of arrivals
    Bucket(BucketArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// A token bucket, whatever arrives
    Bucket(SimBucketArgs),
    /// Schemes of overload control for RPC: one server, its clients, any load
    Rpc(SimRpcArgs),
    /// Limiters for noisy neighbours: one machine, its tenants, any trace of what they ask for
    Neighbours(SimNeighboursArgs),
    /// A topic placed on brokers: which publishers go where, how long it takes, and what its p99 is then
    Placement(SimPlacementArgs),
}

/// Which message goes to which part of a split bucket.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum AssignmentWord {
    /// Each batch to one part at random
    Batch,
    /// Each message to a part at random
    Message,
    /// In turn
    Even,
}

#[derive(Debug, Args)]
pub(crate) struct BucketArgs {
    /// How messages arrive
    #[arg(long, value_enum, default_value = "poisson", conflicts_with = "list")]
    pub(crate) arrivals: ArrivalsWord,
    /// Messages that arrive, such as `10k/s`
    #[arg(long, value_name = "RATE", conflicts_with = "list")]
    pub(crate) offered: Option<Rate>,
    /// How many publishers, of periodic arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) publishers: u32,
    /// Exact times of arrival instead, in seconds, from a file or `-`; each message's delay is shown
    #[arg(long, value_name = "FILE")]
    pub(crate) list: Option<PathBuf>,
    /// Messages that arrive at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: u32,
    /// Tokens of the bucket, such as `11k/s`
    #[arg(short, long)]
    pub(crate) rate: Rate,
    /// Depth of the bucket
    #[arg(short, long)]
    pub(crate) burst: u64,
    /// Parts that the bucket is split into
    #[arg(short = 'k', long, value_name = "K", default_value_t = 1)]
    pub(crate) split: u32,
    /// Unequal parts, in proportion to these, such as `3,1`
    #[arg(long, value_delimiter = ',', conflicts_with = "split")]
    pub(crate) weights: Option<Vec<u64>>,
    /// Which message goes to which part
    #[arg(long, value_enum, default_value = "batch")]
    pub(crate) assign: AssignmentWord,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SimBucketArgs {
    #[command(flatten)]
    pub(crate) bucket: BucketArgs,
    /// Messages to simulate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) messages: u64,
    /// Messages before those, which are not counted
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) warm_up: u64,
    /// Same seed, same answer
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    /// Run an experiment; exit code 4 if it does not show what it should
    Run(LabRun),
    /// List the experiments of a folder
    List(LabList),
}

#[derive(Debug, Args)]
pub(crate) struct LabRun {
    /// The experiment, such as `lab/fig6a.toml`
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Only a part of it: the same shapes, less sharp
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also write table, JSON and figure into this folder
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabList {
    /// The folder
    #[arg(default_value = "lab", value_hint = ValueHint::DirPath)]
    pub(crate) folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// `run KEY=VALUE..` publishes and consumes, `idle KEY=VALUE..` holds connections open; prints JSON
    Nsq {
        /// What to do, and the keys that differ from the defaults
        #[arg(trailing_var_arg = true, required = true)]
        args: Vec<String>,
    },
    /// Find the messages per second that a broker takes within an objective: its `mcap` for control
    Mcap(crate::bench_mcap::McapArgs),
    /// `KEY=VALUE..` sends HTTP load, `idle KEY=VALUE..` holds connections open; prints JSON
    Http {
        /// The keys that differ from the defaults, such as `address=127.0.0.1:8080` or `sources=@FILE`
        #[arg(trailing_var_arg = true)]
        args: Vec<String>,
    },
    /// `KEY=VALUE..` serves a fixed answer behind a proxy, until it is told to stop; prints where as JSON
    Upstream {
        /// The keys that differ from the defaults, such as `body_bytes=1024`
        #[arg(trailing_var_arg = true)]
        args: Vec<String>,
    },
    /// `receive KEY=VALUE..` takes in TCP load, `send KEY=VALUE..` sends it, `burst KEY=VALUE..` in bursts; prints JSON
    Tcp {
        /// What to do, and the keys that differ from the defaults, such as `address=10.0.0.2:5201 flows=16 congestion=bbr`
        #[arg(trailing_var_arg = true, required = true)]
        args: Vec<String>,
    },
    /// `KEY=VALUE..` calls a tidegate-rpc server; prints JSON
    Rpc {
        /// The keys that differ from the defaults, such as `pace.open.rate_per_s=50000`
        #[arg(trailing_var_arg = true)]
        args: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rpc {
    /// Serve calls that compute, with one of the schemes of overload control
    Serve(crate::rpc::ServeArgs),
}

/// The command with everything that completions and help texts know, the broker's flags included.
pub(crate) fn command() -> Command {
    Cli::command().mut_subcommand("broker", broker_flags)
}

/// nsqd's flags in clap's terms. They are only shown: the broker reads its arguments itself, in Go's syntax.
fn broker_flags(broker: Command) -> Command {
    FLAGS.iter().fold(broker, |broker, flag| {
        let arg = Arg::new(flag.name).long(flag.name).help(flag.help);
        let arg = match flag.takes {
            Takes::Switch => arg.action(ArgAction::SetTrue),
            Takes::Path => arg.value_hint(ValueHint::AnyPath).value_name("path"),
            Takes::Choice(words) | Takes::OptionalChoice(words) => {
                arg.value_parser(clap::builder::PossibleValuesParser::new(words.iter().filter(|word| !word.is_empty())))
            }
            Takes::Integer => arg.value_name("number"),
            Takes::Numbers => arg.value_name("numbers"),
            Takes::Duration => arg.value_name("duration"),
            Takes::Text => arg.value_name("text"),
        };
        broker.arg(arg)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn completions_know_the_brokers_flags() {
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut command(), "tidegate", &mut script);
        let script = String::from_utf8(script).unwrap();
        for word in ["--mem-queue-size", "--tls-client-auth-policy", "completions", "--headless"] {
            assert!(script.contains(word), "{word}");
        }
    }
}
