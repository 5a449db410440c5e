//! Tables for people.

use std::fmt;

use serde::Serialize;

/// A table of text; the first column is to the left, the others to the right.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Table {
    /// Names of the columns.
    pub header: Vec<String>,
    /// As many cells in each row as the header has.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new<const N: usize>(header: [&str; N]) -> Self {
        Self { header: header.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn push<const N: usize>(&mut self, row: [String; N]) {
        self.rows.push(row.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| {
            lines().map(|row| row.get(column).map_or(0, |cell| cell.chars().count())).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        for row in lines() {
            let padded = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// A number with about four digits, whatever its size: for tables, where what does not count is in the way.
#[must_use]
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let size = value.abs();
    if !(1e-6..1e9).contains(&size) {
        return format!("{value:.2e}");
    }
    // Digits before the point, or zeros behind it.
    #[expect(clippy::cast_possible_truncation, reason = "between -6 and 9")]
    let magnitude = size.log10().floor() as i32;
    let places = usize::try_from(3 - magnitude).unwrap_or(0);
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["k", "p99 µs"]);
        table.push(["1".to_owned(), number(12.0)]);
        table.push(["10".to_owned(), number(1_234.5)]);
        assert_eq!(table.to_string(), "k   p99 µs\n1       12\n10    1234\n");
    }

    #[test]
    fn numbers_keep_four_digits() {
        let values = [0.0, 1.0, 123_456.0, 0.012_346, -2.5, 1e-9, f64::INFINITY];
        assert_eq!(values.map(number), ["0", "1", "123456", "0.01235", "-2.5", "1.00e-9", "inf"]);
    }
}
