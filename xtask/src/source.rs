//! Rust source as far as counting needs it: what is code, comment or test, and how long each function is.
//!
//! A scanner of some hundred lines instead of a parser: this crate is compiled before everything else.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, WrapErr as _};

use crate::peers;
use crate::places::Places;

/// One function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name, without its type.
    pub(crate) name: String,
    /// The line of its `fn`, from 1.
    pub(crate) line: usize,
    /// Lines from there to its closing brace.
    pub(crate) lines: usize,
    /// It is inside `#[cfg(test)]` or a file of tests.
    pub(crate) is_test: bool,
}

/// A file of Rust.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Relative to the root.
    pub(crate) path: PathBuf,
    /// As it is on disk.
    pub(crate) text: String,
    /// The same with everything blank that is comment, string or character; offsets and lines are kept.
    pub(crate) code: String,
    /// For each line: it belongs to tests.
    pub(crate) test_lines: Vec<bool>,
}

impl Source {
    /// Scans `text`.
    pub(crate) fn new(path: PathBuf, text: String) -> Self {
        let code = blank(&text);
        let test_lines = if is_test_file(&path) { vec![true; text.lines().count()] } else { test_lines(&code) };
        Self { path, text, code, test_lines }
    }

    /// Its crate or top folder: `crates/NAME`, `xtask`, `fuzz`.
    pub(crate) fn room(&self) -> String {
        let mut parts = self.path.components().map(|part| part.as_os_str().to_string_lossy());
        let first = parts.next().unwrap_or_default().into_owned();
        if first == "crates" { parts.next().unwrap_or_default().into_owned() } else { first }
    }

    /// Modules for tests alone that have files of their own, as paths without `.rs`.
    fn test_modules(&self) -> Vec<PathBuf> {
        let stem = self.path.with_extension("");
        let is_root = stem.file_name().is_some_and(|name| name == "mod" || name == "lib" || name == "main");
        let folder = if is_root { stem.parent().map(Path::to_owned).unwrap_or_default() } else { stem };
        let declared = test_attributes(&self.code).filter_map(|(_, end)| {
            let after = &self.code[end..];
            let (item, _) = after.split_once([';', '{'])?;
            let name = item.trim().rsplit_once("mod ").map(|(_, name)| name.trim())?;
            after[item.len()..].starts_with(';').then(|| folder.join(name))
        });
        declared.collect()
    }

    /// The lines of code outside tests, numbered from 1.
    pub(crate) fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().filter(|(at, _)| !self.test_lines[*at]).map(|(at, line)| (at + 1, line))
    }

    /// All functions that have a body, in order.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let mut found = Vec::new();
        for (at, word) in words(&self.code) {
            if word != "fn" {
                continue;
            }
            let after = &self.code[at + 2..];
            let name: String = after.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // A declaration in a trait ends with a semicolon; an array type in the signature may hold one too.
            let Some(open) = body_start(after).filter(|_| !name.is_empty()) else { continue };
            let Some(length) = block_length(&after[open..]) else { continue };
            let line = self.code[..at].matches('\n').count() + 1;
            let lines = after[..open + length].matches('\n').count() + 1;
            let is_test = self.test_lines.get(line - 1).copied().unwrap_or(false);
            found.push(Function { name, line, lines, is_test });
        }
        found
    }
}

/// Every Rust file that is checked in or about to be.
pub(crate) fn all(places: &Places) -> Result<Vec<Source>> {
    let sources = files(places, &["*.rs"])?.into_iter().map(|path| {
        let text = read(places, &path)?;
        Ok(Source::new(path, text))
    });
    let mut sources = sources.collect::<Result<Vec<Source>>>()?;
    let tests: Vec<PathBuf> = sources.iter().flat_map(Source::test_modules).collect();
    for source in &mut sources {
        if tests.iter().any(|module| source.path.with_extension("").starts_with(module)) {
            source.test_lines.fill(true);
        }
    }
    Ok(sources)
}

/// Files that are checked in or about to be, relative to the root, by git's patterns.
pub(crate) fn files(places: &Places, patterns: &[&str]) -> Result<Vec<PathBuf>> {
    let mut arguments = vec!["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--"];
    arguments.extend(patterns);
    let listed = peers::git(places, &arguments)?;
    // A file deleted but not yet committed is still listed.
    Ok(listed.lines().map(PathBuf::from).filter(|path| places.root.join(path).is_file()).collect())
}

/// The text of a file; `path` is relative to the root.
pub(crate) fn read(places: &Places, path: &Path) -> Result<String> {
    std::fs::read_to_string(places.root.join(path)).into_diagnostic().wrap_err_with(|| path.display().to_string())
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "benches" | "tests.rs")))
}

/// Identifiers and keywords with their offsets.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split(move |c| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(move |word| (word.as_ptr().addr() - code.as_ptr().addr(), word))
}

/// Where the body of the function begins whose `fn` came just before `after`.
fn body_start(after: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, c) in after.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return None,
            '{' if depth == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// The bytes from an opening brace to the closing one of the same block.
fn block_length(block: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, c) in block.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Begin and end of each `#[cfg(test)]` and `#[cfg(all(test, ..))]`.
fn test_attributes(code: &str) -> impl Iterator<Item = (usize, usize)> {
    code.match_indices("#[cfg(").filter_map(|(at, _)| {
        let end = at + code[at..].find(']')? + 1;
        let condition = &code[at + "#[cfg(".len()..end];
        (condition.starts_with("test)") || condition.starts_with("all(test,")).then_some((at, end))
    })
}

/// Marks the lines of each item under `#[cfg(test)]`.
fn test_lines(code: &str) -> Vec<bool> {
    let mut marks = vec![false; code.lines().count()];
    for (at, end) in test_attributes(code) {
        let after = &code[end..];
        let length = body_start(after).and_then(|open| block_length(&after[open..]).map(|length| open + length));
        let first = code[..at].matches('\n').count();
        let last = first + after[..length.unwrap_or(0)].matches('\n').count();
        marks[first..=last.min(code.lines().count() - 1)].fill(true);
    }
    marks
}

/// Blanks comments, strings and characters; every other byte and every line feed stays where it is.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = token_end(bytes, at);
        if end > at {
            out[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
            at = end;
        } else {
            at += 1;
        }
    }
    // Whole tokens became spaces, so what remains is as valid as it was.
    String::from_utf8(out).expect("blanked tokens begin and end at ASCII")
}

/// The end of the comment, string or character that begins at `at`; `at` itself when none does.
fn token_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let before_is_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    if rest.starts_with(b"//") {
        return rest.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length);
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    if rest[0] == b'"' {
        return string_end(bytes, at + 1);
    }
    if !before_is_word && matches!(rest[0], b'r' | b'b' | b'c') {
        let prefix = rest.iter().take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count();
        let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
        if prefix <= 2 && rest.get(prefix + hashes) == Some(&b'"') {
            let start = at + prefix + hashes + 1;
            return if rest[..prefix].contains(&b'r') {
                raw_string_end(bytes, start, hashes)
            } else {
                string_end(bytes, start)
            };
        }
    }
    if rest[0] == b'\'' { character_end(bytes, at) } else { at }
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_u32);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(bytes: &[u8], mut at: usize, hashes: usize) -> usize {
    while at < bytes.len() {
        let closes =
            bytes[at] == b'"' && bytes[at + 1..].iter().take(hashes).filter(|byte| **byte == b'#').count() == hashes;
        if closes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    bytes.len()
}

/// A character, or nothing: a lifetime has no closing quote behind one character.
fn character_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        let close = bytes[at + 3..].iter().position(|byte| *byte == b'\'');
        return close.map_or(at, |length| at + 3 + length + 1);
    }
    let Some(first) = bytes.get(at + 1) else { return at };
    let width = match first {
        0..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
    };
    if bytes.get(at + 1 + width) == Some(&b'\'') { at + 2 + width } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new(PathBuf::from("crates/x/src/lib.rs"), text.to_owned())
    }

    #[test]
    fn comments_and_literals_are_blank_and_lines_stay() {
        let text =
            "let a = \"{ \\\" }\"; // {\nlet b = r#\"}\"{\"#; /* { /* } */ */ let c: &'a str = '{';\nlet d = b'}';";
        let code = blank(text);
        assert!(!code.contains(['{', '}', '"']), "{code}");
        assert_eq!(code.len(), text.len());
        assert_eq!(code.lines().count(), 3);
        assert!(code.contains("&'a str"), "a lifetime is no character: {code}");
    }

    #[test]
    fn functions_have_the_length_of_their_bodies() {
        let found =
            source("trait T { fn none(&self, a: [u8; 2]); }\nfn one() {}\nfn three(\n) -> u8 {\n}\n").functions();
        let shape: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(shape, [("one", 2, 1), ("three", 3, 3)]);
    }

    #[test]
    fn tests_are_told_from_the_product() {
        let source = source("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n");
        assert_eq!(source.test_lines, [false, true, true, true, true, false]);
        let tests: Vec<_> = source.functions().iter().map(|f| f.is_test).collect();
        assert_eq!(tests, [false, true, false]);
        assert_eq!(source.product_lines().map(|(at, _)| at).collect::<Vec<_>>(), [1, 6]);
    }

    #[test]
    fn a_module_of_tests_in_another_file_is_known() {
        let modules = source("#[cfg(test)]\npub(crate) mod harness;\n#[cfg(test)]\nmod tests {\n}\n").test_modules();
        assert_eq!(modules, [PathBuf::from("crates/x/src/harness")]);
        let nested = Source::new("crates/x/src/a.rs".into(), "#[cfg(test)]\nmod b;".to_owned());
        assert_eq!(nested.test_modules(), [PathBuf::from("crates/x/src/a/b")]);
    }

    #[test]
    fn a_module_declared_elsewhere_has_no_body_here() {
        assert_eq!(source("#[cfg(test)]\nmod tests;\nfn a() {\n}\n").test_lines, [true, false, false, false]);
        assert_eq!(
            source("#[cfg(all(test, not(loom)))]\nmod t {\n}\n#[cfg(feature = \"test\")]\n").test_lines,
            [true, true, true, false]
        );
    }
}
