//! `/stats` for people, in nsqd's layout.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::stats::{Latency, Stats, accepted, depth};
use crate::machine::snapshot::{ChannelSnapshot, ClientSnapshot, TopicSnapshot};

/// The text, as of `now_s` (Unix time), after `uptime`.
pub(super) struct StatsText<'a> {
    pub(super) stats: &'a Stats,
    pub(super) now_s: i64,
    pub(super) uptime: Duration,
}

impl Display for StatsText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let stats = self.stats;
        writeln!(f, "nsqd v{} (built w/tidegate {})", super::NSQD_VERSION, env!("CARGO_PKG_VERSION"))?;
        writeln!(f, "start_time {}", Date(stats.start_time))?;
        writeln!(f, "uptime {}", Span(self.uptime))?;
        writeln!(f, "\nHealth: {}", stats.health)?;
        if let Some(bytes) = stats.resident_bytes {
            write_memory(f, bytes)?;
        }
        let topics = stats.topics.as_deref().unwrap_or_default();
        f.write_str(if topics.is_empty() { "\nTopics: None\n" } else { "\nTopics:" })?;
        for topic in topics {
            self.write_topic(f, topic)?;
        }
        f.write_str(if stats.producers.is_empty() { "\nProducers: None\n" } else { "\nProducers:\n" })?;
        for client in &stats.producers {
            writeln!(f, "   {}", self.client(client))?;
        }
        Ok(())
    }
}

fn write_memory(f: &mut Formatter<'_>, resident_bytes: u64) -> fmt::Result {
    f.write_str("\nMemory:\n")?;
    for (name, value) in [
        ("heap_objects", 0),
        ("heap_idle_bytes", 0),
        ("heap_in_use_bytes", resident_bytes),
        ("heap_released_bytes", 0),
        ("gc_pause_usec_100", 0),
        ("gc_pause_usec_99", 0),
        ("gc_pause_usec_95", 0),
        ("next_gc_bytes", 0),
        ("gc_total_runs", 0),
    ] {
        writeln!(f, "   {name:<25}\t{value}")?;
    }
    Ok(())
}

impl StatsText<'_> {
    fn write_topic(&self, f: &mut Formatter<'_>, topic: &TopicSnapshot) -> fmt::Result {
        writeln!(
            f,
            "\n{}[{:<15}] depth: {:<5} be-depth: {:<5} msgs: {:<8} e2e%: {}",
            if topic.paused { "*P " } else { "   " },
            topic.name,
            depth(topic),
            topic.backend_depth,
            accepted(topic),
            Latency::of_topic(topic, &self.stats.quantiles),
        )?;
        topic.channels.iter().try_for_each(|channel| self.write_channel(f, channel))
    }

    fn write_channel(&self, f: &mut Formatter<'_>, channel: &ChannelSnapshot) -> fmt::Result {
        writeln!(
            f,
            "{}[{:<25}] depth: {:<5} be-depth: {:<5} inflt: {:<4} def: {:<4} re-q: {:<5} timeout: {:<5} msgs: {:<8} \
             e2e%: {}",
            if channel.paused { "   *P " } else { "      " },
            channel.name,
            channel.depth,
            channel.backend_depth,
            channel.in_flight,
            channel.deferred,
            channel.requeued_total,
            channel.timed_out_total,
            channel.message_total,
            Latency::of_channel(channel, &self.stats.quantiles),
        )?;
        channel.clients.iter().try_for_each(|client| writeln!(f, "        {}", self.client(client)))
    }

    fn client(&self, client: &ClientSnapshot) -> String {
        let port = client.remote_address.rsplit_once(':').map_or("", |(_, port)| port);
        let who = format!("{}:{port} {}", client.hostname, client.user_agent);
        let connected = u64::try_from(self.now_s.saturating_sub(client.connect_ts)).unwrap_or(0);
        let connected = Span(Duration::from_secs(connected));
        let version = client.version;
        if client.pub_counts.is_empty() {
            return format!(
                "[{version} {who:<21}] state: {} inflt: {:<4} rdy: {:<4} fin: {:<8} re-q: {:<8} msgs: {:<8} connected: \
                 {connected}",
                client.state,
                client.in_flight_count,
                client.ready_count,
                client.finish_count,
                client.requeue_count,
                client.message_count,
            );
        }
        let total: u64 = client.pub_counts.iter().map(|(_, count)| count).sum();
        let topics: Vec<String> = client.pub_counts.iter().map(|(topic, count)| format!("{topic}={count}")).collect();
        format!("[{version} {who:<21}] msgs: {total:<8} topics: {} connected: {connected}", topics.join(","))
    }
}

impl Display for Latency {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, percentile) in self.percentiles.iter().flatten().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
            let ns = percentile.value as f64;
            match percentile.value {
                0..=1_000 => write!(f, "{ns:.1}ns"),
                1_001..=1_000_000 => write!(f, "{:.1}us", ns / 1e3),
                1_000_001..=1_000_000_000 => write!(f, "{:.1}ms", ns / 1e6),
                _ => write!(f, "{:.1}s", ns / 1e9),
            }?;
        }
        Ok(())
    }
}

/// A span as Go prints it: `1h2m3.5s`, `413.36ms`, `5µs`.
struct Span(Duration);

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (whole, ns) = (self.0.as_secs(), self.0.subsec_nanos());
        if whole == 0 && ns > 0 {
            let (unit_ns, unit) = match ns {
                0..1_000 => (1, "ns"),
                1_000..1_000_000 => (1_000, "µs"),
                _ => (1_000_000, "ms"),
            };
            return write!(f, "{}{}{unit}", ns / unit_ns, Fraction { part: ns % unit_ns, of: unit_ns });
        }
        let (hours, minutes, seconds) = (whole / 3_600, whole / 60 % 60, whole % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if whole >= 60 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{seconds}{}s", Fraction { part: ns, of: 1_000_000_000 })
    }
}

/// `part / of` as decimals without trailing zeros; nothing for zero. `of` is a power of ten.
struct Fraction {
    part: u32,
    of: u32,
}

impl Display for Fraction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.part == 0 {
            return Ok(());
        }
        let digits = format!("{:0width$}", self.part, width = self.of.ilog10() as usize);
        write!(f, ".{}", digits.trim_end_matches('0'))
    }
}

/// A second of Unix time as RFC 3339 in UTC.
struct Date(i64);

impl Display for Date {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        // Years are counted from March, so that the leap day is the last; an era of 400 years has 146,097 days, and
        // 0000-03-01 is 719,468 days before 1970-01-01.
        let days = days + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        // From March on, five months have 153 days.
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, year) = if month < 10 { (month + 3, era * 400 + year) } else { (month - 9, era * 400 + year + 1) };
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_look_like_gos() {
        for (ns, text) in [
            (0, "0s"),
            (17, "17ns"),
            (5_000, "5µs"),
            (413_360_452, "413.360452ms"),
            (1_500_000_000, "1.5s"),
            (60_000_000_000, "1m0s"),
            (3_661_000_000_001, "1h1m1.000000001s"),
        ] {
            assert_eq!(Span(Duration::from_nanos(ns)).to_string(), text);
        }
    }

    #[test]
    fn dates_know_leap_years() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_795_220_015, "2026-11-21T00:13:35Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(Date(unix_s).to_string(), text);
        }
    }
}
