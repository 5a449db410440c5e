//! Figures pushed to a statsd server, with nsqd's names and meanings, so that dashboards made for nsqd go on.
//!
//! Each interval one snapshot is taken, without the delays that only Tidegate's own API shows. Counters are sent as what
//! was added since the interval before, everything else as gauges. Packets hold whole lines and are spread over the
//! interval, but for its last second.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tidegate_runtime::process;
use tokio::net::{UdpSocket, lookup_host};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::handle::BrokerHandle;
use super::http::{accepted, accepted_bytes, depth};
use crate::config::Statsd;
use crate::machine::admin::{AdminReply, AdminRequest, Delays, SnapshotScope};
use crate::machine::snapshot::{ChannelSnapshot, TopicSnapshot};

/// Patience for the address of the server's name.
const LOOKUP: Duration = Duration::from_secs(1);
/// At the end of an interval nothing is sent, as with nsqd.
const QUIET: Duration = Duration::from_secs(1);
const EPHEMERAL: &str = "#ephemeral";

/// What a name begins with: `prefix` with `%s` replaced by the broker's host and HTTP port, and a dot at its end.
#[must_use]
pub fn prefix(prefix: &str, broadcast_address: &str, http_port: u16) -> String {
    let host =
        if broadcast_address.contains(':') { format!("[{broadcast_address}]") } else { broadcast_address.to_owned() };
    let host = format!("{host}:{http_port}").replace(['.', ':'], "_");
    let mut whole = prefix.replace("%s", &host);
    if !whole.is_empty() && !whole.ends_with('.') {
        whole.push('.');
    }
    whole
}

/// Pushes to `options.address` until `stop`; what is under way then is sent at once. `prefix` is whole, as [`prefix`]
/// makes it; `quantiles` are those of the end-to-end latency that the configuration asks for.
pub async fn run(
    options: Statsd,
    address: String,
    prefix: String,
    quantiles: Vec<f64>,
    broker: BrokerHandle,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    let mut ticks = interval_at(Instant::now() + options.interval, options.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut last = Counters::default();
    let mut fails = false;
    loop {
        tokio::select! {
            () = &mut stop => return,
            _ = ticks.tick() => {}
        }
        let topics = topics(&broker).await;
        let mut packets = Packets::new(&prefix, options.packet_bytes);
        last = packets.write_topics(&topics, &last, &quantiles, options.exclude_ephemeral);
        drop(topics);
        if options.mem_stats {
            packets.write_memory(process::resident_bytes().unwrap_or(0));
        }
        let pushed = push(&address, packets.finish(), options.interval.saturating_sub(QUIET), &mut stop).await;
        // Only changes are logged.
        match &pushed {
            Err(error) if !fails => tracing::warn!(%error, address, "statsd gets no figures; trying on"),
            Ok(Pushed::All | Pushed::AllAtTheEnd) if fails => tracing::info!(address, "statsd gets figures again"),
            _ => {}
        }
        fails = pushed.is_err();
        if matches!(pushed, Ok(Pushed::AllAtTheEnd)) {
            return;
        }
    }
}

async fn topics(broker: &BrokerHandle) -> Vec<TopicSnapshot> {
    let scope = SnapshotScope { delays: Delays::Without, ..SnapshotScope::default() };
    let replies = broker.ask_all(&AdminRequest::Snapshot(scope)).await;
    let snapshots =
        replies.into_iter().filter_map(|reply| if let AdminReply::Snapshot(s) = reply { Some(s) } else { None });
    let mut topics: Vec<_> = snapshots.flat_map(|snapshot| snapshot.topics).collect();
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    topics
}

enum Pushed {
    All,
    /// `stop` came meanwhile.
    AllAtTheEnd,
}

/// Sends `packets` spread over `spread`, or at once after `stop`. One that is not taken does not hold up the others.
async fn push(
    address: &str,
    packets: Vec<Vec<u8>>,
    spread: Duration,
    mut stop: impl Future<Output = ()> + Unpin,
) -> io::Result<Pushed> {
    let target = timeout(LOOKUP, lookup_host(address)).await??.next();
    let target = target.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))?;
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(target).await?;
    let pause = spread / u32::try_from(packets.len().max(1)).unwrap_or(u32::MAX);
    let mut outcome = Ok(Pushed::All);
    for packet in packets {
        if let Err(error) = socket.send(&packet).await {
            outcome = Err(error);
        }
        if !matches!(outcome, Ok(Pushed::AllAtTheEnd)) {
            tokio::select! {
                () = &mut stop => outcome = Ok(Pushed::AllAtTheEnd),
                () = sleep(pause) => {}
            }
        }
    }
    outcome
}

/// Counters as they were at the last push.
#[derive(Default, Debug)]
struct Counters {
    topics: BTreeMap<String, TopicCounters>,
}

#[derive(Default, Debug)]
struct TopicCounters {
    messages: u64,
    bytes: u64,
    channels: BTreeMap<String, ChannelCounters>,
}

#[derive(Clone, Copy, Default, Debug)]
struct ChannelCounters {
    messages: u64,
    requeued: u64,
    timed_out: u64,
}

/// What was added since. A counter that is lower than it was belongs to a topic or channel that was made anew.
fn added(now: u64, last: u64) -> u64 {
    now.checked_sub(last).unwrap_or(now)
}

/// Lines of the statsd protocol, in packets of at most some bytes. A line that is longer than that has a packet of its
/// own.
struct Packets<'p> {
    prefix: &'p str,
    bytes: usize,
    full: Vec<Vec<u8>>,
    open: Vec<u8>,
}

impl<'p> Packets<'p> {
    fn new(prefix: &'p str, bytes: usize) -> Self {
        Self { prefix, bytes, full: Vec::new(), open: Vec::new() }
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        if !self.open.is_empty() {
            self.full.push(self.open);
        }
        self.full
    }

    fn count(&mut self, name: fmt::Arguments<'_>, added: u64) {
        let prefix = self.prefix;
        self.line(format_args!("{prefix}{name}:{added}|c\n"));
    }

    fn gauge(&mut self, name: fmt::Arguments<'_>, value: u64) {
        let prefix = self.prefix;
        self.line(format_args!("{prefix}{name}:{value}|g\n"));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        let line = line.to_string();
        if !self.open.is_empty() && self.open.len() + line.len() > self.bytes {
            self.full.push(std::mem::take(&mut self.open));
        }
        self.open.extend_from_slice(line.as_bytes());
    }

    /// Answers the counters of now.
    fn write_topics(
        &mut self,
        topics: &[TopicSnapshot],
        last: &Counters,
        quantiles: &[f64],
        exclude_ephemeral: bool,
    ) -> Counters {
        let (no_topic, no_channel) = (TopicCounters::default(), ChannelCounters::default());
        let wanted = |name: &str| !(exclude_ephemeral && name.ends_with(EPHEMERAL));
        let mut now = Counters::default();
        for topic in topics.iter().filter(|topic| wanted(&topic.name)) {
            let name = &topic.name;
            let last = last.topics.get(name).unwrap_or(&no_topic);
            let mut counters =
                TopicCounters { messages: accepted(topic), bytes: accepted_bytes(topic), channels: BTreeMap::new() };
            self.count(format_args!("topic.{name}.message_count"), added(counters.messages, last.messages));
            self.count(format_args!("topic.{name}.message_bytes"), added(counters.bytes, last.bytes));
            self.gauge(format_args!("topic.{name}.depth"), depth(topic));
            self.gauge(format_args!("topic.{name}.backend_depth"), topic.backend_depth);
            self.latencies(format_args!("topic.{name}"), quantiles, &topic.e2e_percentiles_ns);
            for channel in topic.channels.iter().filter(|channel| wanted(&channel.name)) {
                let last = last.channels.get(&channel.name).unwrap_or(&no_channel);
                let of_channel = self.write_channel(name, channel, last, quantiles);
                counters.channels.insert(channel.name.clone(), of_channel);
            }
            now.topics.insert(name.clone(), counters);
        }
        now
    }

    fn write_channel(
        &mut self,
        topic: &str,
        channel: &ChannelSnapshot,
        last: &ChannelCounters,
        quantiles: &[f64],
    ) -> ChannelCounters {
        let name = &channel.name;
        let counters = ChannelCounters {
            messages: channel.message_total,
            requeued: channel.requeued_total,
            timed_out: channel.timed_out_total,
        };
        let of = |what: &str| format!("topic.{topic}.channel.{name}.{what}");
        self.count(format_args!("{}", of("message_count")), added(counters.messages, last.messages));
        self.gauge(format_args!("{}", of("depth")), channel.depth);
        self.gauge(format_args!("{}", of("backend_depth")), channel.backend_depth);
        self.gauge(format_args!("{}", of("in_flight_count")), channel.in_flight);
        self.gauge(format_args!("{}", of("deferred_count")), channel.deferred);
        self.count(format_args!("{}", of("requeue_count")), added(counters.requeued, last.requeued));
        self.count(format_args!("{}", of("timeout_count")), added(counters.timed_out, last.timed_out));
        self.gauge(format_args!("{}", of("clients")), channel.client_count);
        self.latencies(format_args!("topic.{topic}.channel.{name}"), quantiles, &channel.e2e_percentiles_ns);
        counters
    }

    /// In nanoseconds; a name ends in the percentage, rounded, the half to the even number as in Go.
    fn latencies(&mut self, of: fmt::Arguments<'_>, quantiles: &[f64], values: &[u64]) {
        for (quantile, value) in quantiles.iter().zip(values) {
            self.gauge(format_args!("{of}.e2e_processing_latency_{:.0}", quantile * 100.0), *value);
        }
    }

    /// Go's view of its heap. Nothing collects garbage here: what the process holds stands as the heap in use.
    fn write_memory(&mut self, resident_bytes: u64) {
        for (name, value) in [
            ("heap_objects", 0),
            ("heap_idle_bytes", 0),
            ("heap_in_use_bytes", resident_bytes),
            ("heap_released_bytes", 0),
            ("gc_pause_usec_100", 0),
            ("gc_pause_usec_99", 0),
            ("gc_pause_usec_95", 0),
            ("next_gc_bytes", 0),
        ] {
            self.gauge(format_args!("mem.{name}"), value);
        }
        self.count(format_args!("mem.gc_runs"), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::io::http::tests::FakeShard;
    use crate::machine::snapshot::ShardSnapshot;

    fn topic(name: &str, admitted: u64, channels: Vec<ChannelSnapshot>) -> TopicSnapshot {
        TopicSnapshot {
            name: name.to_owned(),
            admitted_total: admitted,
            admitted_bytes_total: 10 * admitted,
            waiting: 2,
            waiting_bytes: 20,
            depth: 3,
            backend_depth: 1,
            e2e_percentiles_ns: vec![7, 9],
            channels,
            ..TopicSnapshot::default()
        }
    }

    fn channel(name: &str, messages: u64) -> ChannelSnapshot {
        ChannelSnapshot {
            name: name.to_owned(),
            message_total: messages,
            requeued_total: 4,
            timed_out_total: 5,
            depth: 6,
            in_flight: 1,
            deferred: 8,
            client_count: 2,
            e2e_percentiles_ns: vec![5, 6],
            ..ChannelSnapshot::default()
        }
    }

    fn text(packets: Packets<'_>) -> String {
        String::from_utf8(packets.finish().concat()).unwrap()
    }

    #[test]
    fn names_are_nsqds_and_counters_tell_what_was_added() {
        let mut packets = Packets::new("nsq.", 10_000);
        let first = [topic("t", 5, vec![channel("c", 5)])];
        let last = packets.write_topics(&first, &Counters::default(), &[0.5, 0.995], false);
        assert_eq!(
            text(packets),
            "nsq.topic.t.message_count:7|c\nnsq.topic.t.message_bytes:70|c\nnsq.topic.t.depth:5|g\n\
             nsq.topic.t.backend_depth:1|g\nnsq.topic.t.e2e_processing_latency_50:7|g\n\
             nsq.topic.t.e2e_processing_latency_100:9|g\nnsq.topic.t.channel.c.message_count:5|c\n\
             nsq.topic.t.channel.c.depth:6|g\nnsq.topic.t.channel.c.backend_depth:0|g\n\
             nsq.topic.t.channel.c.in_flight_count:1|g\nnsq.topic.t.channel.c.deferred_count:8|g\n\
             nsq.topic.t.channel.c.requeue_count:4|c\nnsq.topic.t.channel.c.timeout_count:5|c\n\
             nsq.topic.t.channel.c.clients:2|g\nnsq.topic.t.channel.c.e2e_processing_latency_50:5|g\n\
             nsq.topic.t.channel.c.e2e_processing_latency_100:6|g\n"
        );
        let mut packets = Packets::new("", 10_000);
        let next = [topic("t", 8, vec![channel("c", 1), channel("new", 3)])];
        packets.write_topics(&next, &last, &[], false);
        let counted: Vec<String> =
            text(packets).lines().filter(|line| line.contains("message_count")).map(str::to_owned).collect();
        let expected = [
            "topic.t.message_count:3|c",
            "topic.t.channel.c.message_count:1|c",
            "topic.t.channel.new.message_count:3|c",
        ];
        assert_eq!(counted, expected, "channel c was deleted and made again");
    }

    #[test]
    fn ephemeral_topics_and_channels_are_left_out_if_asked_to() {
        let topics = [topic("t", 1, vec![channel("c#ephemeral", 1)]), topic("e#ephemeral", 1, vec![channel("c", 1)])];
        for (exclude, lines) in [(true, 4), (false, 24)] {
            let mut packets = Packets::new("", 100);
            packets.write_topics(&topics, &Counters::default(), &[], exclude);
            assert_eq!(text(packets).lines().count(), lines);
        }
    }

    #[test]
    fn packets_hold_whole_lines() {
        let mut packets = Packets::new("", 24);
        for (name, value) in [("a", 1), ("bb", 22), ("ccc", 333), ("a-name-longer-than-a-packet", 1), ("d", 1)] {
            packets.gauge(format_args!("{name}"), value);
        }
        let packets: Vec<String> =
            packets.finish().into_iter().map(|packet| String::from_utf8(packet).unwrap()).collect();
        let expected = ["a:1|g\nbb:22|g\nccc:333|g\n", "a-name-longer-than-a-packet:1|g\n", "d:1|g\n"];
        assert_eq!(packets, expected);
        assert_eq!(expected[0].len(), 24);
    }

    #[test]
    fn the_prefix_has_the_host_and_ends_in_a_dot() {
        assert_eq!(prefix("nsq.%s", "box.example.com", 4151), "nsq.box_example_com_4151.");
        assert_eq!(prefix("%s.x.%s.", "::1", 0), "[__1]_0.x.[__1]_0.");
        assert_eq!(prefix("fixed", "box", 1), "fixed.");
        assert_eq!(prefix("", "box", 1), "");
    }

    #[tokio::test(start_paused = true)]
    async fn each_interval_is_pushed_over_udp_until_the_end() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let scopes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&scopes);
        let shard = FakeShard::new(move |request| match request {
            AdminRequest::Snapshot(scope) => {
                let mut scopes = seen.lock().unwrap();
                scopes.push(scope.clone());
                let topics = vec![topic("t", 10 * scopes.len() as u64, Vec::new())];
                Some(AdminReply::Snapshot(Box::new(ShardSnapshot { topics, ..ShardSnapshot::default() })))
            }
            _ => None,
        });
        let options = Statsd { interval: Duration::from_mins(1), packet_bytes: 100, ..Statsd::default() };
        let address = server.local_addr().unwrap().to_string();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let began = Instant::now();
        let pusher = tokio::spawn(run(options, address, "p.".to_owned(), Vec::new(), shard.handle(), async {
            let _ = stopped.await;
        }));
        let mut packet = [0; 1_000];
        let mut told = Vec::new();
        while told.len() < 2 {
            let bytes = server.recv(&mut packet).await.unwrap();
            assert!(bytes <= 100);
            let text = String::from_utf8(packet[..bytes].to_vec()).unwrap();
            told.extend(text.lines().filter(|line| line.contains("message_count")).map(str::to_owned));
        }
        assert_eq!(told, ["p.topic.t.message_count:12|c", "p.topic.t.message_count:10|c"]);
        assert_eq!(began.elapsed().as_secs(), 120);
        stop.send(()).unwrap();
        pusher.await.unwrap();
        let scopes = scopes.lock().unwrap();
        assert!(scopes.len() == 2 && scopes.iter().all(|scope| scope.delays == Delays::Without && !scope.clients));
    }
}
