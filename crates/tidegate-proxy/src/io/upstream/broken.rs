//! Why a request's body broke off, for the half that reads the answer.

use std::cell::Cell;
use std::rc::Rc;

use crate::io::request::error::BodyError;

/// Why a request's body broke off, for those who wait for its answer. The protocol tells them only that the stream
/// ended, and the server is not to blame.
#[derive(Clone, Default)]
pub(super) struct Broken(pub(super) Rc<Cell<Option<BodyError>>>);

impl Broken {
    /// The reason, once.
    pub(super) fn take(&self) -> Option<BodyError> {
        self.0.take()
    }
}

impl std::fmt::Debug for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broken").finish_non_exhaustive()
    }
}
