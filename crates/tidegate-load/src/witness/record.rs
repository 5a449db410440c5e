//! What a witness saw, kept in memory until the end: writing files meanwhile would make it late.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use tidegate_core::Instant;

use super::WitnessReport;

/// 32 bytes each: 256 MiB. A run of a minute notes a few million things.
const SEEN_MAX: usize = 1 << 23;

/// One thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// A message came.
    Delivery { topic: u16, channel: u8, sequence: u32, at: Instant },
    /// A publish was answered with OK.
    Accepted { topic: u16, sequence: u32, sent: Instant, answered: Instant },
    /// A consumer can be sent messages.
    Ready { topic: u16, channel: u8, at: Instant },
    /// It could for the last time.
    Closed { topic: u16, channel: u8, at: Instant },
    /// Nothing of the witness ran.
    Gap { from: Instant, to: Instant },
}

/// Everything that was seen.
#[derive(Debug)]
pub(super) struct Book {
    seen: Vec<Seen>,
    report: WitnessReport,
}

impl Book {
    /// Room for everything from the beginning, so that no growth makes the witness late.
    pub(super) fn new() -> Self {
        Self { seen: Vec::with_capacity(SEEN_MAX), report: WitnessReport::default() }
    }

    pub(super) fn note(&mut self, seen: Seen) {
        if self.seen.len() == SEEN_MAX {
            self.report.left_out += 1;
            return;
        }
        match seen {
            Seen::Delivery { .. } => self.report.delivered += 1,
            Seen::Accepted { .. } => self.report.accepted += 1,
            Seen::Gap { .. } => self.report.gaps += 1,
            Seen::Ready { .. } | Seen::Closed { .. } => {}
        }
        self.seen.push(seen);
    }

    pub(super) fn report(&self) -> WitnessReport {
        self.report
    }

    /// Writes the file; its last line says that nothing is missing.
    pub(super) fn write(&self, file: &Path, refused: impl Iterator<Item = u64>) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(file)?);
        for seen in &self.seen {
            match seen {
                Seen::Delivery { topic, channel, sequence, at } => {
                    writeln!(out, "d,{topic},{channel},{sequence},{}", at.as_nanos())
                }
                Seen::Accepted { topic, sequence, sent, answered } => {
                    writeln!(out, "a,{topic},{sequence},{},{}", sent.as_nanos(), answered.as_nanos())
                }
                Seen::Ready { topic, channel, at } => writeln!(out, "u,{topic},{channel},{}", at.as_nanos()),
                Seen::Closed { topic, channel, at } => writeln!(out, "x,{topic},{channel},{}", at.as_nanos()),
                Seen::Gap { from, to } => writeln!(out, "g,{},{}", from.as_nanos(), to.as_nanos()),
            }?;
        }
        for (topic, refused) in refused.enumerate() {
            writeln!(out, "r,{topic},{refused}")?;
        }
        if self.report.left_out == 0 {
            writeln!(out, "over")?;
        }
        out.into_inner()?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_was_seen_and_that_it_is_whole() {
        let mut book = Book { seen: Vec::new(), report: WitnessReport::default() };
        let at = Instant::from_nanos;
        book.note(Seen::Ready { topic: 0, channel: 2, at: at(1) });
        book.note(Seen::Accepted { topic: 0, sequence: 7, sent: at(2), answered: at(3) });
        book.note(Seen::Delivery { topic: 0, channel: 2, sequence: 7, at: at(4) });
        book.note(Seen::Gap { from: at(5), to: at(6) });
        book.note(Seen::Closed { topic: 0, channel: 2, at: at(7) });
        let file = std::env::temp_dir().join(format!("witness-{}", std::process::id()));
        book.write(&file, [9].into_iter()).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "u,0,2,1\na,0,7,2,3\nd,0,2,7,4\ng,5,6\nx,0,2,7\nr,0,9\nover\n");
        assert_eq!((book.report().delivered, book.report().accepted, book.report().gaps), (1, 1, 1));
        std::fs::remove_file(file).unwrap();
    }
}
