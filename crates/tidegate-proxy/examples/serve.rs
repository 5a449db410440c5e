//! Runs a proxy from a configuration file until its standard input ends.
//!
//! `cargo run --release -p tidegate-proxy --example serve -- tidegate.toml`

use std::error::Error;
use std::io::{Read, Write};

use tidegate_proxy::config::Config;
use tidegate_proxy::io::Proxy;
use tidegate_runtime::config::Document;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("the path of a configuration is missing")?;
    let text = std::fs::read_to_string(&path)?;
    let processors = std::thread::available_parallelism()?.get();
    let files = tidegate_runtime::process::raise_open_files_limit();
    let proxy = Proxy::start(Config::from_document(&Document::new(&*path, &*text), processors)?)?;
    writeln!(std::io::stdout(), "{:?}, and {files} files may be open", proxy.addresses())?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let clean = proxy.drain();
    writeln!(std::io::stdout(), "{}", if clean { "all requests ended" } else { "some requests were cut off" })?;
    Ok(())
}
