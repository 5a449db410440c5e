//! `tidegate demo shaper`: one limit of bandwidth, with long queues and with short ones.
//!
//! | module | its one job |
//! |---|---|
//! | `hosts` | two network namespaces with a link between them |
//! | `acts` | the shaper, the load through it, and the switch |
//! | `told` | the table and the verdict |
//!
//! The shaper and both ends of the load run in this process: its threads enter the namespaces.

#[cfg(feature = "shaper")]
mod acts;
#[cfg(feature = "shaper")]
mod hosts;
#[cfg(feature = "shaper")]
mod told;

#[cfg(feature = "shaper")]
pub(crate) use self::acts::run;

/// What a binary without the feature says.
#[cfg(not(feature = "shaper"))]
pub(crate) fn run(_: &crate::cli::ShaperDemo) -> Result<(), crate::failure::Failure> {
    let help = "build it with `cargo build --release --features shaper`, which needs the packages clang, libelf-dev, zlib1g-dev \
                and pkg-config";
    Err(crate::failure::Failure::config(crate::shaper::WITHOUT_SHAPER).help(help))
}
