//! Bundles `web/` into `web/dist` when the bundle is missing or older than its sources.
//!
//! The bundle is not committed: it is made here with Node and npm, which Debian ships. Where they are missing the build
//! stops and says which packages to install. Type checks and tests are no part of this: see `npm test` in `web/`.

use std::fs::{self, File, FileTimes};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::time::SystemTime;

/// What the bundle is made of, relative to `web/`. The page of RPC servers is the one that every service with the layer has:
/// its source is shared, and no crate is linked.
const SOURCES: [&str; 5] =
    ["src", "build.mjs", "package.json", "package-lock.json", "../../tidegate-rpc/src/telemetry/page"];
/// What the binary embeds, relative to `web/dist`.
const BUNDLE: [&str; 4] = ["index.html", "app.js", "app.css", "favicon.svg"];

fn main() {
    let web = Path::new("web");
    for source in SOURCES {
        println!("cargo::rerun-if-changed=web/{source}");
    }
    for file in BUNDLE {
        println!("cargo::rerun-if-changed=web/dist/{file}");
    }
    if let Err(reason) = bundle(web) {
        println!("cargo::error=the console's pages cannot be built: {reason}");
        exit(1);
    }
}

fn bundle(web: &Path) -> Result<(), String> {
    // Several builds may share this checkout, each with a target directory of its own; npm does not expect company.
    let lock = File::open(web.join("package.json")).map_err(|error| format!("web/package.json: {error}"))?;
    lock.lock().map_err(|error| format!("web/package.json cannot be locked: {error}"))?;

    let mut sources = SystemTime::UNIX_EPOCH;
    for source in SOURCES {
        let changed = newest_change(&web.join(source)).map_err(|error| format!("web/{source}: {error}"))?;
        sources = sources.max(changed);
    }
    let oldest = BUNDLE.iter().map(|file| modified(&web.join("dist").join(file))).min();
    if oldest.flatten().is_some_and(|oldest| oldest >= sources) {
        return Ok(());
    }
    // npm writes this file last, so an install that was cut short is repeated.
    let installed = modified(&web.join("node_modules/.package-lock.json"));
    if installed < modified(&web.join("package-lock.json")) {
        // `--omit=dev` leaves the type checker out; no dependency may run code of its own while it is installed.
        run(web, "npm", &["ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"])?;
    }
    run(web, "node", &["build.mjs"])?;
    // Cargo would run this script again because the bundle is newer than its start; as old as its sources is enough.
    for file in BUNDLE {
        File::options()
            .append(true)
            .open(web.join("dist").join(file))
            .and_then(|file| file.set_times(FileTimes::new().set_modified(sources)))
            .map_err(|error| format!("web/dist/{file}: {error}"))?;
    }
    Ok(())
}

fn run(web: &Path, program: &str, arguments: &[&str]) -> Result<(), String> {
    let command = format!("{program} {}", arguments.join(" "));
    match Command::new(program).args(arguments).current_dir(web).output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr).trim().replace('\n', " | ");
            Err(format!("`{command}` in crates/tidegate-console/web: {}: {said}", done.status))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Err(format!(
            "`{program}` is not installed. Debian's packages have it: `apt-get install nodejs npm` (Node 18 or later)"
        )),
        Err(error) => Err(format!("`{command}`: {error}")),
    }
}

/// When the file, or the newest file below the directory, was last changed.
fn newest_change(path: &Path) -> io::Result<SystemTime> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() {
        return metadata.modified();
    }
    let entries: Vec<PathBuf> = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    // The directory's own time counts: it moves when a source is deleted.
    entries.iter().try_fold(metadata.modified()?, |newest, path| Ok(newest.max(newest_change(path)?)))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}
