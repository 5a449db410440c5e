//! What documents name has to exist: files, modules, commands.

use std::path::{Path, PathBuf};

use miette::Result;

use crate::places::Places;
use crate::source;

/// Documents that speak of the present. The change log speaks of the past, but of things a user can still look up.
const DOCUMENTS: &[&str] = &["*.md"];
/// Commands of this program, for `cargo xtask NAME` in a document.
pub(crate) const COMMANDS: [&str; 8] = ["check", "demo", "measure", "metrics", "mutants", "peers", "suite", "test"];

/// Looks up every reference in every document.
pub(super) fn check(places: &Places) -> Result<String> {
    let documents = source::files(places, DOCUMENTS)?;
    let crates = Crates::read(places)?;
    let mut stale = Vec::new();
    let mut count = 0_usize;
    for document in &documents {
        let text = source::read(places, document)?;
        for (at, line) in text.lines().enumerate() {
            for reference in references(line) {
                count += 1;
                if let Some(reason) = crates.stale(&places.root, document, &reference) {
                    stale.push(format!("{}:{}: {reason}", document.display(), at + 1));
                }
            }
        }
    }
    if !stale.is_empty() {
        miette::bail!("{}", stale.join("\n"));
    }
    Ok(format!("{count} references in {} documents", documents.len()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reference {
    /// A file or folder, relative to the root.
    Path(String),
    /// The target of a link, relative to its document.
    Link(String),
    /// `tidegate_x::a::b`.
    Item(String),
    /// `cargo xtask NAME`.
    Command(String),
}

/// Everything a line names: in backticks or as a link.
fn references(line: &str) -> Vec<Reference> {
    let mut found = Vec::new();
    for span in line.split('`').skip(1).step_by(2) {
        if let Some(command) = span.strip_prefix("cargo xtask ") {
            found.extend(command.split(' ').next().map(|name| Reference::Command(name.to_owned())));
        } else if span.starts_with("tidegate_") && span.contains("::") {
            found.push(Reference::Item(span.to_owned()));
        } else {
            found.extend(span.split(' ').filter(|word| is_path(word)).map(|word| Reference::Path(word.to_owned())));
        }
    }
    for after in line.split("](").skip(1) {
        let target = after.split([')', '#', ' ']).next().unwrap_or_default();
        if !target.is_empty() && !target.contains("://") {
            found.push(Reference::Link(target.to_owned()));
        }
    }
    found
}

/// A path into the tree, without patterns or placeholders.
fn is_path(word: &str) -> bool {
    const TOP: [&str; 10] =
        [".ci/", "crates/", "docs/", "examples/", "fuzz/", "lab/", "peers/", "sdk/", "vectors/", "xtask/"];
    let plain = !word.contains(['*', '<', '{', '$', '…']) && !word.contains("..");
    // What programs leave there is not checked in.
    plain && TOP.iter().any(|top| word.starts_with(top)) && !word.starts_with("lab/results")
}

/// The sources of each crate, to look names up.
struct Crates {
    sources: Vec<source::Source>,
}

impl Crates {
    fn read(places: &Places) -> Result<Self> {
        Ok(Self { sources: source::all(places)? })
    }

    /// Why the reference leads nowhere; `None` when it leads somewhere.
    fn stale(&self, root: &Path, document: &Path, reference: &Reference) -> Option<String> {
        match reference {
            Reference::Path(path) => {
                let path = path.split(':').next().unwrap_or_default();
                (!root.join(path).exists()).then(|| format!("there is no {path}"))
            }
            Reference::Link(target) => {
                let folder = document.parent().map_or_else(|| root.to_owned(), |folder| root.join(folder));
                (!folder.join(target).exists()).then(|| format!("there is no {target}"))
            }
            Reference::Command(name) => {
                (!COMMANDS.contains(&name.as_str())).then(|| format!("there is no `cargo xtask {name}`"))
            }
            Reference::Item(item) => self.missing_item(item),
        }
    }

    fn missing_item(&self, item: &str) -> Option<String> {
        let mut names = item.split("::").map(|name| name.trim_matches(|c: char| !(c.is_alphanumeric() || c == '_')));
        let room = names.next().unwrap_or_default().replace('_', "-");
        let inside: Vec<_> =
            self.sources.iter().filter(|source| source.path.starts_with(PathBuf::from("crates").join(&room))).collect();
        if inside.is_empty() {
            return Some(format!("there is no crate {room}"));
        }
        let known = |name: &str| inside.iter().any(|source| source::words(&source.code).any(|(_, word)| word == name));
        names
            .find(|name| !name.is_empty() && !known(name))
            .map(|name| format!("{room} has no `{name}`, named in `{item}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_found_in_code_spans_and_links() {
        let line = "Run `cargo xtask test --x`; see `crates/a/src/lib.rs`, [b](docs/b.md#top), `tidegate_core::Rate`, [w](https://w).";
        let expected = [
            Reference::Command("test".into()),
            Reference::Path("crates/a/src/lib.rs".into()),
            Reference::Item("tidegate_core::Rate".into()),
            Reference::Link("docs/b.md".into()),
        ];
        assert_eq!(references(line), expected);
    }

    #[test]
    fn patterns_and_other_words_are_no_paths() {
        assert!(is_path("lab/fig6a.toml"));
        assert!(!is_path("crates/*/src") && !is_path("a/b") && !is_path("lab/results/x.json") && !is_path("docs/../x"));
    }

    #[test]
    fn an_item_that_is_gone_is_named() {
        let sources =
            vec![source::Source::new("crates/tidegate-core/src/lib.rs".into(), "pub struct Rate;".to_owned())];
        let crates = Crates { sources };
        assert_eq!(crates.missing_item("tidegate_core::Rate"), None);
        assert!(crates.missing_item("tidegate_core::Speed").is_some());
        assert!(crates.missing_item("tidegate_gone::Rate").is_some());
    }
}
