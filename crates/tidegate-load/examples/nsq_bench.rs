//! Measures an NSQ broker from outside; see `tidegate_load::cli` for the arguments.
//!
//! `cargo run --release -p tidegate-load --example nsq_bench -- run publishers=100 pace.open.rate_per_s=5000`

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    tidegate_load::cli::run_cli(&args)
}
