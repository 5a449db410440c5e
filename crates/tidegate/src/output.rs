//! Standard output: tables for people, JSON for programs.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;
use tidegate_core::Rate;

use crate::failure::Failure;
use crate::token::Token;

/// How a verb that reads shows what it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    /// For people.
    Table,
    /// For programs: one JSON document.
    Json,
}

impl Style {
    /// What `--json` asks for.
    pub(crate) fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Table }
    }
}

/// Prints one line. A reader that has gone away, as in `tidegate status | head`, is no failure.
pub(crate) fn line(text: impl Display) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Shows `text` on a terminal in the place of what was shown so last; anywhere else it says nothing. To be cleared with an
/// empty text before the next line.
pub(crate) fn passing(text: impl Display) {
    if io::stdout().is_terminal() {
        // What cannot be shown will not be missed.
        let _ = write(&format!("\r\x1b[K{text}"));
    }
}

/// Prints where the console is. On a terminal the address carries the token in its fragment, which browsers do not send
/// to servers; elsewhere standard output is kept, under systemd in the journal, so only the token's file is named.
/// `at` is `host:port` and the path of a page, such as `127.0.0.1:7070/`.
pub(crate) fn console(at: &str, token: Option<(&Token, &Path)>) -> Result<(), Failure> {
    line(console_line(at, token, io::stdout().is_terminal()))
}

fn console_line(at: &str, token: Option<(&Token, &Path)>, terminal: bool) -> String {
    match token {
        None => format!("console  http://{at}"),
        Some((token, _)) if terminal => format!("console  http://{at}#token={}", token.reveal()),
        Some((_, file)) => {
            format!("console  http://{at} (to change things, add #token= and the text of {})", file.display())
        }
    }
}

/// Prints `value` as a JSON document.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new("the result cannot be written as JSON").because(error))?;
    line(text)
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new("cannot write to standard output").because(error))
        }
        _ => Ok(()),
    }
}

/// Columns of text; numbers stand right, words left.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these names over its columns.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row; as many cells as the header has.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// Prints it.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        write(&self.to_string())
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows[0].len();
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let width: Vec<usize> =
            (0..columns).map(|column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0)).collect();
        let is_number = |cell: &String| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit());
        let right: Vec<bool> = (0..columns).map(|column| cells(column).skip(1).all(is_number)).collect();
        for row in &self.rows {
            let mut text = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = width[column];
                let padding = " ".repeat(width - cell.chars().count());
                let (before, after) = if right[column] { (&*padding, "") } else { ("", &*padding) };
                text.extend([before, cell.as_str(), after, "  "]);
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// A number as people read it: three digits of it that matter.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A rate as people write it, if three digits say it exactly or it is whole: `11k/s`.
pub(crate) fn rate(per_s: f64) -> String {
    let digits = figure(per_s);
    let exact = digits.parse().is_ok_and(|shown: f64| shown.total_cmp(&per_s).is_eq());
    let rate = exact.then(|| digits.parse::<Rate>().ok()).flatten();
    rate.map_or_else(|| format!("{digits}/s"), |rate| rate.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_as_they_are_written() {
        let shown: Vec<String> =
            [0.0, 0.25, 1.5, 90.0, 11_000.0, 2e6, 13_888.888_888_9].into_iter().map(rate).collect();
        assert_eq!(shown, ["0/s", "0.25/s", "1.5/s", "90/s", "11k/s", "2M/s", "13889/s"]);
    }

    #[test]
    fn the_token_is_shown_on_a_terminal_only() {
        let (token, file) = (Token::generate().unwrap(), Path::new("data/admin.token"));
        let line = |terminal| console_line("127.0.0.1:7070/", Some((&token, file)), terminal);
        assert_eq!(line(true), format!("console  http://127.0.0.1:7070/#token={}", token.reveal()));
        assert!(line(false).ends_with("/ (to change things, add #token= and the text of data/admin.token)"));
        assert!(!line(false).contains(token.reveal()));
    }

    #[test]
    fn numbers_stand_right_and_words_left() {
        let mut table = Table::new(&["topic", "rate", "mode"]);
        table.row(["orders".into(), "9".into(), "enforce".into()]);
        table.row(["log".into(), "11000".into(), "shadow".into()]);
        table.row(["x".into(), "-".into(), String::new()]);
        assert_eq!(
            table.to_string(),
            "topic    rate  mode\norders      9  enforce\nlog     11000  shadow\nx           -\n"
        );
    }

    #[test]
    fn figures_have_three_digits() {
        let shown: Vec<String> = [0.0, 0.123, 1.0, 12.34, 123.4, 12_345.6].into_iter().map(figure).collect();
        assert_eq!(shown, ["0", "0.12", "1.00", "12.3", "123", "12346"]);
    }
}
