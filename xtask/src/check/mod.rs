//! `cargo xtask check`: the gate. Everything of the style that a program can test.

mod arrows;
mod circles;
mod external;
mod references;
mod text;

use std::process::Command;
use std::time::Duration;

use miette::Result;

use crate::peers::{self, cargo};
use crate::places::Places;
use crate::steps::{self, Steps};
use crate::{setup, source};

/// A function may be longer for a good reason, but none grows past this unseen.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;
const LIMIT: Duration = Duration::from_mins(40);

/// Runs all of it.
pub(crate) fn run(places: &Places) -> Result<()> {
    setup::ensure(places, setup::CHECK)?;
    let mut steps = Steps::new(places);
    // The quick ones first: most mistakes end the wait early.
    steps.command(
        "format",
        cargo(places).args(["fmt", "--all", "--check", "--", "--color=never"]),
        LIMIT,
        steps::quiet,
    );
    steps.step("rules on sources", || text::check(places));
    steps.step("references in documents", || references::check(places));
    steps.step("ratchet", || ratchet(places));
    steps.step("arrows between rooms", || arrows::check(places));
    steps.step("circles of imports", || circles::check(places));
    steps.step("typos", || external::typos(places));
    rooms_alone(places, &mut steps);
    let mut clippy = cargo(places);
    clippy.args(["clippy", "--workspace", "--all-targets", "--locked", "--keep-going", "--", "-D", "warnings"]);
    steps.command("lints", &mut clippy, LIMIT, steps::quiet);
    for package in ["tidegate-runtime", "tidegate"] {
        let mut etcd = cargo(places);
        etcd.args(["clippy", "--package", package, "--features", "etcd", "--all-targets", "--locked", "--"]);
        steps.command(&format!("lints of {package} with etcd"), etcd.args(["-D", "warnings"]), LIMIT, steps::quiet);
    }
    lints_of_shaper(places, &mut steps);
    steps.command("documentation", &mut documentation(places), LIMIT, steps::quiet);
    steps.step("licences, bans, sources", || external::deny(places));
    steps.close()
}

/// The features with programs in the kernel, which need packages of their own.
fn lints_of_shaper(places: &Places, steps: &mut Steps) {
    let set_up = || setup::ensure(places, setup::SHAPER_BUILD).map(|()| String::new());
    if !steps.step("packages of the shaper", set_up) {
        return;
    }
    for (package, feature) in [("tidegate-shaper", "bpf"), ("tidegate", "shaper")] {
        let mut lints = cargo(places);
        lints.args(["clippy", "--package", package, "--features", feature, "--all-targets", "--locked", "--"]);
        steps.command(
            &format!("lints of {package} with {feature}"),
            lints.args(["-D", "warnings"]),
            LIMIT,
            steps::quiet,
        );
    }
}

/// A workspace build joins features, so each machine is also compiled by itself.
fn rooms_alone(places: &Places, steps: &mut Steps) {
    for room in [
        "tidegate-core",
        "tidegate-wire",
        "tidegate-sim",
        "tidegate-lab",
        "tidegate-broker",
        "tidegate-rpc",
        "tidegate-proxy",
        "tidegate-control",
        "tidegate-shaper",
    ] {
        let mut command = cargo(places);
        command.args(["check", "--locked", "--no-default-features", "--package", room]);
        steps.command(&format!("{room} alone"), &mut command, LIMIT, steps::quiet);
    }
}

fn documentation(places: &Places) -> Command {
    let mut command = cargo(places);
    command.args(["doc", "--workspace", "--no-deps", "--locked", "--keep-going"]).env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// No function passes [`FUNCTION_LINES_MAX`] that was below it before.
fn ratchet(places: &Places) -> Result<String> {
    let Some(base) = base(places) else {
        return Ok("no earlier commit to compare with".to_owned());
    };
    let mut grown = Vec::new();
    for now in source::all(places)? {
        let long: Vec<_> = now.functions().into_iter().filter(|function| function.lines > FUNCTION_LINES_MAX).collect();
        if long.is_empty() {
            continue;
        }
        // A file that is new has no functions that could have grown.
        let Ok(before) = peers::git(places, &["show", &format!("{base}:{}", now.path.display())]) else { continue };
        let before = source::Source::new(now.path.clone(), before).functions();
        for function in long {
            let was = before.iter().filter(|old| old.name == function.name).map(|old| old.lines).max();
            if let Some(was) = was.filter(|was| *was <= FUNCTION_LINES_MAX) {
                let (path, line) = (now.path.display(), function.line);
                grown.push(format!("{path}:{line}: `{}` grew from {was} to {} lines", function.name, function.lines));
            }
        }
    }
    if !grown.is_empty() {
        miette::bail!("{}", grown.join("\n"));
    }
    Ok(format!("against {}", &base[..base.len().min(10)]))
}

/// Where this work began: the common ancestor with the remote's main, or the commit before the last one.
fn base(places: &Places) -> Option<String> {
    let head = peers::git(places, &["rev-parse", "HEAD"]).ok()?;
    let shared = peers::git(places, &["merge-base", "HEAD", "origin/main"]).ok().filter(|base| *base != head);
    shared.or_else(|| peers::git(places, &["rev-parse", "--verify", "--quiet", "HEAD~1"]).ok())
}
