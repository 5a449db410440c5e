//! SIGHUP: control reads its file again.
//!
//! Brokers and topics that are new, gone or declared otherwise are put in force, each with a line in the log. A key that
//! holds from the start is refused where it stands in the file, as what is wrong is; then nothing changes.

use std::path::PathBuf;

use tidegate_console::BrokerSource;
use tidegate_control::config::Config;
use tidegate_control::config::reread::{RESTART, refused};
use tidegate_control::io::{Control, Named};
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::config::Document;
use tokio::sync::watch;

use super::{sources_of, tokens_of};
use crate::reload::others_of;
use crate::settings::{self, Settings};
use crate::signals::Hangups;
use crate::token::Token;

/// Keys of other sections that control uses, from its start on.
const FIXED: [&str; 3] = ["admin.token_file", "store", "log.format"];

/// Reads the file again when it is asked to.
pub(super) struct Reload {
    file: PathBuf,
    others: Vec<(&'static str, String)>,
    /// In force.
    config: Config,
    token: Token,
    /// The brokers that the console asks.
    sources: watch::Sender<Vec<BrokerSource>>,
}

impl Reload {
    /// `config` is in force; it is of `settings`, which are what `file` said at the start.
    pub(super) fn new(
        file: PathBuf,
        settings: &Settings,
        config: Config,
        token: Token,
        sources: watch::Sender<Vec<BrokerSource>>,
    ) -> Self {
        Self { file, others: others_of(settings), config, token, sources }
    }

    /// Follows SIGHUP until `end`, which does not wait for topics that take their commands in turn.
    pub(super) async fn serve_until(
        &mut self,
        control: &mut Control,
        hangups: &mut Hangups,
        end: impl Future<Output = ()>,
    ) {
        hangups.follow(end, async || self.hangup(control).await).await;
    }

    async fn hangup(&mut self, control: &mut Control) {
        let (config, tokens) = match self.read() {
            Ok(read) => read,
            Err(error) => return tracing::warn!(error, "SIGHUP: control stays as it is"),
        };
        for warning in config.warnings.iter().filter(|warning| !self.config.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        let is_same = config == self.config;
        self.sources.send_replace(sources_of(&config, &tokens));
        let changes = control.reload(config.clone(), tokens).await;
        self.config = config;
        say("topics", &changes.topics);
        say("brokers", &changes.nodes);
        if is_same {
            tracing::info!("SIGHUP: the file was read again; it changes nothing but tokens");
        }
    }

    /// What is to be in force, and what brokers are shown.
    fn read(&self) -> Result<(Config, Vec<Option<String>>), String> {
        let document = Document::read(&self.file).map_err(|error| with_causes(&error))?;
        let settings = Settings::from_document(&document, &settings::host()).map_err(|error| error.to_string())?;
        for ((key, before), (_, now)) in self.others.iter().zip(&others_of(&settings)) {
            if FIXED.contains(key) && before != now {
                return Err(refused(&document, key, before, now, RESTART).to_string());
            }
        }
        let config = self.config.reread(&document).map_err(|error| error.to_string())?;
        let tokens = tokens_of(&config, &self.token).map_err(|error| with_causes(&error))?;
        Ok((config, tokens))
    }
}

fn say(what: &'static str, names: &Named) {
    let Named { added, removed, changed } = names;
    if !names.is_empty() {
        tracing::info!(what, ?added, ?removed, ?changed, "SIGHUP: the file changed");
    }
}
