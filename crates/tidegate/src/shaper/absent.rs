//! What a binary without the feature has in the place of an agent: nothing that could be made.

use tidegate_console::ShaperSource;
use tidegate_shaper::config::Config;

use super::feature::{WITH_SHAPER, WITHOUT_SHAPER};
use crate::failure::Failure;
use crate::token::Token;

/// There is none.
pub(crate) enum ShaperRunning {}

/// There is none.
pub(crate) enum ShaperReload {}

impl ShaperRunning {
    /// Reading the file has said so before.
    #[expect(clippy::unused_async, reason = "as with the feature")]
    pub(crate) async fn start(_: Config, _: &Token) -> Result<Self, Failure> {
        Err(Failure::config(WITHOUT_SHAPER).help(WITH_SHAPER))
    }

    pub(crate) fn introduce(&self) -> Result<(), Failure> {
        match *self {}
    }

    pub(crate) fn console_source(&self, _: &Token) -> Option<ShaperSource> {
        match *self {}
    }

    pub(crate) fn reload(&self) -> ShaperReload {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "as with the feature")]
    pub(crate) async fn stop(self) {
        match self {}
    }
}

impl ShaperReload {
    #[expect(clippy::unused_async, reason = "as with the feature")]
    pub(crate) async fn reload(&mut self, _: Option<Config>) -> usize {
        match *self {}
    }
}
