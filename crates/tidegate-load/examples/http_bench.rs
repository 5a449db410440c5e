//! Measures an HTTP server from outside: `KEY=VALUE..`, `idle KEY=VALUE..` or, to be measured itself, `upstream KEY=VALUE..`.
//!
//! `cargo run --release -p tidegate-load --example http_bench -- address=127.0.0.1:8080 duration_ms=2000`

use std::io::Write;
use std::process::ExitCode;

use tidegate_load::{LoadError, cli};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), LoadError> {
    if let Some((_, settings)) = args.split_first().filter(|(first, _)| *first == "upstream") {
        let upstream = cli::start_upstream(settings)?;
        let _ = writeln!(std::io::stdout(), "{{\"address\":\"{}\"}}", upstream.address());
        return upstream.wait();
    }
    // Nobody is left to be told that standard output is closed.
    let _ = writeln!(std::io::stdout(), "{}", cli::execute_http(args)?.json);
    Ok(())
}
