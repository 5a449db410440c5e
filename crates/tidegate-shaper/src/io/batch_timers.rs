//! The parameter of the kernel's module with which HTB sends a whole burst at each timer.

use std::fs;
use std::io;
use std::path::Path;

const PARAMETER: &str = "/sys/module/sch_htb/parameters/htb_hysteresis";

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Set {
    /// It was so.
    AsBefore,
    Changed,
}

/// Sets it for all devices of the host.
pub(super) fn set(is_on: bool) -> io::Result<Set> {
    set_at(Path::new(PARAMETER), is_on)
}

fn set_at(parameter: &Path, is_on: bool) -> io::Result<Set> {
    let wanted = if is_on { "1" } else { "0" };
    if fs::read_to_string(parameter)?.trim() == wanted {
        return Ok(Set::AsBefore);
    }
    fs::write(parameter, wanted)?;
    Ok(Set::Changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_only_where_it_differs() {
        let file = std::env::temp_dir().join(format!("tidegate-shaper-parameter-{}", std::process::id()));
        fs::write(&file, "0\n").unwrap();
        assert_eq!(set_at(&file, false).unwrap(), Set::AsBefore);
        assert_eq!(set_at(&file, true).unwrap(), Set::Changed);
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        fs::remove_file(&file).unwrap();
        assert!(set_at(&file, true).is_err());
    }
}
