//! The book says what the program does: its tables are those of the program, and its examples work.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tidegate_broker::config::{FLAGS, Flag, Takes};

const BEGIN: &str = "<!-- options: begin -->\n";
const END: &str = "<!-- options: end -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// README and every page of the book, by their paths.
fn documents() -> Vec<(PathBuf, String)> {
    let mut folders = vec![root().join("docs/src")];
    let mut files = vec![root().join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the book is there") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).expect("a page is text"))).collect()
}

/// The fenced blocks of `text` in `language`.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

fn tidegate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).current_dir(env!("CARGO_TARGET_TMPDIR")).env_clear().env("NO_COLOR", "1");
    command.output().expect("the binary starts")
}

fn table() -> String {
    let mut table = "| flag | key | takes | default | what |\n|---|---|---|---|---|\n".to_owned();
    for flag in FLAGS {
        let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
        let more = if flag.repeatable { " May be repeated." } else { "" };
        let Flag { name, key, default, help, .. } = flag;
        let row = format!("| `-{name}` | {} | {} | {} | {help}{more} |", code(key), takes(flag), code(default));
        writeln!(table, "{row}").expect("writing to a string does not fail");
    }
    table
}

fn takes(flag: &Flag) -> String {
    match flag.takes {
        Takes::Switch => "a switch".to_owned(),
        Takes::Text => "text".to_owned(),
        Takes::Path => "a path".to_owned(),
        Takes::Integer => "a whole number".to_owned(),
        Takes::Numbers => "numbers".to_owned(),
        Takes::Duration => "a duration".to_owned(),
        Takes::Choice(words) | Takes::OptionalChoice(words) => {
            let words: Vec<_> = words.iter().filter(|word| !word.is_empty()).map(|word| format!("`{word}`")).collect();
            words.join(", ")
        }
    }
}

#[test]
fn the_table_of_options_is_the_programs() {
    const PAGE: &str = "docs/src/reference/options.md";
    let page = document(PAGE);
    let (before, rest) = page.split_once(BEGIN).expect("the table's beginning is marked");
    let (_, after) = rest.split_once(END).expect("the table's end is marked");
    let current = format!("{before}{BEGIN}{}{END}{after}", table());
    if page != current {
        let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("options.md");
        fs::write(&fresh, current).expect("the folder for tests is writable");
        panic!("{PAGE} is stale: cp {} {PAGE}", fresh.display());
    }
}

/// The words of `text` that `is_name` takes.
fn words(text: &str, is_name: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| is_name(word)).map(str::to_owned).collect()
}

#[test]
fn the_page_on_monitoring_lists_every_metric() {
    const OTHERS: [&str; 2] = ["tidegate_build_info", "tidegate_series_dropped_total"];
    let names = |text: &str| words(text, |word| word.starts_with("tidegate_broker_") || OTHERS.contains(&word));
    let source = names(&document("crates/tidegate-broker/src/io/admin/metrics.rs"));
    let page = names(&document("docs/src/how-to/monitor.md"));
    assert!(source.len() > 30, "the source's names were not found");
    assert_eq!(source, page);
}

#[test]
fn the_page_on_the_shaper_lists_every_metric_and_key() {
    let names = |text: &str| words(text, |word| word.starts_with("tidegate_shaper_"));
    let page = document("docs/src/reference/shaper.md");
    let source = names(&document("crates/tidegate-shaper/src/io/admin/metrics.rs"));
    assert!(source.len() > 10, "the source's names were not found");
    assert_eq!(source, names(&page));
    let section = document("crates/tidegate-shaper/src/config/section.rs");
    let fields = section.lines().filter_map(|line| line.trim().strip_prefix("pub(super) ")?.split_once(':'));
    let lists = ["device", "class", "matches"];
    let keys: Vec<_> = fields.map(|(key, _)| key).filter(|key| !lists.contains(key)).collect();
    assert!(keys.len() > 20, "the keys were not found");
    for key in keys {
        let (code, last) = (format!("`{key}`"), format!(" {key}`"));
        assert!(page.contains(&code) || page.contains(&last), "{key} is not in the page on the shaper");
    }
}

#[test]
fn every_configuration_in_a_document_is_valid() {
    let mut checked = 0;
    for (path, text) in documents() {
        for (number, block) in blocks(&text, "toml").into_iter().enumerate() {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("example.toml");
            fs::write(&file, block).expect("the folder for tests is writable");
            let output = tidegate(&["check", "example.toml"]);
            let said = String::from_utf8_lossy(&output.stderr);
            // Of a store in an etcd the default build says that it has none, and nothing else.
            let wants_etcd = block.contains("kind = \"etcd\"") && !cfg!(feature = "etcd");
            let is_valid =
                output.status.success() || (wants_etcd && said.contains("this tidegate is built without it"));
            assert!(is_valid, "{}, toml block {}:\n{said}", path.display(), number + 1);
            checked += 1;
        }
    }
    assert!(checked > 3, "the examples were not found");
}

#[test]
fn every_command_in_a_document_is_one() {
    let mut verbs = BTreeSet::new();
    for (_, text) in documents() {
        for line in blocks(&text, "sh").into_iter().flat_map(str::lines) {
            let mut words = line.split(' ').skip_while(|word| *word == "sudo");
            if words.next() == Some("tidegate") {
                let verb =
                    |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.contains(['/', '.']);
                verbs.insert(words.take_while(verb).take(2).map(str::to_owned).collect::<Vec<_>>());
            }
        }
    }
    assert!(verbs.len() > 3, "the commands were not found");
    for words in verbs {
        // The second word may be an argument: then the first is a verb without further verbs, and its help is shown.
        let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
        args.push("--help");
        let output = tidegate(&args);
        assert!(output.status.success(), "tidegate {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
}
