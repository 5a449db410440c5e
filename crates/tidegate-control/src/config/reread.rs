//! What of a configuration can change while control runs.

use std::fmt::Debug;

use tidegate_runtime::config::{ConfigError, Document};

use super::{Config, Topic};

/// What to do about a key that holds from the start.
pub const RESTART: &str = "it holds from the next start: change it back, or start control again";

impl Config {
    /// What `document` says now, to be put in the place of `self`, which is in force: brokers, topics and all of a topic
    /// but its unit may be others, and `ready_timeout` and `on_out_of_brokers`. Proxies and their limits hold from the start.
    ///
    /// # Errors
    /// What is wrong, or cannot change, with file, line, key, value and remedy. Then nothing changes.
    pub fn reread(&self, document: &Document) -> Result<Self, ConfigError> {
        let new = Self::from_document(document)?;
        self.check_fixed(&new, document)?;
        Ok(new)
    }

    fn check_fixed(&self, new: &Self, document: &Document) -> Result<(), ConfigError> {
        let same = |key: &str, before: &dyn Debug, now: &dyn Debug| {
            let (before, now) = (format!("{before:?}"), format!("{now:?}"));
            if before == now {
                Ok(())
            } else {
                Err(refused(document, &format!("control.{key}"), &before, &now, RESTART))
            }
        };
        same("listen", &self.listen, &new.listen)?;
        same("name", &self.name, &new.name)?;
        same("token_file", &self.token_file, &new.token_file)?;
        same("store", &self.store, &new.store)?;
        same("lease", &self.lease, &new.lease)?;
        let lists = [
            ("proxies", format!("{:?}", self.proxies) == format!("{:?}", new.proxies)),
            ("limit", format!("{:?}", self.limits) == format!("{:?}", new.limits)),
        ];
        if let Some((key, _)) = lists.into_iter().find(|(_, is_same)| !is_same) {
            return Err(refused(document, &format!("control.{key}"), "the list of the start", "another list", RESTART));
        }
        for (index, topic) in new.topics.iter().enumerate() {
            let has_other_unit = |before: &&Topic| before.name == topic.name && before.unit != topic.unit;
            if let Some(before) = self.topics.iter().find(has_other_unit) {
                let (before, now) = (before.unit.word(), topic.unit.word());
                let remedy = "tokens of one unit are none of the other: take the topic out of the file, read it again, and \
                              then add the topic with its new unit";
                return Err(refused(document, &format!("control.topic[{index}].unit"), before, now, remedy));
            }
        }
        Ok(())
    }
}

/// A key that does not change while the process runs.
#[must_use]
pub fn refused(document: &Document, key: &str, before: &str, now: &str, remedy: &str) -> ConfigError {
    document.problem(key, format_args!("found {now}, and {before} is in force"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[control]\nlease = \"10s\"\nnodes = [ { name = \"a\", admin = \"http://h:1\", nsq = \"h:2\" } ]\n\
                        [[control.topic]]\nname = \"orders\"\nrate = 10\nburst = 5\nunit = \"messages\"\n";

    fn reread(from: &str, to: &str) -> Result<Config, String> {
        let document = |text: String| Document::new("t.toml", text);
        let running = Config::from_document(&document(FILE.to_owned())).unwrap();
        running.reread(&document(FILE.replace(from, to))).map_err(|error| error.to_string())
    }

    #[test]
    fn brokers_topics_and_what_belongs_to_them_can_change() {
        let more = "nodes = [ { name = \"b\", admin = \"http://h:3\", nsq = \"h:4\" }, ";
        assert_eq!(reread("nodes = [ ", more).unwrap().nodes.len(), 2);
        assert_eq!(reread("burst = 5", "burst = 6\nslo = \"p99 <= 2ms\"").unwrap().topics[0].limit.burst, 6);
        assert_eq!(reread("\"orders\"", "\"others\"\nlend = \"on\"").unwrap().topics[0].name, "others");
        assert!(reread("lease = \"10s\"", "lease = \"10s\"\nready_timeout = \"7s\"").is_ok());
    }

    #[test]
    fn what_cannot_change_is_refused_where_it_stands() {
        for (from, to, said) in [
            ("lease = \"10s\"", "lease = \"9s\"", "t.toml:2: control.lease: found 9s, and 10s is in force"),
            (
                "[control]\n",
                "[control]\nname = \"x\"\n",
                "t.toml:2: control.name: found Some(\"x\"), and None is in force",
            ),
            ("[control]\n", "[control]\nlisten = \"[::1]:9\"\n", "t.toml:2: control.listen: found [::1]:9"),
            ("[control]\n", "[control]\nstore = \"x\"\n", "t.toml:2: control.store: found"),
            ("\"messages\"", "\"bytes\"", "t.toml:8: control.topic[0].unit: found bytes, and messages is in force"),
            ("burst = 5", "burst = 0", "t.toml:7: control.topic[0].burst: found 0"),
        ] {
            let error = reread(from, to).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
