//! The programs that Tidegate is compared with: nsqd and its tools, go-nsq's tests, nsqjs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};

use crate::places::Places;
use crate::process;
use crate::steps;

/// Compiling Go's standard library and nsq from nothing takes about a minute and a half of one core.
const BUILD_LIMIT: Duration = Duration::from_mins(20);

/// Builds nsqd and its tools and go-nsq's test program. Go's own cache makes the second time quick.
pub(crate) fn build_go(places: &Places) -> Result<String> {
    let module = places.root.join("peers/nsq");
    let bin = places.peers();
    fs::create_dir_all(&bin).into_diagnostic()?;
    go(
        places,
        "peers nsq",
        &module,
        &["build", "-trimpath", "-o", &format!("{}/", bin.display()), "github.com/nsqio/nsq/apps/..."],
    )?;
    let producer = producer_go(places).display().to_string();
    go(places, "peers go-nsq producer", &module, &["build", "-trimpath", "-o", &producer, "./producer"])?;
    let test = go_nsq_tests(places);
    go(places, "peers go-nsq", &module, &["test", "-c", "-o", &test.display().to_string(), "github.com/nsqio/go-nsq"])?;
    Ok(bin.display().to_string())
}

/// go-nsq's own tests as one program.
pub(crate) fn go_nsq_tests(places: &Places) -> PathBuf {
    places.peers().join("go-nsq.test")
}

/// A producer of go-nsq that numbers what it publishes.
pub(crate) fn producer_go(places: &Places) -> PathBuf {
    places.peers().join("go-nsq-producer")
}

/// A producer of nsqjs that does the same, beside the library.
pub(crate) fn producer_nsqjs(places: &Places) -> PathBuf {
    nsqjs(places).join("producer.js")
}

/// A gRPC service behind failsafe-go's limiter; beside it stand the bars of RPC.
pub(crate) fn failsafe(places: &Places) -> PathBuf {
    places.peers().join("failsafe")
}

/// Builds [`failsafe`]. Its module asks for Go 1.24, which is newer than what nsqd needs.
pub(crate) fn build_failsafe(places: &Places) -> Result<()> {
    fs::create_dir_all(places.peers()).into_diagnostic()?;
    let (module, program) = (places.root.join("peers/failsafe"), failsafe(places));
    go(places, "peers failsafe", &module, &["build", "-trimpath", "-o", &program.display().to_string(), "."])
}

/// The conformance test of HTTP/2.
pub(crate) fn h2spec(places: &Places) -> PathBuf {
    places.peers().join("h2spec")
}

/// Builds [`h2spec`]. Its module asks for Go 1.24, as [`failsafe`]'s does.
pub(crate) fn build_h2spec(places: &Places) -> Result<()> {
    fs::create_dir_all(places.peers()).into_diagnostic()?;
    let (module, program) = (places.root.join("peers/h2spec"), h2spec(places));
    let package = "github.com/summerwind/h2spec/cmd/h2spec";
    go(places, "peers h2spec", &module, &["build", "-trimpath", "-o", &program.display().to_string(), package])
}

/// Runs Go in `module`.
pub(crate) fn go(places: &Places, name: &str, module: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("go");
    // Read-only: a change of go.mod or go.sum is a commit, not a side effect of a build.
    command
        .args(arguments)
        .current_dir(module)
        .env("GOFLAGS", "-mod=readonly")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0");
    let done = steps::run(places, name, &mut command, BUILD_LIMIT, steps::quiet)?;
    steps::finish(&command, &done)
}

/// Where nsqjs is installed.
pub(crate) fn nsqjs(places: &Places) -> PathBuf {
    places.target.join("peers/nsqjs")
}

/// Installs nsqjs and what its own suite needs beside the Go programs, not in the source tree.
pub(crate) fn install_nsqjs(places: &Places) -> Result<String> {
    let (from, to) = (places.root.join("peers/nsqjs"), nsqjs(places));
    fs::create_dir_all(&to).into_diagnostic()?;
    for file in ["package.json", "package-lock.json", ".npmrc", "producer.js"] {
        fs::copy(from.join(file), to.join(file)).into_diagnostic().wrap_err_with(|| format!("cannot copy {file}"))?;
    }
    npm_ci(places, "peers nsqjs", &to)?;
    Ok(to.display().to_string())
}

/// Runs `npm ci` when what is installed is not what the lock file says.
pub(crate) fn npm_ci(places: &Places, name: &str, folder: &Path) -> Result<()> {
    let lock = fs::read(folder.join("package-lock.json"))
        .into_diagnostic()
        .wrap_err_with(|| format!("{}: no lock file", folder.display()))?;
    let stamp = folder.join("node_modules/.installed-lock.json");
    if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    let mut command = Command::new("npm");
    command.args(["ci", "--no-fund", "--no-audit", "--no-update-notifier"]).current_dir(folder);
    let done = steps::run(places, name, &mut command, Duration::from_mins(10), steps::quiet)?;
    steps::finish(&command, &done)?;
    fs::write(&stamp, lock).into_diagnostic()
}

/// Builds the release binary, with the console's pages inside.
pub(crate) fn build_tidegate(places: &Places) -> Result<String> {
    let mut command = cargo(places);
    command.args(["build", "--release", "--locked", "--package", "tidegate"]);
    let done = steps::run(places, "build tidegate", &mut command, Duration::from_mins(40), steps::quiet)?;
    steps::finish(&command, &done)?;
    Ok(places.tidegate().display().to_string())
}

/// Builds the release binary with a feature, beside the usual one.
pub(crate) fn build_tidegate_with(places: &Places, feature: &str) -> Result<PathBuf> {
    let mut command = cargo(places);
    command.args(["build", "--release", "--locked", "--package", "tidegate", "--features", feature]);
    let done = steps::run(
        places,
        &format!("build tidegate with {feature}"),
        &mut command,
        Duration::from_mins(40),
        steps::quiet,
    )?;
    steps::finish(&command, &done)?;
    let binary = places.tidegate_with(feature);
    fs::copy(places.tidegate(), &binary).into_diagnostic()?;
    // The usual one is compiled already, and is only put back.
    build_tidegate(places)?;
    Ok(binary)
}

/// Cargo, in the workspace's root.
pub(crate) fn cargo(places: &Places) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Its output goes to logs.
    command.current_dir(&places.root).env("CARGO_TERM_COLOR", "never");
    for variable in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        // Those are xtask's own; build scripts and test programs get theirs from this Cargo.
        command.env_remove(variable);
    }
    command
}

/// What git says, trimmed; used for the commit in reports and for what is checked in.
pub(crate) fn git(places: &Places, arguments: &[&str]) -> Result<String> {
    process::output(Command::new("git").args(arguments).current_dir(&places.root))
        .map(|text| text.trim_end().to_owned())
}
