//! The file of a witness.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use miette::{IntoDiagnostic, Result, WrapErr as _};

use super::judge::Gap;

/// A publish that was answered with OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) sequence: u32,
    pub(super) sent_ns: i128,
}

/// What was seen of one topic.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) accepted: Vec<Accepted>,
    /// Deliveries at `all`: numbers and times, in the order of time.
    pub(super) at_all: Vec<(u32, i128)>,
    /// Times at the two channels that have limits.
    limited: [Vec<i128>; 2],
    /// When the consumer of `all` became ready.
    pub(super) ready: Vec<i128>,
    /// When it was not.
    pub(super) away: Vec<Gap>,
    /// It is not ready since then.
    closed_ns: Option<i128>,
    came: Vec<u64>,
}

/// Everything that was seen.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    pub(super) topics: Vec<Seen>,
    pub(super) gaps: Vec<Gap>,
}

impl Sight {
    /// Reads the file of a witness of `topics` topics.
    pub(super) fn read(file: &Path, topics: usize) -> Result<Self> {
        let open = File::open(file).into_diagnostic().wrap_err_with(|| format!("no file at {}", file.display()))?;
        let mut sight = Self { topics: vec![Seen::default(); topics], gaps: Vec::new() };
        let mut is_whole = false;
        for (at, line) in BufReader::with_capacity(1 << 20, open).lines().enumerate() {
            let line = line.into_diagnostic()?;
            is_whole = line == "over";
            if !is_whole {
                sight.take(&line).ok_or_else(|| miette::miette!("{}:{}: {line}", file.display(), at + 1))?;
            }
        }
        if !is_whole {
            miette::bail!("{} is torn", file.display());
        }
        Ok(sight)
    }

    fn take(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(',')?;
        let mut numbers = rest.split(',').map(|field| field.parse::<i128>().ok());
        let mut next = || numbers.next().flatten();
        if kind == "g" {
            self.gaps.push(Gap { from_ns: next()?, to_ns: next()?, dead_ns: 0 });
            return Some(());
        }
        let seen = self.topics.get_mut(usize::try_from(next()?).ok()?)?;
        match kind {
            "d" => {
                let (channel, sequence, at) = (usize::try_from(next()?).ok()?, u32::try_from(next()?).ok()?, next()?);
                match channel {
                    0 => seen.arrive(sequence, at),
                    limited => seen.limited.get_mut(limited - 1)?.push(at),
                }
            }
            "a" => seen.accepted.push(Accepted { sequence: u32::try_from(next()?).ok()?, sent_ns: next()? }),
            "u" if next()? == 0 => {
                let at = next()?;
                seen.ready.push(at);
                let away = seen.closed_ns.take().map(|from_ns| Gap { from_ns, to_ns: at, dead_ns: 0 });
                seen.away.extend(away);
            }
            "x" if next()? == 0 => seen.closed_ns = Some(next()?),
            "u" | "x" | "r" => {}
            _ => return None,
        }
        Some(())
    }
}

impl Seen {
    /// Only a message's first delivery is kept.
    fn arrive(&mut self, sequence: u32, at: i128) {
        if self.came_to_all(sequence) {
            return;
        }
        let word = sequence as usize / 64;
        if self.came.len() <= word {
            self.came.resize(word + 1, 0);
        }
        self.came[word] |= 1 << (sequence % 64);
        self.at_all.push((sequence, at));
    }

    /// It was delivered at `all`.
    pub(super) fn came_to_all(&self, sequence: u32) -> bool {
        self.came.get(sequence as usize / 64).is_some_and(|word| word & 1 << (sequence % 64) != 0)
    }

    /// When each message was first delivered at `all`.
    pub(super) fn first_at_all(&self) -> Vec<i128> {
        self.at_all.iter().map(|(_, at)| *at).collect()
    }

    /// When anything was delivered at limited channel `number`, from 1.
    pub(super) fn deliveries(&self, number: usize) -> Vec<i128> {
        self.limited.get(number.wrapping_sub(1)).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_a_torn_one_is_an_error() {
        let file = std::env::temp_dir().join(format!("xtask-witness-{}", std::process::id()));
        let text = "u,0,0,1\na,0,7,2,3\nd,0,0,7,4\nd,0,0,7,5\nd,0,1,7,6\nd,0,1,7,7\ng,8,9\nx,0,0,10\nu,0,0,12\nr,0,3\n";
        std::fs::write(&file, format!("{text}over\n")).unwrap();
        let sight = Sight::read(&file, 1).unwrap();
        let seen = &sight.topics[0];
        assert_eq!(seen.first_at_all(), [4], "a message leaves its topic once");
        assert_eq!(seen.deliveries(1), [6, 7], "a channel's limit is asked for each delivery");
        assert_eq!(seen.accepted, [Accepted { sequence: 7, sent_ns: 2 }]);
        assert_eq!(sight.gaps, [Gap { from_ns: 8, to_ns: 9, dead_ns: 0 }]);
        assert_eq!((seen.ready.as_slice(), seen.away[0].to_ns - seen.away[0].from_ns), (&[1, 12][..], 2));
        std::fs::write(&file, text).unwrap();
        assert!(Sight::read(&file, 1).is_err());
        std::fs::write(&file, "d,1,0,7,4\nover\n").unwrap();
        assert!(Sight::read(&file, 1).is_err(), "there is no such topic");
        std::fs::remove_file(file).unwrap();
    }
}
