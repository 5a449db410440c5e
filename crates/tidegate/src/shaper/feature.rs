//! Whether this binary has the shaper's feature, and what it says if not.

use tidegate_runtime::config::{ConfigError, Document};

/// What a binary without the feature says of the section.
pub(crate) const WITHOUT_SHAPER: &str = "this tidegate is built without the feature shaper";
/// What to do about it.
pub(crate) const WITH_SHAPER: &str = "build it with `cargo build --release --features shaper`, which needs the packages clang, libelf-dev, zlib1g-dev \
     and pkg-config; or remove the section";

/// An error at the section, unless this binary has the feature.
pub(crate) fn must_be_built(document: &Document) -> Result<(), ConfigError> {
    if cfg!(feature = "shaper") { Ok(()) } else { Err(document.problem("shaper", WITHOUT_SHAPER, WITH_SHAPER)) }
}
