//! `cargo xtask demo`: set-up, build, and the binary's own demo.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use miette::{IntoDiagnostic, Result};

use crate::places::Places;
use crate::steps::Steps;
use crate::{peers, setup};

/// Builds the release binary and becomes it; `arguments` are the demo's.
pub(crate) fn run(places: &Places, arguments: &[&str]) -> Result<()> {
    setup::ensure(places, setup::DEMO)?;
    let mut steps = Steps::new(places);
    println!("building; the first time takes some minutes");
    if !steps.step("build tidegate", || peers::build_tidegate(places)) {
        return steps.close();
    }
    // The demo takes over this process, so that Ctrl-C and its exit code are its own.
    Err(Command::new(places.tidegate()).arg("demo").args(arguments).exec()).into_diagnostic()
}
