//! `[shaper]` of `tidegate.toml`, checked once.
//!
//! | module | its one job |
//! |---|---|
//! | [`words`] | the small values of the section |
//! | `section` | the section as it is written |
//! | `check` | from one to the other, with errors that name file, line, key, value and remedy |
//!
//! ```
//! use tidegate_runtime::config::Document;
//! use tidegate_shaper::config::Config;
//!
//! let text = r#"
//! [[shaper.device]]
//! name = "eth0"
//! [[shaper.device.class]]
//! name = "tenant-a"
//! rate = "1 Gbit/s"
//! match = [ { source = "10.0.0.0/24" } ]
//! "#;
//! let config = Config::from_document(&Document::new("tidegate.toml", text))?;
//! assert_eq!(config.devices[0].classes[0].rate.unwrap().to_string(), "1 Gbit/s");
//! # Ok::<(), tidegate_runtime::config::ConfigError>(())
//! ```

mod check;
mod section;
#[cfg(test)]
mod tests;
pub mod words;

use std::net::SocketAddr;

pub use self::section::Section;
use crate::machine::device::Device;

/// Devices at most.
pub const DEVICES_MAX: usize = 256;
/// What `tidegate shaper` runs with: every default applied, every bound checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Where its admin API listens. `None`: nowhere.
    pub admin: Option<SocketAddr>,
    /// Whether HTB sends a whole burst at each timer, on all devices of the host.
    pub batch_timers: bool,
    /// At most [`DEVICES_MAX`]; no two of the same name and namespace.
    pub devices: Vec<Device>,
    /// What works, and is probably not meant.
    pub warnings: Vec<String>,
}
