//! Configuration files: TOML read into types, with errors that name file, line, key, value found and what to write.
//!
//! [`Document::parse`] checks what one value can be wrong about. What several values are wrong about together, the
//! owner of the types finds, and [`Document::problem`] points at the place.
//!
//! ```
//! use tidegate_runtime::config::Document;
//!
//! #[derive(Debug, serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Listen {
//!     port: u16,
//! }
//! let error = Document::new("a.toml", "# one\nprot = 4150\n").parse::<Listen>().unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "a.toml:2: prot: unknown key; did you mean `port`? Expected `port`"
//! );
//! ```

mod choice;
mod locate;
pub mod units;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;

#[doc(inline)]
pub use crate::choice;

/// Largest file that is read. A thousand topics take about 100 KiB.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// Characters of what is accepted that are shown beside a suggestion: about a line of a report.
const LONGEST_LIST: usize = 100;

/// The text of a file, and where it came from.
#[derive(Clone, Debug)]
pub struct Document {
    file: PathBuf,
    text: Arc<str>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is no configuration.
    #[error("{} is larger than {limit} bytes", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// [`MAX_FILE_BYTES`].
        limit: u64,
    },
    /// Something in it is wrong.
    #[error(transparent)]
    Invalid(Box<Problem>),
}

/// One thing that is wrong in a file.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// Its text.
    pub text: Arc<str>,
    /// The bytes of it that are wrong.
    pub span: Range<usize>,
    /// The line of the first of them, counted from 1.
    pub line: usize,
    /// The key, as in `topic[1].rate`; empty where the text is not TOML.
    pub key: String,
    /// What is wrong: the value found, or that the key is unknown.
    pub found: String,
    /// What is accepted there.
    pub accepted: Option<String>,
    /// What was probably meant.
    pub suggestion: Option<String>,
    /// What to do, where it is more than to write what is accepted.
    pub advice: Option<String>,
}

impl Document {
    /// Reads `file`.
    pub fn read(file: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        let file = file.into();
        match read_bounded(&file) {
            Ok(Some(text)) => Ok(Self { file, text: text.into() }),
            Ok(None) => Err(ConfigError::TooLarge { file, limit: MAX_FILE_BYTES }),
            Err(source) => Err(ConfigError::Unreadable { file, source }),
        }
    }

    /// A text that stands for the content of `file`.
    pub fn new(file: impl Into<PathBuf>, text: impl Into<Arc<str>>) -> Self {
        Self { file: file.into(), text: text.into() }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Reads the text as a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|error| self.explain(&error))
    }

    /// An error at `key`, which is written as in [`Problem::key`]; at the nearest key around it if the file leaves it
    /// to its default. `advice` says what to do.
    #[must_use]
    pub fn problem(&self, key: &str, found: impl fmt::Display, advice: impl fmt::Display) -> ConfigError {
        let problem = Problem {
            key: key.to_owned(),
            found: found.to_string(),
            advice: Some(advice.to_string()),
            ..self.problem_at(locate::span_of(&self.text, key))
        };
        ConfigError::Invalid(Box::new(problem))
    }

    fn explain(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let key = locate::key_at(&self.text, &span).unwrap_or_default();
        let mut problem = Problem { key, ..self.problem_at(span) };
        let message = match error.message().split_once(", expected ") {
            Some((message, accepted)) => {
                problem.accepted = Some(accepted.to_owned());
                message
            }
            None => error.message(),
        };
        if let Some(unknown) = between(message, "unknown field `", "`") {
            let accepted = problem.accepted.as_deref().unwrap_or_default();
            let known = accepted.split('`').skip(1).step_by(2);
            problem.suggestion = suggest(unknown, known).map(str::to_owned);
            "unknown key".clone_into(&mut problem.found);
        } else if let Some(missing) = between(message, "missing field `", "`") {
            problem.found = format!("key `{missing}` is missing");
        } else {
            message.clone_into(&mut problem.found);
        }
        ConfigError::Invalid(Box::new(problem))
    }

    fn problem_at(&self, span: Range<usize>) -> Problem {
        Problem {
            file: self.file.clone(),
            text: Arc::clone(&self.text),
            line: 1 + self.text.get(..span.start).map_or(0, |before| before.matches('\n').count()),
            span,
            key: String::new(),
            found: String::new(),
            accepted: None,
            suggestion: None,
            advice: None,
        }
    }
}

impl Problem {
    /// What to do about it, as one sentence.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        if self.advice.is_some() {
            return self.advice.clone();
        }
        let expected = self.accepted.as_ref().map(|accepted| format!("expected {accepted}"));
        let Some(meant) = &self.suggestion else { return expected };
        // Who only slipped need not read through all that would have been right.
        match expected.filter(|expected| expected.len() <= LONGEST_LIST) {
            Some(expected) => Some(format!("did you mean `{meant}`? {}", capitalized(&expected))),
            None => Some(format!("did you mean `{meant}`?")),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file.display(), self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.found)?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for Problem {}

/// The candidate that `unknown` is most likely a slip of: at most a third of its letters typed wrong.
#[must_use]
pub fn suggest<'a>(unknown: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let unknown = plain(unknown);
    candidates
        .into_iter()
        .map(|candidate| (slips(&unknown, &plain(candidate)), candidate))
        .filter(|(slips, candidate)| *slips <= candidate.len().div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Letters added, left out, replaced or swapped with their neighbour on the way from `a` to `b`.
fn slips(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // The three latest rows of the table over prefixes of `a` (rows) and `b`.
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

fn read_bounded(file: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    File::open(file)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    Ok((text.len() as u64 <= MAX_FILE_BYTES).then_some(text))
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(inner, _)| inner)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct File {
        #[serde(rename = "broker")]
        _broker: Broker,
        #[serde(rename = "topic")]
        _topics: Vec<Topic>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Broker {
        #[serde(rename = "data_path")]
        _data_path: String,
        #[serde(rename = "mem_queue_size")]
        _mem_queue_size: u64,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Topic {
        #[serde(rename = "name")]
        _name: String,
        #[serde(rename = "mode", default)]
        _mode: Mode,
        #[serde(rename = "window", default)]
        _window: units::Span,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        #[default]
        Enforce,
        Shadow,
    }

    fn error(text: &str) -> String {
        Document::new("t.toml", text).parse::<File>().unwrap_err().to_string()
    }

    #[test]
    fn errors_name_file_line_key_value_and_remedy() {
        assert_eq!(
            error("[broker]\nmem_queue_sise = 3\n"),
            "t.toml:2: broker.mem_queue_sise: unknown key; did you mean `mem_queue_size`? Expected `data_path` or \
             `mem_queue_size`"
        );
        assert_eq!(
            error("[broker]\n\nmem_queue_size = \"many\"\n"),
            "t.toml:3: broker.mem_queue_size: invalid type: string \"many\"; expected u64"
        );
        assert_eq!(
            error("[[topic]]\nname = \"a\"\n[[topic]]\nname = \"b\"\nmode = \"shadw\"\n"),
            "t.toml:5: topic[1].mode: unknown variant `shadw`; expected `enforce` or `shadow`"
        );
        assert_eq!(
            error("[[topic]]\nname = \"a\"\nwindow = \"5 parsecs\"\n"),
            "t.toml:3: topic[0].window: invalid value: string \"5 parsecs\"; expected a duration such as \"250ms\", \
             \"10s\" or \"1m30s\""
        );
        assert_eq!(
            error("[[topic]]\nname = \"a\"\n\n[[topic]]\nmode = \"shadow\"\n"),
            "t.toml:4: topic[1]: key `name` is missing"
        );
    }

    #[test]
    fn text_that_is_not_toml_is_found_at_its_line() {
        let text = error("[broker]\nmem_queue_size = = 3\n");
        assert!(text.starts_with("t.toml:2: "), "{text}");
    }

    #[test]
    fn checks_across_keys_point_at_the_key_or_what_is_around_it() {
        let document = Document::new("t.toml", "[broker]\ndata_path = \"x\"\n\n[[topic]]\nname = \"a\"\n");
        let at = |key: &str| match document.problem(key, "is odd", "another") {
            ConfigError::Invalid(problem) => (problem.line, document.text[problem.span].to_owned()),
            other => panic!("{other}"),
        };
        assert_eq!(at("broker.data_path"), (2, "\"x\"".to_owned()));
        assert_eq!(at("topic[0].name"), (5, "\"a\"".to_owned()));
        assert_eq!(at("topic[0].mode"), (4, "[[topic]]".to_owned()));
        assert_eq!(at("console"), (1, String::new()));
    }

    #[test]
    fn slips_of_the_finger_are_understood_and_no_more() {
        let known = ["rate", "burst", "discipline", "mem_queue_size"];
        assert_eq!(suggest("rtae", known), Some("rate"));
        assert_eq!(suggest("bursts", known), Some("burst"));
        assert_eq!(suggest("mem-queue-size", known), Some("mem_queue_size"));
        assert_eq!(suggest("colour", known), None);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Document::read("/nonexistent/tidegate.toml").unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nonexistent/tidegate.toml");
    }
}
