//! The numbers of lending sessions that one start may use, and no other does.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::disk_queue::{Files, read_whole, replace};
use crate::machine::lending::BOOTS_PER_START;

const FILE: &str = "tidegate.lend";
/// Seconds to 2020-01-01. From there on 32 bits last until 2156.
const EPOCH_2020_S: i64 = 1_577_836_800;

#[derive(Serialize, Deserialize)]
struct Stored {
    /// The first number of the last start.
    boot: u32,
}

/// The first of [`BOOTS_PER_START`] numbers for this start, noted in `folder` before it is used.
///
/// Greater than at any start before; where the folder knows of none, or was emptied, the seconds of the wall clock, so
/// that other brokers do not take a new start for an earlier one.
pub(super) fn next_boot<F: Files>(files: &F, folder: &Path, unix_ns: i64) -> io::Result<u32> {
    let seconds = u32::try_from((unix_ns / 1_000_000_000).saturating_sub(EPOCH_2020_S).max(0)).unwrap_or(0);
    let stored = match read_whole(files, &folder.join(FILE)) {
        Ok(text) => serde_json::from_slice(&text).ok().map(|Stored { boot }| boot),
        Err(_) => None,
    };
    let boot = stored.map_or(0, |boot| boot.saturating_add(BOOTS_PER_START)).max(seconds);
    replace(files, folder, FILE, &serde_json::to_vec(&Stored { boot }).expect("a number"))?;
    Ok(boot)
}

#[cfg(test)]
mod tests {
    use super::super::disk_queue::SystemFiles;
    use super::*;

    #[test]
    fn no_start_has_numbers_of_another() {
        let folder = std::env::temp_dir().join(format!("tidegate-lend-boot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let at = |seconds: i64| next_boot(&SystemFiles, &folder, (EPOCH_2020_S + seconds) * 1_000_000_000).unwrap();
        // In the same second, after the wall clock stepped back, much later, and with a damaged file.
        assert_eq!([at(1_000), at(1_000), at(5)], [1_000, 1_000 + BOOTS_PER_START, 1_000 + 2 * BOOTS_PER_START]);
        assert_eq!(at(9_000), 9_000);
        std::fs::write(folder.join(FILE), "{").unwrap();
        assert_eq!(at(9_001), 9_001);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
