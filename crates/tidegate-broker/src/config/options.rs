//! All options, as flags and as TOML keys.

use std::path::PathBuf;
use std::time::Duration;

use super::value::{
    self, ClientAuth, Durability, Invalid, LogLevel, QueuePolicy, Takes, TlsRequired, TlsVersion, Value,
};

/// A flag of the command line; most are also keys of the file.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Without dashes.
    pub name: &'static str,
    /// The key of the same option in the file; empty for what only the command line knows.
    pub key: &'static str,
    /// The kind of its value.
    pub takes: Takes,
    /// What is accepted, in words.
    pub accepted: &'static str,
    /// The default as one would write it; empty if there is none.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Whether a further occurrence adds to the value instead of replacing it.
    pub repeatable: bool,
}

/// An error of the command line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlagError {
    /// Nobody knows this flag.
    #[error("unknown flag -{name}")]
    Unknown {
        /// As written.
        name: String,
    },
    /// A flag at the end without its value.
    #[error("flag -{name} needs a value: {accepted}")]
    MissingValue {
        /// The flag.
        name: &'static str,
        /// What it takes.
        accepted: &'static str,
    },
    /// A value that is none.
    #[error("flag -{name}: {value:?} is not {accepted}")]
    BadValue {
        /// The flag.
        name: &'static str,
        /// As written.
        value: String,
        /// What it takes.
        accepted: &'static str,
    },
    /// `-=x` or `---x`.
    #[error("{argument:?} is not a flag")]
    Malformed {
        /// As written.
        argument: String,
    },
}

/// What the command line asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// To run the broker.
    Run,
    /// To print the version.
    Version,
    /// To print the flags.
    Help,
}

/// A command line, read.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// What to do.
    pub action: Action,
    /// `-config`: the file under these options.
    pub config: Option<PathBuf>,
    /// The options given as flags.
    pub options: Options,
    /// The arguments from the first one on that is not a flag. nsqd ignores them, and so `-tls-required true false`
    /// starts; whoever runs the broker should say that it did not look at them.
    pub ignored: Vec<String>,
}

/// Declares [`Options`] and [`FLAGS`] from one list, so that flag, key, default and help cannot part ways.
macro_rules! options {
    (only_flags { $($only:literal: $takes:expr, $only_help:literal;)+ }
     $($flag:literal = $key:ident: $type:ty, $default:literal, $help:literal;)+) => {
        /// All options as users gave them, in a file or as flags; what they left out is `None`.
        #[derive(Clone, Default, PartialEq, Debug, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Options {
            $(
                #[doc = $help]
                #[serde(deserialize_with = "value::deserialize")]
                pub $key: Option<$type>,
            )+
        }

        /// All flags, by area.
        pub static FLAGS: &[Flag] = &[
            $(Flag { name: $only, key: "", takes: $takes, accepted: "", default: "", help: $only_help, repeatable: false },)+
            $(Flag {
                name: $flag,
                key: stringify!($key),
                takes: <$type>::TAKES,
                accepted: <$type>::ACCEPTED,
                default: $default,
                help: $help,
                repeatable: <$type>::REPEATABLE,
            },)+
        ];

        impl Options {
            /// Takes the flag `name` (without dashes) with the text of its value. A repeatable flag adds.
            pub fn apply_flag(&mut self, name: &str, text: &str) -> Result<(), FlagError> {
                match name {
                    $($flag => apply($flag, &mut self.$key, text),)+
                    _ => Err(FlagError::Unknown { name: name.to_owned() }),
                }
            }

            /// The keys that have another value in `other`, or a value in only one of the two.
            #[must_use]
            pub fn differing(&self, other: &Self) -> Vec<&'static str> {
                let keys = [$((stringify!($key), self.$key != other.$key),)+];
                keys.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
            }

            /// These options where given, else those of `base`. A list is taken whole.
            #[must_use]
            pub fn over(self, base: Self) -> Self {
                Self { $($key: self.$key.or(base.$key),)+ }
            }
        }
    };
}

options! {
    only_flags {
        "version": Takes::Switch, "Print the version and leave.";
        "config": Takes::Path, "TOML file with the options below; flags outrank it.";
        "verbose": Takes::Switch, "Has no effect; kept for old command lines.";
        "worker-id": Takes::Switch, "Has no effect; kept for old command lines.";
    }
    "log-level" = log_level: LogLevel, "info", "Least severity that is logged.";
    "log-prefix" = log_prefix: String, "[nsqd] ", "Text in front of every log line.";
    "node-id" = id: i64, "", "Distinguishes this broker's message ids from its peers', 0 to 1023; by default from the host name.";
    "tcp-address" = tcp_address: String, "0.0.0.0:4150", "Where clients connect: address:port, or the path of a unix socket.";
    "http-address" = http_address: String, "0.0.0.0:4151", "Where the HTTP API listens: address:port, the path of a unix socket, or empty for none.";
    "https-address" = https_address: String, "0.0.0.0:4152", "Where the HTTP API listens with TLS, if there is a certificate.";
    "http-max-connections" = http_max_connections: i64, "1024", "Connections to each HTTP address at a time, half of them from one client address; beyond, the one that has waited longest for its client ends.";
    "http-allowed-host" = http_allowed_hosts: Vec<String>, "*", "A name, beside IP addresses, localhost and broadcast-address, that writes may call the HTTP API by; * for any.";
    "http-allowed-origin" = http_allowed_origins: Vec<String>, "", "A web origin, scheme and host, beside the API's own, whose pages may write over the HTTP API; * for any.";
    "http-token-file" = http_token_file: PathBuf, "", "File with the token that writes over the HTTP API must show, made at the first start; by default none is asked for.";
    "broadcast-address" = broadcast_address: String, "", "Host that nsqlookupd tells consumers; by default the host name.";
    "broadcast-tcp-port" = broadcast_tcp_port: i64, "0", "TCP port that nsqlookupd tells consumers; 0 for the one we listen on.";
    "broadcast-http-port" = broadcast_http_port: i64, "0", "HTTP port that nsqlookupd tells tools; 0 for the one we listen on.";
    "lookupd-tcp-address" = nsqlookupd_tcp_addresses: Vec<String>, "", "An nsqlookupd to register with.";
    "auth-http-address" = auth_http_addresses: Vec<String>, "", "An AUTH server, as address:port or URL. With any, clients must authenticate.";
    "http-client-connect-timeout" = http_client_connect_timeout: Duration, "2s", "Patience for connecting to nsqlookupd and AUTH servers over HTTP.";
    "http-client-request-timeout" = http_client_request_timeout: Duration, "5s", "Patience for an answer of theirs.";

    "data-path" = data_path: PathBuf, "", "Folder of the queues that outgrew memory and of nsqd.dat; by default the working folder.";
    "mem-queue-size" = mem_queue_size: i64, "10000", "Messages that each topic and each channel keep in memory.";
    "max-bytes-per-file" = max_bytes_per_file: i64, "104857600", "Size at which a queue on disk starts its next file.";
    "sync-every" = sync_every: i64, "2500", "Records written or read between two syncs of a queue on disk.";
    "sync-timeout" = sync_timeout: Duration, "2s", "Longest time between two syncs of a queue on disk that is in use.";
    "queue-scan-worker-pool-max" = queue_scan_worker_pool_max: i64, "4", "Has no effect: timeouts are kept by exact timers, not found by scanning.";
    "queue-scan-selection-count" = queue_scan_selection_count: i64, "20", "Has no effect: timeouts are kept by exact timers, not found by scanning.";

    "msg-timeout" = msg_timeout: Duration, "60s", "Time a consumer has for a message, unless it negotiates another.";
    "max-msg-timeout" = max_msg_timeout: Duration, "15m", "Longest time that a consumer can get for a message.";
    "max-msg-size" = max_msg_size: i64, "1048576", "Largest body of a message, in bytes.";
    "max-req-timeout" = max_req_timeout: Duration, "1h", "Longest time by which a message can be deferred.";
    "max-body-size" = max_body_size: i64, "5242880", "Largest body of a command or request, in bytes.";

    "max-heartbeat-interval" = max_heartbeat_interval: Duration, "60s", "Longest time between heartbeats that a client can ask for.";
    "max-rdy-count" = max_rdy_count: i64, "2500", "Most messages that a client may have in flight.";
    "max-output-buffer-size" = max_output_buffer_size: i64, "65536", "Largest output buffer that a client can ask for, in bytes.";
    "max-output-buffer-timeout" = max_output_buffer_timeout: Duration, "30s", "Longest output buffering that a client can ask for.";
    "min-output-buffer-timeout" = min_output_buffer_timeout: Duration, "25ms", "Shortest output buffering that a client can ask for.";
    "output-buffer-timeout" = output_buffer_timeout: Duration, "250ms", "Output buffering of clients that do not ask.";
    "max-channel-consumers" = max_channel_consumers: i64, "0", "Most consumers of a channel; 0 for no bound.";

    "statsd-address" = statsd_address: String, "", "host:port of a statsd server that figures are pushed to over UDP, with nsqd's names; by default none.";
    "statsd-prefix" = statsd_prefix: String, "nsq.%s", "What the names begin with; %s becomes the broadcast host and HTTP port.";
    "statsd-interval" = statsd_interval: Duration, "60s", "Time between two pushes.";
    "statsd-mem-stats" = statsd_mem_stats: bool, "true", "Push memory figures too.";
    "statsd-udp-packet-size" = statsd_udp_packet_size: i64, "508", "Most bytes of one packet, up to 65507; 0 for 4096.";
    "statsd-exclude-ephemeral" = statsd_exclude_ephemeral: bool, "false", "Leave ephemeral topics and channels out.";

    "e2e-processing-latency-percentile" = e2e_processing_latency_percentiles: Vec<f64>, "", "Quantiles above 0 and up to 1 of the time from publish to FIN that /stats shows, several with commas between.";
    "e2e-processing-latency-window-time" = e2e_processing_latency_window_time: Duration, "10m", "Time that these quantiles look back.";

    "tls-cert" = tls_cert: PathBuf, "", "PEM file with our certificate chain.";
    "tls-key" = tls_key: PathBuf, "", "PEM file with its private key.";
    "tls-client-auth-policy" = tls_client_auth_policy: ClientAuth, "", "What is asked of clients' certificates: require or require-verify; either also requires TLS.";
    "tls-root-ca-file" = tls_root_ca_file: PathBuf, "", "PEM file with the authorities that vouch for clients and AUTH servers.";
    "tls-required" = tls_required: TlsRequired, "false", "Turn clients without TLS away: true, false, or tcp-https to leave the plain HTTP address open.";
    "tls-min-version" = tls_min_version: TlsVersion, "tls1.0", "Oldest TLS version to speak; below tls1.2 nothing is spoken in any case.";

    "deflate" = deflate: bool, "true", "Let clients negotiate deflate.";
    "max-deflate-level" = max_deflate_level: i64, "6", "Highest deflate level that a client can ask for, 1 to 9.";
    "snappy" = snappy: bool, "true", "Let clients negotiate snappy.";

    "shards" = shards: i64, "", "Threads that share the topics, 1 to 256; by default one for each CPU.";
    "spread-topic" = spread_topics: Vec<String>, "", "A topic whose publishers stay on all shards, each with a share of its limit, where one shard is too few for it; it still lives on one.";
    "admin-address" = admin_address: String, "", "Where Tidegate's own admin API listens: address:port or the path of a unix socket; by default nowhere, so that several brokers run on one machine with nsqd's flags.";
    "lend-address" = lend_address: String, "127.0.0.1:0", "Where datagrams of brokers come in that lend tokens of topics' limits to each other: the IP:port of one interface, with the next ports for further shards, or port 0 for any; empty for nowhere.";
    "lend-key-file" = lend_key_file: PathBuf, "", "File with the key that these datagrams are signed with, 32 hexadecimal digits, the same for all brokers; further lines are keys that are still read. Needed where lend-address is not loopback.";
    "max-queue-bytes" = max_queue_bytes: i64, "67108864", "Bytes of messages that each topic and each channel keep in memory, beside mem-queue-size.";
    "queue-policy" = queue_policy: QueuePolicy, "overflow", "What a queue does at its bound: overflow to disk, hold its publishers back, refuse, or drop its oldest message.";
    "max-line-bytes" = max_line_bytes: i64, "16777216", "Bytes of messages that wait for a topic's tokens before its publishers are held back.";
    "durability" = durability: Durability, "memory", "What a publisher's OK means; memory is nsqd's promise.";
    "seed" = seed: i64, "", "Seed of sampling and other random choices; by default a fresh one.";
}

fn apply<T: Value>(name: &'static str, slot: &mut Option<T>, text: &str) -> Result<(), FlagError> {
    let value = T::from_text(text).map_err(|Invalid| FlagError::BadValue {
        name,
        value: text.to_owned(),
        accepted: T::ACCEPTED,
    })?;
    match slot {
        Some(earlier) => earlier.add(value),
        None => *slot = Some(value),
    }
    Ok(())
}

impl Flag {
    /// The flag called `name`, without dashes.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// The option whose key in the file is `key`.
    #[must_use]
    pub fn find_key(key: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.key == key && !key.is_empty())
    }
}

impl Options {
    /// Reads arguments in Go's syntax: `-name=value`, `--name value`, `-switch`; `--` or the first other argument ends
    /// the flags.
    pub fn from_flags<I>(arguments: I) -> Result<CommandLine, FlagError>
    where
        I: IntoIterator<Item: Into<String>>,
    {
        let mut line = CommandLine { action: Action::Run, config: None, options: Self::default(), ignored: Vec::new() };
        let mut arguments = arguments.into_iter().map(Into::into);
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                line.ignored.extend(arguments.by_ref());
                break;
            }
            let Some(named) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
                line.ignored.push(argument);
                line.ignored.extend(arguments.by_ref());
                break;
            };
            if named.is_empty() {
                // A lone dash is an argument, not a flag.
                line.ignored.push(argument);
                line.ignored.extend(arguments.by_ref());
                break;
            }
            if named.starts_with(['-', '=']) {
                return Err(FlagError::Malformed { argument });
            }
            let (name, value) = match named.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (named, None),
            };
            line.take(name, value, &mut arguments)?;
        }
        Ok(line)
    }
}

impl CommandLine {
    fn take(
        &mut self,
        name: &str,
        value: Option<String>,
        rest: &mut impl Iterator<Item = String>,
    ) -> Result<(), FlagError> {
        if matches!(name, "h" | "help") {
            self.action = Action::Help;
            return Ok(());
        }
        let flag = Flag::find(name).ok_or_else(|| FlagError::Unknown { name: name.to_owned() })?;
        let value = match value {
            Some(value) => value,
            None if flag.takes.is_switch() => "true".to_owned(),
            None => rest.next().ok_or(FlagError::MissingValue { name: flag.name, accepted: flag.accepted })?,
        };
        match flag.name {
            "config" => self.config = (!value.is_empty()).then(|| value.into()),
            "version" | "verbose" | "worker-id" => {
                let on = bool::from_text(&value).map_err(|Invalid| FlagError::BadValue {
                    name: flag.name,
                    value,
                    accepted: bool::ACCEPTED,
                })?;
                if flag.name == "version" && on {
                    self.action = Action::Version;
                }
            }
            name => self.options.apply_flag(name, &value)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<CommandLine, FlagError> {
        Options::from_flags(arguments.iter().copied())
    }

    /// The names are nsqd 1.3.0's; a flag that goes missing here breaks somebody's unit file.
    #[test]
    fn every_flag_of_nsqd_is_there() {
        let nsqd = "version config log-level log-prefix verbose node-id worker-id https-address http-address \
            tcp-address auth-http-address broadcast-address broadcast-tcp-port broadcast-http-port \
            lookupd-tcp-address http-client-connect-timeout http-client-request-timeout data-path mem-queue-size \
            max-bytes-per-file sync-every sync-timeout queue-scan-worker-pool-max queue-scan-selection-count \
            msg-timeout max-msg-timeout max-msg-size max-req-timeout max-body-size max-heartbeat-interval \
            max-rdy-count max-output-buffer-size max-output-buffer-timeout min-output-buffer-timeout \
            output-buffer-timeout max-channel-consumers statsd-address statsd-interval statsd-mem-stats \
            statsd-prefix statsd-udp-packet-size statsd-exclude-ephemeral e2e-processing-latency-percentile \
            e2e-processing-latency-window-time tls-cert tls-key tls-client-auth-policy tls-root-ca-file \
            tls-required tls-min-version deflate max-deflate-level snappy";
        let names: Vec<&str> = nsqd.split_whitespace().collect();
        assert_eq!(names.len(), 53);
        for name in names {
            let flag = Flag::find(name).unwrap_or_else(|| panic!("-{name} is missing"));
            // nsqd's key is its flag with underscores, but for these four.
            let key = match name {
                "node-id" => "id",
                "lookupd-tcp-address" => "nsqlookupd_tcp_addresses",
                "auth-http-address" => "auth_http_addresses",
                "e2e-processing-latency-percentile" => "e2e_processing_latency_percentiles",
                "version" | "config" | "verbose" | "worker-id" => "",
                other => &other.replace('-', "_"),
            };
            assert_eq!(flag.key, key);
        }
    }

    #[test]
    fn all_forms_of_gos_syntax() {
        let line = read(&[
            "-tcp-address=:1",
            "--http-address=:2",
            "--data-path",
            "/d",
            "-snappy=false",
            "-deflate",
            "-lookupd-tcp-address=a:1",
            "-lookupd-tcp-address",
            "b:2",
            "-statsd-prefix=a=b",
        ])
        .unwrap();
        let options = line.options;
        assert_eq!(options.tcp_address.as_deref(), Some(":1"));
        assert_eq!(options.http_address.as_deref(), Some(":2"));
        assert_eq!(options.data_path.as_deref(), Some(std::path::Path::new("/d")));
        assert_eq!((options.snappy, options.deflate), (Some(false), Some(true)));
        assert_eq!(options.nsqlookupd_tcp_addresses, Some(vec!["a:1".to_owned(), "b:2".to_owned()]));
        assert_eq!(options.statsd_prefix.as_deref(), Some("a=b"));
        assert!(line.ignored.is_empty());
    }

    #[test]
    fn switches_do_not_take_the_next_argument() {
        let line = read(&["-tls-required", "tcp-https", "-snappy=false"]).unwrap();
        assert_eq!(line.options.tls_required, Some(TlsRequired::Yes));
        assert_eq!(line.ignored, ["tcp-https", "-snappy=false"]);
        assert_eq!(read(&["--", "-x"]).unwrap().ignored, ["-x"]);
        assert_eq!(read(&["-"]).unwrap().ignored, ["-"]);
    }

    #[test]
    fn actions_and_the_file() {
        assert_eq!(read(&["-version"]).unwrap().action, Action::Version);
        assert_eq!(read(&["-version=false"]).unwrap().action, Action::Run);
        assert_eq!(read(&["--help"]).unwrap().action, Action::Help);
        assert_eq!(read(&["-config=a.toml"]).unwrap().config, Some("a.toml".into()));
    }

    #[test]
    fn errors_name_flag_value_and_what_is_accepted() {
        let text = |arguments: &[&str]| read(arguments).unwrap_err().to_string();
        assert_eq!(text(&["-nope"]), "unknown flag -nope");
        assert_eq!(text(&["---x"]), "\"---x\" is not a flag");
        assert_eq!(text(&["-mem-queue-size"]), "flag -mem-queue-size needs a value: a whole number");
        assert_eq!(text(&["-mem-queue-size=x"]), "flag -mem-queue-size: \"x\" is not a whole number");
        assert!(text(&["-msg-timeout=60"]).contains("\"60\" is not a duration such as"));
        assert_eq!(text(&["-verbose=2"]), "flag -verbose: \"2\" is not true or false");
    }

    #[test]
    fn later_sources_override_earlier_ones_key_by_key() {
        let flags = read(&["-msg-timeout=1s", "-lookupd-tcp-address=a:1"]).unwrap().options;
        let file = Options {
            msg_timeout: Some(Duration::from_secs(9)),
            mem_queue_size: Some(3),
            nsqlookupd_tcp_addresses: Some(vec!["x:1".into(), "y:1".into()]),
            ..Options::default()
        };
        let both = flags.over(file);
        assert_eq!(both.msg_timeout, Some(Duration::from_secs(1)));
        assert_eq!(both.mem_queue_size, Some(3));
        assert_eq!(both.nsqlookupd_tcp_addresses, Some(vec!["a:1".to_owned()]));
    }

    #[cfg(feature = "io")]
    #[test]
    fn a_file_may_write_what_nsqds_may() {
        let options: Options = toml::from_str(
            r#"
            log_level = "WARN"
            id = "7"
            nsqlookupd_tcp_addresses = "a:1,b:2"
            auth_http_addresses = ["c:3"]
            sync_timeout = 1500
            msg_timeout = "1m"
            tls_required = "tcp-https"
            e2e_processing_latency_percentiles = [1.0, 0.99]
            snappy = "false"
            "#,
        )
        .unwrap();
        assert_eq!(options.log_level, Some(LogLevel::Warn));
        assert_eq!(options.id, Some(7));
        assert_eq!(options.nsqlookupd_tcp_addresses, Some(vec!["a:1".to_owned(), "b:2".to_owned()]));
        assert_eq!(options.auth_http_addresses, Some(vec!["c:3".to_owned()]));
        assert_eq!(options.sync_timeout, Some(Duration::from_millis(1500)));
        assert_eq!(options.msg_timeout, Some(Duration::from_mins(1)));
        assert_eq!(options.tls_required, Some(TlsRequired::ExceptHttp));
        assert_eq!(options.e2e_processing_latency_percentiles, Some(vec![1.0, 0.99]));
        assert_eq!(options.snappy, Some(false));
    }

    #[cfg(feature = "io")]
    #[test]
    fn a_files_errors_carry_their_place() {
        let error = toml::from_str::<Options>("log_level = \"info\"\nmsg_timeout = \"sixty\"\n").unwrap_err();
        assert_eq!(error.span(), Some(33..40), "that of the value");
        assert!(error.message().contains("expected a duration such as"), "{}", error.message());
        let error = toml::from_str::<Options>("max_mesage_size = 1\n").unwrap_err();
        assert!(error.message().contains("unknown field `max_mesage_size`"), "{}", error.message());
        assert!(toml::from_str::<Options>("snappy = 1\n").is_err(), "no silent truth from numbers");
    }
}
