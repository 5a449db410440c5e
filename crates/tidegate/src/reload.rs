//! SIGHUP: the configuration file is read again.
//!
//! Limits, the log level and the nsqlookupds change at once, each with a line in the log. Other keys hold from the next
//! start; a warning names each that differs from what the process runs with. A file with an error changes nothing.

use std::path::PathBuf;

use tidegate_broker::config::{Config, LogLevel, Options};
use tidegate_broker::io::admin::{FileChange, Limits, Target, in_words};
use tidegate_broker::io::http::Live;
use tidegate_broker::machine::limiter::Contract;
use tidegate_runtime::config::{ConfigError, Document};

use crate::running::Running;
use crate::settings::{self, Settings};
use crate::shaper::ShaperReload;
use crate::signals::Hangups;

/// Keys that change while the broker runs.
const LIVE_KEYS: [&str; 2] = ["log_level", "nsqlookupd_tcp_addresses"];

/// What a file says, as far as a reload looks at it.
#[derive(Clone)]
pub(crate) struct Reading {
    options: Options,
    config: Config,
    limits: Vec<(Target, Contract)>,
    /// Keys outside of the broker's options, each with its value.
    others: Vec<(&'static str, String)>,
    warnings: Vec<String>,
    shaper: Option<tidegate_shaper::config::Config>,
}

impl Reading {
    /// Of `tidegate.toml`.
    pub(crate) fn up(document: &Document) -> Result<(Settings, Self), ConfigError> {
        let settings = Settings::from_document(document, &settings::host())?;
        let reading = Self {
            options: settings::options_of(document)?,
            config: settings.broker.clone(),
            limits: settings.limits.clone(),
            others: others_of(&settings),
            warnings: settings.warnings.clone(),
            shaper: settings.shaper.clone(),
        };
        Ok((settings, reading))
    }

    /// Of the options of `tidegate broker`, file and flags together.
    pub(crate) fn broker(options: Options, config: Config) -> Self {
        let warnings = config.warnings.iter().map(ToString::to_string).collect();
        Self { options, config, limits: Vec::new(), others: Vec::new(), warnings, shaper: None }
    }
}

/// Keys outside of the broker's options that hold from the start, each with its value.
pub(crate) fn others_of(settings: &Settings) -> Vec<(&'static str, String)> {
    let console = settings.console.as_ref();
    vec![
        ("admin.token_file", settings.token_file.display().to_string()),
        ("console.address", console.map_or(String::new(), |console| console.address.to_string())),
        ("console.allowed_hosts", format!("{:?}", console.map(|console| &console.allowed_hosts))),
        ("console.poll_interval", format!("{:?}", console.map(|console| console.poll_interval))),
        ("store", settings.store.to_string()),
        ("log.format", format!("{:?}", settings.log_format)),
        ("proxy", presence(settings.proxy.is_some())),
        ("shaper", presence(settings.shaper.is_some())),
    ]
}

fn presence(is_there: bool) -> String {
    if is_there { "present".to_owned() } else { "absent".to_owned() }
}

/// Where the configuration comes from.
pub(crate) enum Source {
    /// There is no file.
    Defaults,
    /// `tidegate up` with this file.
    Up(PathBuf),
    /// `tidegate broker` with this file, and flags, which outrank it.
    Broker(PathBuf, Box<Options>),
}

/// Whether the log level of the file counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogLevelFrom {
    /// It does.
    File,
    /// `--log` on the command line outranks it.
    CommandLine,
}

/// Reads the file again when it is asked to.
pub(crate) struct Reload {
    source: Source,
    log_level_from: LogLevelFrom,
    /// What the process was started with.
    started: Reading,
    /// What the file said last of the keys that change live.
    log_level: LogLevel,
    lookupds: Vec<String>,
    warnings: Vec<String>,
    live: Live,
    limits: Limits,
    shaper: Option<ShaperReload>,
}

impl Reload {
    pub(crate) fn new(source: Source, log_level_from: LogLevelFrom, started: Reading, running: &Running) -> Self {
        Self {
            source,
            log_level_from,
            log_level: started.config.log_level,
            lookupds: started.config.lookupd_tcp_addresses.clone(),
            warnings: started.warnings.clone(),
            started,
            live: running.live.clone(),
            limits: running.limits.clone(),
            shaper: None,
        }
    }

    /// The same with a shaper, which follows the file too.
    pub(crate) fn with_shaper(self, shaper: Option<ShaperReload>) -> Self {
        Self { shaper, ..self }
    }

    /// Follows SIGHUP until `end`, which does not wait for the disk as a change of a limit does.
    pub(crate) async fn serve_until(&mut self, hangups: &mut Hangups, end: impl Future<Output = ()>) {
        hangups.follow(end, async || self.hangup().await).await;
    }

    /// SIGHUP came.
    pub(crate) async fn hangup(&mut self) {
        match self.read() {
            Ok(Some(reading)) => self.apply(reading).await,
            Ok(None) => tracing::info!("SIGHUP: there is no configuration file to read again"),
            Err(error) => tracing::warn!(%error, "SIGHUP: the file has an error, so the broker stays as it is"),
        }
    }

    fn read(&self) -> Result<Option<Reading>, ConfigError> {
        match &self.source {
            Source::Defaults => Ok(None),
            Source::Up(file) => Ok(Some(Reading::up(&Document::read(file)?)?.1)),
            Source::Broker(file, flags) => {
                let document = Document::read(file)?;
                let options = (**flags).clone().over(document.parse()?);
                let config = Config::from_options(options.clone(), &settings::host())
                    .map_err(|error| document.problem(error.key(), &error, settings::OPTIONS_HELP))?;
                Ok(Some(Reading::broker(options, config)))
            }
        }
    }

    async fn apply(&mut self, new: Reading) {
        let mut changes = self.apply_limits(new.limits).await;
        if let Some(shaper) = &mut self.shaper {
            changes += shaper.reload(new.shaper).await;
        }
        changes += self.apply_live(&new.config);
        for key in self.started.fixed_keys_changed(&new.options, &new.config, &new.others) {
            changes += 1;
            tracing::warn!("{key} has changed in the file: it holds from the next start");
        }
        for warning in new.warnings.iter().filter(|warning| !self.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        self.warnings = new.warnings;
        if changes == 0 {
            tracing::info!("SIGHUP: the file was read again; it changes nothing");
        }
    }

    async fn apply_limits(&self, limits: Vec<(Target, Contract)>) -> usize {
        match self.limits.set_file(limits).await {
            Ok(changes) => {
                changes.iter().for_each(say);
                changes.len()
            }
            Err(error) => {
                tracing::warn!(%error, "SIGHUP: not all limits of the file are in force");
                1
            }
        }
    }

    fn apply_live(&mut self, new: &Config) -> usize {
        let mut changes = 0;
        if new.log_level != self.log_level {
            changes += 1;
            let (from, to) = (self.log_level.as_str(), new.log_level.as_str());
            match self.log_level_from {
                LogLevelFrom::File => {
                    // Said before it counts: the new level may hide it.
                    tracing::info!(from, to, "log_level changed");
                    self.live.log_level.send_replace(new.log_level);
                }
                LogLevelFrom::CommandLine => {
                    tracing::warn!(
                        from,
                        to,
                        "log_level has changed in the file, but --log on the command line outranks it"
                    );
                }
            }
            self.log_level = new.log_level;
        }
        if new.lookupd_tcp_addresses != self.lookupds {
            changes += 1;
            tracing::info!(from = ?self.lookupds, to = ?new.lookupd_tcp_addresses, "nsqlookupd_tcp_addresses changed");
            self.live.lookupd_addresses.send_replace(new.lookupd_tcp_addresses.clone());
            self.lookupds.clone_from(&new.lookupd_tcp_addresses);
        }
        changes
    }
}

impl Reading {
    /// The keys that a running process does not follow and that are not as they were.
    fn fixed_keys_changed(&self, options: &Options, config: &Config, others: &[(&'static str, String)]) -> Vec<String> {
        let in_sections = !self.others.is_empty();
        let named = |key: &str| match (in_sections, key) {
            (false, key) => key.to_owned(),
            (true, "admin_address") => "admin.address".to_owned(),
            (true, key) => format!("broker.{key}"),
        };
        let same = |key: &str| self.config.nsqd_value(key).is_some_and(|value| config.nsqd_value(key) == Some(value));
        let options = self.options.differing(options);
        let options = options.into_iter().filter(|key| !LIVE_KEYS.contains(key) && !same(key)).map(named);
        let others =
            self.others.iter().zip(others).filter(|(old, new)| old != new).map(|((key, _), _)| (*key).to_owned());
        options.chain(others).collect()
    }
}

fn say(change: &FileChange) {
    let FileChange { target, before, after, outranked_by } = change;
    let (from, to) = (in_words(*before), in_words(*after));
    match outranked_by {
        None => tracing::info!(target_name = %target, from, to, "limit of the file changed"),
        Some(live) => tracing::info!(
            target_name = %target,
            from,
            to,
            in_force = in_words(Some(*live)),
            "limit of the file changed, but the one that was set live outranks it until it is removed"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(text: &str) -> Reading {
        Reading::up(&Document::new("tidegate.toml", text)).unwrap().1
    }

    fn changed(before: &str, after: &str) -> Vec<String> {
        let after = reading(after);
        reading(before).fixed_keys_changed(&after.options, &after.config, &after.others)
    }

    #[test]
    fn keys_that_need_a_start_are_named_as_they_stand_in_the_file() {
        let after =
            "[broker]\nmem_queue_size = 5\nshards = 3\n[admin]\naddress = '127.0.0.1:9'\n[console]\naddress = ''";
        assert_eq!(
            changed("", after),
            [
                "broker.mem_queue_size",
                "broker.shards",
                "admin.address",
                "console.address",
                "console.allowed_hosts",
                "console.poll_interval"
            ]
        );
    }

    #[test]
    fn what_changes_live_or_says_the_same_needs_no_start() {
        let live = "[broker]\nlog_level = 'debug'\nnsqlookupd_tcp_addresses = ['a:1']\n[[topic]]\nname = 't'\nrate = 1\nburst = 1";
        assert_eq!(changed("", live), Vec::<String>::new());
        assert_eq!(changed("", "[broker]\nmem_queue_size = 10000\nmsg_timeout = '60s'"), Vec::<String>::new());
    }
}
