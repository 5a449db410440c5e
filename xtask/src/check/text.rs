//! Rules on single lines: no `unsafe`, no test that is ignored, no path of somebody's machine.

use std::path::Path;

use miette::{IntoDiagnostic, Result};

use crate::places::Places;
use crate::source::{self, Source};

/// Folders at a file system's root that are one machine's own. The name stands alone so that this file obeys too.
const OWN_FOLDERS: [&str; 4] = ["home", "root", "work", "Users"];

/// The files that may have unsafe code: each asks the kernel for something that no library does.
const UNSAFE: [&str; 2] = ["crates/tidegate-runtime/src/slice.rs", "crates/tidegate-shaper/src/io/bpf/attach.rs"];

/// Holds all files to the rules.
pub(super) fn check(places: &Places) -> Result<String> {
    let mut wrong = Vec::new();
    let sources = source::all(places)?;
    for source in &sources {
        in_source(source, &mut wrong);
    }
    let files = source::files(places, &["*"])?;
    for path in &files {
        // What is not text holds no words.
        if let Ok(text) = std::fs::read_to_string(places.root.join(path)) {
            in_text(path, &text, &mut wrong);
        }
    }
    manifests(places, &mut wrong)?;
    if !wrong.is_empty() {
        miette::bail!("{}", wrong.join("\n"));
    }
    Ok(format!("{} files, {} of Rust", files.len(), sources.len()))
}

fn in_source(source: &Source, wrong: &mut Vec<String>) {
    let path = source.path.display();
    for (at, line) in source.code.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        let loosens = !line.contains("forbid(");
        let is_unsafe = source::words(line).any(|(_, word)| word == "unsafe" || loosens && word == "unsafe_code");
        if is_unsafe && !UNSAFE.iter().any(|file| source.path == Path::new(file)) {
            wrong.push(format!("{path}:{at}: unsafe code"));
        }
        if line.contains("#[ignore") {
            wrong.push(format!("{path}:{at}: an ignored test; assert what holds now and say why"));
        }
        if line.contains("#[allow(") || line.contains("#![allow(") {
            wrong.push(format!("{path}:{at}: `allow`; use `expect` with a reason"));
        }
    }
    for (at, line) in source.text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        let comment = line.split_once("//").map_or("", |(_, comment)| comment);
        let open = source::words(comment).any(|(_, word)| matches!(word, "TODO" | "FIXME" | "XXX"));
        if open && !comment.contains('#') {
            wrong.push(format!("{path}:{at}: open work without an issue"));
        }
    }
}

fn in_text(path: &Path, text: &str, wrong: &mut Vec<String>) {
    let name = path.display();
    for (at, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        if let Some(folder) = own_folder(line) {
            wrong.push(format!("{name}:{at}: a path of one machine: /{folder}/"));
        }
    }
    // npm writes its registry's address for each package unless told not to; .npmrc beside it tells.
    if path.ends_with("package-lock.json") && text.contains("\"resolved\": \"http") {
        wrong.push(format!("{name}: addresses of a registry; set omit-lockfile-registry-resolved in .npmrc"));
    }
}

/// The first such folder that a line names at the beginning of a path.
fn own_folder(line: &str) -> Option<&'static str> {
    OWN_FOLDERS.into_iter().find(|folder| {
        line.match_indices(&format!("/{folder}/")).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            before.is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | ')' | '*')))
        })
    })
}

/// Every crate takes the workspace's lints, and those deny unsafe code. Where one file has some, they cannot forbid it.
fn manifests(places: &Places, wrong: &mut Vec<String>) -> Result<()> {
    let parse = |path: &Path| -> Result<toml::Table> { source::read(places, path)?.parse().into_diagnostic() };
    let root = parse(Path::new("Cargo.toml"))?;
    let forbidden = root
        .get("workspace")
        .and_then(|t| t.get("lints"))
        .and_then(|t| t.get("rust"))
        .and_then(|t| t.get("unsafe_code"));
    if forbidden.and_then(toml::Value::as_str) != Some("deny") {
        wrong.push("Cargo.toml: the workspace's lints must deny unsafe_code".to_owned());
    }
    for path in source::files(places, &["crates/*/Cargo.toml", "xtask/Cargo.toml"])? {
        let takes = parse(&path)?.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
        if takes != Some(true) {
            wrong.push(format!("{}: must take the workspace's lints", path.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong_in(text: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        in_source(&Source::new("crates/x/src/lib.rs".into(), text.to_owned()), &mut wrong);
        wrong
    }

    #[test]
    fn the_words_count_in_code_only() {
        assert_eq!(wrong_in("fn a() { unsafe { b() } }").len(), 1);
        assert_eq!(wrong_in("#![expect(unsafe_code)]").len(), 1);
        assert!(wrong_in("#![forbid(unsafe_code)]").is_empty());
        assert!(wrong_in("// unsafe\nlet a = \"#[ignore]\";").is_empty());
        assert_eq!(wrong_in("#[ignore = \"slow\"]\nfn a() {}").len(), 1);
        assert_eq!(wrong_in("#[allow(dead_code)]\nfn a() {}").len(), 1);
    }

    #[test]
    fn open_work_names_its_issue() {
        let mark = ["TO", "DO"].concat();
        assert_eq!(wrong_in(&format!("// {mark}: later")).len(), 1);
        assert!(wrong_in(&format!("// {mark} (#7): later")).is_empty());
    }

    #[test]
    fn paths_of_a_machine_are_found_and_others_are_not() {
        let path = |folder: &str| format!("see /{folder}/x");
        assert_eq!(own_folder(&path("home")), Some("home"));
        assert_eq!(own_folder(&format!("\"/{}/main\"", "work")), Some("work"));
        assert_eq!(own_folder("crates/work/src"), None);
        assert_eq!(own_folder(&path("srv")), None);
    }
}
