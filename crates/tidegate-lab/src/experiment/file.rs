//! From a file to an experiment, with errors that say where.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{Complaint, Experiment};

/// Largest file that is read.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Why there is no experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The file cannot be read.
    #[error("cannot read {}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is no experiment.
    #[error("{} is larger than {limit} bytes", file.display())]
    TooLarge {
        /// Which.
        file: PathBuf,
        /// How much would be read.
        limit: u64,
    },
    /// Something in it is wrong.
    #[error("{}:{line}: {key}{}{message}", file.display(), if key.is_empty() { "" } else { ": " })]
    Invalid {
        /// Which.
        file: PathBuf,
        /// From 1.
        line: usize,
        /// As in `theory_check.confidence`; empty where there is none.
        key: String,
        /// What is wrong, and what would be right.
        message: String,
        /// Where in the text, in bytes.
        span: Range<usize>,
    },
}

/// Reads the experiment in `file`.
///
/// # Errors
/// If the file cannot be read or is no experiment.
pub fn read(file: &Path) -> Result<Experiment, ExperimentError> {
    let unreadable = |source| ExperimentError::Unreadable { file: file.to_owned(), source };
    if fs::metadata(file).map_err(unreadable)?.len() > FILE_MAX_BYTES {
        return Err(ExperimentError::TooLarge { file: file.to_owned(), limit: FILE_MAX_BYTES });
    }
    parse(file, &fs::read_to_string(file).map_err(unreadable)?)
}

/// Reads the experiment in `text`, which stands in `file`; files that it names are read from the same folder.
///
/// # Errors
/// If it is no experiment, or a file that it names cannot be read.
pub fn parse(file: &Path, text: &str) -> Result<Experiment, ExperimentError> {
    let invalid = |key: String, message: String, span: Range<usize>| ExperimentError::Invalid {
        file: file.to_owned(),
        line: text[..span.start.min(text.len())].matches('\n').count() + 1,
        key,
        message,
        span,
    };
    let mut experiment: Experiment = toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        invalid(key_at(text, span.start), error.message().replace('\n', "; "), span)
    })?;
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    let loaded = experiment.placement.iter_mut().try_for_each(|placement| placement.load(folder));
    loaded.and_then(|()| experiment.check()).map_err(|Complaint { key, message }| {
        let span = span_of(text, &key);
        invalid(key, message, span)
    })?;
    Ok(experiment)
}

/// A line of a file, and where it stands.
struct Line<'a> {
    start: usize,
    text: &'a str,
    /// As in `theory_check.load[1]`, the second table of a list.
    table: String,
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut start = 0;
    let mut table = String::new();
    let mut headers: Vec<&str> = Vec::new();
    text.split_inclusive('\n').map(move |line| {
        let content = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = content.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]")) {
            table = format!("{name}[{}]", headers.iter().filter(|header| **header == name).count());
            headers.push(name);
        } else if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut table);
        }
        start += line.len();
        Line { start: start - line.len(), text: line, table: table.clone() }
    })
}

impl Line<'_> {
    /// The key on the line with its table, or the table that it opens or stands in.
    fn key(&self) -> String {
        match self.text.split_once('=') {
            Some((key, _)) if self.table.is_empty() => key.trim().to_owned(),
            Some((key, _)) => format!("{}.{}", self.table, key.trim()),
            None => self.table.clone(),
        }
    }
}

/// The key on the line that holds byte `at`.
fn key_at(text: &str, at: usize) -> String {
    lines(text).take_while(|line| line.start <= at).last().map_or_else(String::new, |line| line.key())
}

/// Where `key` is written, or the nearest table around it; the start if there is neither.
fn span_of(text: &str, key: &str) -> Range<usize> {
    let mut wanted = key;
    while !wanted.is_empty() {
        if let Some(line) = lines(text).find(|line| line.key() == wanted) {
            return line.start..line.start + line.text.trim_end().len();
        }
        wanted = wanted.rsplit_once('.').map_or("", |(table, _)| table);
    }
    0..0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(Path::new("a.toml"), text).unwrap_err().to_string()
    }

    const HEAD: &str = "title = \"t\"\nseed = 1\n";
    const CHECK: &str = "[theory_check]\nrate = \"11k/s\"\nbatches = [1]\nconfidence = 0.99\n";

    #[test]
    fn errors_name_file_line_and_key() {
        let unknown = error(&format!("{HEAD}{CHECK}bursts = 3\n"));
        assert!(unknown.starts_with("a.toml:7: theory_check.bursts: unknown field `bursts`"), "{unknown}");
        let wrong = error(&format!("{HEAD}{}", CHECK.replace("11k/s", "fast")));
        assert!(wrong.starts_with("a.toml:4: theory_check.rate: "), "{wrong}");
        let text = format!(
            "{HEAD}{}[[theory_check.load]]\nload = 0.5\nburst = 1\nmessages = 9\n",
            CHECK.replace("0.99", "9.0")
        );
        assert_eq!(error(&text), "a.toml:6: theory_check.confidence: 9 is not above 0 and below 1");
        let good = "[[theory_check.load]]\nload = 0.5\nburst = 1\nmessages = 1_000_000\n";
        let second = error(&format!("{HEAD}{CHECK}{good}{}", good.replace("0.5", "1.5")));
        assert_eq!(second, "a.toml:12: theory_check.load[1].load: 1.5 is not above 0 and below 1");
        assert_eq!(
            error(HEAD),
            "a.toml:1: 0 kinds: write one of [divided_limit], [drl_penalty], [neighbours], [no_tuning], [placement], [proxy], [release_law], [rpc], [rpc_graph], [shaper] and [theory_check]"
        );
    }
}
