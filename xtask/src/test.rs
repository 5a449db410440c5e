//! `cargo xtask test`: every test there is. What is missing for one is a failure that says what to install.

use std::process::Command;
use std::time::Duration;

use miette::{IntoDiagnostic, Result};

use crate::peers::cargo;
use crate::places::Places;
use crate::steps::{self, Steps};
use crate::suites::{self, Suite};
use crate::{clock, etcd, peers, sdk_go, setup};

/// Compiling everything from nothing takes minutes on two cores.
const BUILD_LIMIT: Duration = Duration::from_mins(40);
/// No test waits for anything real, so a suite that takes this long hangs.
const RUN_LIMIT: Duration = Duration::from_mins(15);

/// Sets up, builds and runs all of it.
pub(crate) fn run(places: &Places) -> Result<()> {
    setup::ensure(places, setup::TEST)?;
    let mut steps = Steps::new(places);
    rust(places, &mut steps);
    sdk_go::run(places, &mut steps);
    console(places, &mut steps);
    let built = steps.step("build tidegate, release", || peers::build_tidegate(places));
    compatibility(places, &mut steps);
    steps.step("browser", || {
        if built { browser(places) } else { miette::bail!("there is no binary to drive a browser at") }
    });
    steps.close()
}

/// Unit, behaviour, paper, property and simulation tests, examples in the documentation, interleavings.
fn rust(places: &Places, steps: &mut Steps) {
    let mut build = cargo(places);
    build.args(["test", "--workspace", "--locked", "--no-run"]);
    if steps.command("build the workspace's tests", &mut build, BUILD_LIMIT, steps::quiet) {
        let mut test = cargo(places);
        test.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
        steps.command("workspace tests", &mut test, RUN_LIMIT, test_lines());
    }
    with_etcd(places, steps);
    with_shaper(places, steps);
    let mut pure = cargo(places);
    pure.args(["check", "--locked", "--package", "tidegate-broker", "--no-default-features"]);
    steps.command("the broker's machine without its io", &mut pure, BUILD_LIMIT, steps::quiet);
    steps.step("interleavings (loom)", || loom(places));
    packages(places, steps);
}

/// What the feature `etcd` adds, against real servers. Without `etcd` its tests fail.
fn with_etcd(places: &Places, steps: &mut Steps) {
    let of = |package: &str, targets: &[&str], more: &str| {
        let mut test = cargo(places);
        test.args(["test", "--locked", "--features", "etcd", "--package", package, more]).args(targets);
        test
    };
    for (package, targets) in [
        ("tidegate-runtime", &["--lib", "--test", "etcd"][..]),
        ("tidegate", &["--bins", "--test", "shared_store"][..]),
    ] {
        let name = format!("{package} with etcd");
        let build = format!("build the tests of {name}");
        if steps.command(&build, &mut of(package, targets, "--no-run"), BUILD_LIMIT, steps::quiet) {
            steps.command(&name, &mut of(package, targets, "--no-fail-fast"), RUN_LIMIT, test_lines());
        }
    }
    // Those tests were built with the binary that they start, which nothing has replaced yet.
    etcd::run_short(places, steps, &places.target.join("debug/tidegate"));
}

/// What the features `bpf` and `shaper` add: programs in the kernel. Their packages are asked for here alone, since all else
/// is built without them.
fn with_shaper(places: &Places, steps: &mut Steps) {
    let set_up = || setup::ensure(places, setup::SHAPER_BUILD).map(|()| String::new());
    if !steps.step("packages of the shaper", set_up) {
        return;
    }
    if rustix::process::geteuid().is_root() {
        // Tests that miss one pass it over; the last step says so.
        let _ = setup::ensure(places, setup::SHAPER_TEST);
    }
    for (package, feature, targets) in [
        ("tidegate-shaper", "bpf", &["--lib", "--tests"][..]),
        ("tidegate", "shaper", &["--bins", "--test", "shaper", "--test", "demo_shaper"][..]),
    ] {
        let of = |more: &str| {
            let mut test = cargo(places);
            test.args(["test", "--locked", "--features", feature, "--package", package, more]).args(targets);
            test
        };
        let name = format!("{package} with {feature}");
        if steps.command(&format!("build the tests of {name}"), &mut of("--no-run"), BUILD_LIMIT, steps::quiet) {
            steps.command(&name, &mut of("--no-fail-fast"), RUN_LIMIT, test_lines());
        }
    }
    steps.step("the shaper in the kernel", || Ok(untried()));
}

/// What tests of the shaper pass over here without a word.
fn untried() -> String {
    let is_root = rustix::process::geteuid().is_root();
    let has_types = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    match (is_root, has_types) {
        (true, true) => {
            let missing = ["ethtool", "nft"].into_iter().filter(|tool| setup::find(tool).is_none());
            let without: Vec<_> = missing.map(|tool| format!("; not what needs `{tool}`")).collect();
            format!("tried in namespaces, with programs{}", without.concat())
        }
        (true, false) => "not tried with programs: this kernel does not tell its types (BTF)".to_owned(),
        (false, _) => "not tried, neither in namespaces nor with programs: that needs root".to_owned(),
    }
}

/// The RPC layers as their users get them: packed, unpacked, and built from that alone with their normal dependencies.
/// Those are there from the build before, so the registry is not asked.
fn packages(places: &Places, steps: &mut Steps) {
    let mut package = cargo(places);
    package.args(["package", "--allow-dirty", "--offline"]);
    for name in ["tidegate-core", "tidegate-wire", "tidegate-runtime", "tidegate-rpc"] {
        package.args(["--package", name]);
    }
    // Cargo believes that a package of a version never changes, and takes what it once built of ours for what it just
    // packed: unless the folder is another one.
    let folder = places.target.join(format!("packages-{}-{}", std::process::id(), clock::monotonic_ns()));
    package.env("CARGO_TARGET_DIR", &folder);
    steps.command("packages of the RPC layers", &mut package, BUILD_LIMIT, steps::quiet);
    // What is left of it is in nobody's way.
    let _ = std::fs::remove_dir_all(&folder);
}

/// All interleavings of the core's one lock-free type. Another set of flags, so another target folder.
fn loom(places: &Places) -> Result<String> {
    let mut command = cargo(places);
    command.args(["test", "--release", "--locked", "--package", "tidegate-core", "--test", "loom_shared"]);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", places.target.join("loom"));
    let done = steps::run(places, "loom", &mut command, BUILD_LIMIT, steps::quiet)?;
    steps::finish(&command, &done)?;
    let output = std::fs::read_to_string(&done.log).into_diagnostic()?;
    let passed: u32 = output.lines().filter_map(passed_in).sum();
    if passed == 0 {
        miette::bail!("no interleaving was tried: without `--cfg loom` those tests are empty");
    }
    Ok(format!("{passed} passed"))
}

/// The pages: types, then units. The bundle is built with the binary.
fn console(places: &Places, steps: &mut Steps) {
    let web = places.web();
    if steps.step("install the console's libraries", || peers::npm_ci(places, "npm ci", &web).map(|()| String::new())) {
        let mut test = Command::new("npm");
        test.args(["test"]).current_dir(&web);
        steps.command("console types and units", &mut test, RUN_LIMIT, steps::quiet);
    }
}

/// Other people's suites, on nsqd and on ours.
fn compatibility(places: &Places, steps: &mut Steps) {
    steps.step("build nsqd and its tools", || peers::build_go(places));
    steps.step("install nsqjs", || peers::install_nsqjs(places));
    for suite in Suite::ALL {
        steps.step(&format!("compatibility: {}", suite.name()), || suites::compare(places, suite, &places.tidegate()));
    }
}

/// The real console in a real browser.
fn browser(places: &Places) -> Result<String> {
    let chromium = setup::find("chromium").ok_or_else(|| miette::miette!("chromium is not in PATH"))?;
    let mut command = Command::new("npm");
    command.args(["run", "e2e"]).current_dir(places.web()).env("CHROMIUM", chromium).env("TIDEGATE", places.tidegate());
    let done = steps::run(places, "browser", &mut command, RUN_LIMIT, steps::quiet)?;
    steps::finish(&command, &done).map(|()| String::new())
}

/// One line for each test program: its name and its result.
fn test_lines() -> impl steps::Shown {
    let mut program = String::new();
    move |line: &str| {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests ")) {
            // `Running tests/x.rs (target/debug/deps/x-0123)`: the folder's hash helps nobody.
            rest.rsplit_once('-').map_or(rest, |(start, _)| start).clone_into(&mut program);
            return None;
        }
        line.strip_prefix("test result: ").filter(|result| !result.contains(" 0 passed; 0 failed")).map(|result| {
            let name = program.rsplit('/').next().unwrap_or(&program);
            format!("{name}: {result}")
        })
    }
}

/// The number of tests that a `test result:` line counts as passed.
fn passed_in(line: &str) -> Option<u32> {
    line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_shown_under_their_programs_name() {
        let mut shown = test_lines();
        assert_eq!(shown("     Running tests/flags.rs (target/debug/deps/flags-0123abc)"), None);
        let line = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert!(shown(line).unwrap().starts_with("flags: ok. 3 passed"));
        assert_eq!(shown("test result: ok. 0 passed; 0 failed; 0 ignored"), None, "an empty program is no news");
    }

    #[test]
    fn passed_tests_are_counted() {
        assert_eq!(passed_in("test result: ok. 12 passed; 0 failed"), Some(12));
        assert_eq!(passed_in("test result: FAILED. 12 passed; 1 failed"), None);
    }
}
