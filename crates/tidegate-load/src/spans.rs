//! Spans of time in a file: a line `FROM,TO` for each, in nanoseconds of the monotonic clock, and `over` at the end.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use tidegate_core::Instant;

/// Writes `spans`; a file without its last line is torn.
pub(crate) fn write(file: &Path, spans: &[(Instant, Instant)]) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    for (from, to) in spans {
        writeln!(out, "{},{}", from.as_nanos(), to.as_nanos())?;
    }
    writeln!(out, "over")?;
    out.into_inner()?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_ends_with_a_line_that_says_so() {
        let file = std::env::temp_dir().join(format!("tidegate-spans-{}", std::process::id()));
        let at = Instant::from_nanos;
        write(&file, &[(at(3), at(9)), (at(4), at(5))]).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "3,9\n4,5\nover\n");
        std::fs::remove_file(file).unwrap();
    }
}
