//! The programs that this build has.

use super::programs::Loader;

/// What attaches programs, if this build has some.
#[must_use]
pub fn loader() -> Option<Box<dyn Loader>> {
    #[cfg(feature = "bpf")]
    return Some(Box::new(super::bpf::Kernel));
    #[cfg(not(feature = "bpf"))]
    None
}
