//! A tonic service that computes, with and without overload control, and an open-loop load for it.
//!
//! ```text
//! tonic_work serve --work-us 1000 --control tidegate      # prints its addresses and its rounds of work
//! tonic_work load --addr 127.0.0.1:PORT --rate 2000 --seconds 5 --control tidegate --slo-us 11000
//! tonic_work load --addr 127.0.0.1:BARE_PORT --closed 4 --seconds 1 --slo-us 11000   # capacity
//! tonic_work serve --work-us 1000 --shape wait:20 --stock                             # handlers that wait
//! tonic_work pair --addr 127.0.0.1:PORT --bare 127.0.0.1:BARE_PORT --rate 450 --slo-us 75000
//! ```
//!
//! `serve` listens twice: once with the chosen control, once bare, so that capacity can be measured in the same process.
//! Each subcommand prints one line of JSON. Give each its own core (`taskset`).

mod echo;
mod load;
mod pair;
mod serve;
mod work;

use clap::Parser;

#[derive(Parser)]
#[command(about = "A tonic service that computes, and an open-loop load for it")]
enum Command {
    /// Serve until standard input ends.
    Serve(serve::Options),
    /// Load a server and print what came of it.
    Load(load::Options),
    /// Load a server with the layer and the same without it by turns, and print how they compare.
    Pair(pair::Options),
}

fn main() -> Result<(), tonic::transport::Error> {
    match Command::parse() {
        Command::Serve(options) => serve::run(&options),
        Command::Load(options) => load::run(options),
        Command::Pair(options) => pair::run(&options),
    }
}
