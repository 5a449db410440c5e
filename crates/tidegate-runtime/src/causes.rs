//! Errors told whole, in one line.

use std::error::Error;

/// What `error` says, and behind it each cause that says more: `cannot be reached at a:1: connection refused`.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut said = error.to_string();
    for cause in std::iter::successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !said.ends_with(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] io::Error);

    #[test]
    fn causes_are_said_once_each() {
        let locked = || io::Error::other("it is locked");
        assert_eq!(with_causes(&Said("cannot read a.toml", locked())), "cannot read a.toml: it is locked");
        assert_eq!(with_causes(&Said("no start: it is locked", locked())), "no start: it is locked");
    }
}
