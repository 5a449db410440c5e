//! The outside world of the shaper.
//!
//! | module | its one job |
//! |---|---|
//! | [`admin`] | the admin API |
//! | [`agent`] | a thread that keeps devices as configured, and reads what their classes do |
//! | `bpf` | the programs in the kernel: loaded, told and read (feature `bpf`) |
//! | [`clear`] | takes our trees away |
//! | [`loader`](mod@loader) | the programs that this build has |
//! | [`netlink`] | the kernel's interface to devices, qdiscs and classes |
//! | [`netns`] | network namespaces |
//! | [`programs`] | what programs in the kernel do for a device: the seam to their loader |
//! | [`view`] | what is shown of it |

pub mod admin;
pub mod agent;
mod batch_timers;
#[cfg(feature = "bpf")]
pub mod bpf;
pub mod clear;
pub mod loader;
mod lock;
mod managed;
pub mod netlink;
pub mod netns;
pub mod programs;
pub mod view;
