//! Who publishes to a topic: how connections become its publishers, and how these are listed.
//!
//! What connections of other shards publish is counted under their shard and serial; they are introduced before their
//! first publish, and said goodbye to when they are gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::estimate::seconds::Window;
use tidegate_core::estimate::{Histogram, WindowedHistogram};
use tidegate_core::number::float;

use super::admin::{AdminReply, Answered, PublishersScope};
use super::client::{About, Client, LastPub};
use super::limiter::Limiter;
use super::output::{ConnId, Output};
use super::peers::{Note, Peers};
use super::publishers::{HttpPublisher, Link, PublisherNo, PublisherRef};
use super::seconds::DelayCounts;
use super::shard::Shard;
use super::survey::PAUSE;
use super::timers::Timer;
use super::topic::{Topic, TopicKey};
use super::watch::{DelayReport, PublishersReport, Watch};
use super::who::{Introduction, Who};

/// Publishers that are listed together, in about 50 us.
const SLICE: usize = 256;
/// Seconds of delays that are kept while somebody asks: the 60 that can be asked for, the running one, and one to spare, as a
/// long list takes a while. 155 KiB for each topic and channel.
const DELAY_SLOTS: u32 = 62;
const DELAYS_KEPT: Duration = Duration::from_mins(1);

/// A connection of another shard that publishes to topics of this one.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) who: Arc<Who>,
    /// Topics in which it has a place.
    pub(super) topics: BTreeSet<TopicKey>,
}

/// A list of publishers that is asked for.
#[derive(Debug)]
pub(super) struct Listing {
    request: u64,
    scope: PublishersScope,
    /// Once its turn has come.
    begun: Option<Begun>,
}

#[derive(Debug)]
struct Begun {
    table: u32,
    window: Window,
    /// Places before this one have been looked at.
    next: usize,
    report: Box<PublishersReport>,
}

impl Topic {
    /// What is counted of the topic, which begins and ends here.
    fn watch_now(&mut self, tables: &mut u32, now: Instant) -> Option<&mut Watch> {
        let is_needed = self.limiter.is_some() || self.recording.is_some();
        match &mut self.watch {
            None if !is_needed => return None,
            None => self.start_watch(tables, now),
            Some(watch) => {
                if watch.sweep(now) && !is_needed && watch.is_forgotten(now) {
                    self.watch = None;
                }
            }
        }
        self.watch.as_deref_mut()
    }

    fn start_watch(&mut self, tables: &mut u32, now: Instant) {
        *tables = tables.wrapping_add(1).max(1);
        self.watch = Some(Box::new(Watch::new(*tables, now)));
    }

    /// What waits is as much as it gets now: notes it, if the topic is watched.
    pub(super) fn note_backlog(&mut self, now: Instant) {
        let Some(watch) = &mut self.watch else { return };
        let waiting = self.queue.depth() + self.staged.len() as u64;
        let backlog = match self.limiter.as_ref().filter(|limiter| !limiter.is_retiring()) {
            None => float(waiting),
            Some(limiter) => {
                let unit = limiter.contract.unit;
                let cost = unit.cost(waiting, self.queue.bytes() + self.staged_bytes);
                let in_lanes = self.host.as_ref().map_or(0.0, |host| host.backlog(unit, now));
                limiter.missing(now) + float(cost) + in_lanes
            }
        };
        watch.seconds.note_backlog(backlog, now);
    }
}

/// Adds the delays of `window` to `all`. From now on as many seconds are kept as can be asked for, until nobody has asked for
/// so long.
fn delays_in(delays: &mut WindowedHistogram, all: &mut Histogram, window: Window, now: Instant) {
    delays.keep(DELAY_SLOTS, now + DELAYS_KEPT);
    delays.merge_slots(all, window.seconds());
}

/// Where a connection is known as a publisher under its present serial and name.
pub(super) struct Places {
    serial: u64,
    /// Topics of its shard.
    topics: BTreeSet<TopicKey>,
    /// Other shards.
    shards: Vec<usize>,
}

impl Client {
    /// Its serial or its name changes, or it goes: what is to be vacated.
    pub(super) fn take_places(&mut self) -> Places {
        self.last_pub = None;
        self.about.who = None;
        let topics = std::mem::take(&mut self.about.topics);
        Places { serial: self.serial, topics, shards: std::mem::take(&mut self.about.introduced) }
    }

    /// `shard` is to know it as a publisher before it hears of it.
    pub(super) fn introduce_to(&mut self, shard: usize, peers: &mut Peers) {
        if !self.about.introduced.contains(&shard) {
            self.about.introduced.push(shard);
            peers.note(shard, Note::Introduction(self.serial, self.who()));
        }
    }

    /// The connection, as topics see it.
    pub(super) fn who(&mut self) -> Arc<Who> {
        if self.about.who.is_none() {
            self.about.who = Some(Arc::new(self.about.introduce()));
        }
        Arc::clone(self.about.who.as_ref().expect("it was set above"))
    }
}

impl About {
    /// The connection, as it says of itself.
    pub(super) fn introduce(&self) -> Who {
        let introduction = Introduction {
            name: self.publisher.as_ref(),
            correlation: self.correlation.as_ref(),
            remote: &self.remote_address,
            client_id: &self.client_id,
            hostname: &self.hostname,
            connected: self.connected,
        };
        introduction.into()
    }
}

impl Shard {
    // Publishers.

    /// Who `conn` is in `topic`, to which it is about to publish; the default if the topic is not watched.
    #[inline]
    pub(super) fn publisher_of(&mut self, conn: ConnId, topic: TopicKey, now: Instant) -> PublisherRef {
        let Self { topics, clients, numbers, config, .. } = self;
        let Some(watch) = topics[topic].watch_now(&mut numbers.watches, now) else { return PublisherRef::default() };
        let client = &mut clients[conn];
        if let Some(LastPub::Here(last, publisher)) = &client.last_pub
            && *last == topic
            && watch.publishers.knows(*publisher)
        {
            return *publisher;
        }
        let link = Link { shard: config.shard, serial: client.serial };
        let no = watch.publishers.of(link).unwrap_or_else(|| {
            client.about.topics.insert(topic);
            watch.publishers.join(link, &client.who(), now)
        });
        let publisher = watch.publishers.reference(no);
        if let Some(LastPub::Here(last, known)) = &mut client.last_pub
            && *last == topic
        {
            *known = publisher;
        }
        publisher
    }

    /// The same of a connection of another shard.
    pub(super) fn publisher_of_guest(&mut self, link: Link, topic: TopicKey, now: Instant) -> PublisherRef {
        let Self { topics, guests, numbers, .. } = self;
        let Some(watch) = topics[topic].watch_now(&mut numbers.watches, now) else { return PublisherRef::default() };
        let no = watch.publishers.of(link).or_else(|| {
            let guest = guests.get_mut(&link)?;
            guest.topics.insert(topic);
            Some(watch.publishers.join(link, &guest.who, now))
        });
        watch.publishers.reference(no.unwrap_or(PublisherNo::UNKNOWN))
    }

    /// The same of a client of the HTTP API.
    pub(super) fn publisher_over_http(&mut self, by: &HttpPublisher, topic: TopicKey, now: Instant) -> PublisherRef {
        let Self { topics, numbers, .. } = self;
        let Some(watch) = topics[topic].watch_now(&mut numbers.watches, now) else { return PublisherRef::default() };
        let no = watch.publishers.visit(Who::over_http(by, now), now);
        watch.publishers.reference(no)
    }

    /// A publish to a topic is about to be taken, or refused by the contract.
    #[inline]
    pub(super) fn count_sent(&mut self, topic: TopicKey, by: PublisherRef, messages: u64, bytes: u64, now: Instant) {
        if let Some(watch) = &mut self.topics[topic].watch {
            watch.publishers.count(by, messages, now);
            watch.seconds.count(messages, bytes, now);
        }
    }

    /// A connection of this shard is gone from `places`, which are all that it had.
    pub(super) fn vacate(&mut self, places: Places) {
        let Places { serial, topics, shards } = places;
        self.leave_topics(Link { shard: self.config.shard, serial }, &topics);
        for shard in shards {
            self.peers.note(shard, Note::Goodbye(serial));
        }
    }

    /// Another shard says who publishes, or speaks of lanes.
    pub(super) fn on_note(&mut self, shard: usize, note: Note, now: Instant) {
        match note {
            Note::Introduction(serial, who) => {
                self.guests.insert(Link { shard, serial }, Guest { who, topics: BTreeSet::new() });
            }
            Note::Goodbye(serial) => {
                let link = Link { shard, serial };
                if let Some(guest) = self.guests.remove(&link) {
                    self.leave_topics(link, &guest.topics);
                }
            }
            Note::Lane(topic, word) => self.on_lane_word(shard, &topic, word, now),
            Note::Lend(frame) => {
                if let Some(laning) = &mut self.laning {
                    laning.inbox.push(frame);
                }
            }
            Note::Ends => self.on_shard_ends(shard, now),
        }
    }

    fn leave_topics(&mut self, link: Link, topics: &BTreeSet<TopicKey>) {
        for topic in topics {
            // It may be another topic by now, in which the connection has no place.
            if let Some(watch) = self.topics.get_mut(*topic).and_then(|topic| topic.watch.as_mut()) {
                watch.publishers.leave(link);
            }
        }
    }

    // Lists of them.

    /// Begins a list of a topic's publishers; it is answered at once if it is short.
    pub(super) fn list_publishers(&mut self, scope: PublishersScope, now: Instant) -> Answered {
        let Self { topics, topics_by_name, numbers, .. } = self;
        let Some(key) = topics_by_name.get(&scope.topic) else { return Answered::Now(AdminReply::TopicNotFound) };
        let topic = &mut topics[*key];
        if topic.watch.is_none() {
            topic.start_watch(&mut numbers.watches, now);
        }
        // A line that nothing comes to and nothing leaves would not be seen otherwise.
        topic.note_backlog(now);
        let mut is_short = true;
        if let Some(watch) = &mut topic.watch {
            watch.asked = Some(now);
            watch.sweep(now);
            watch.delays.get_or_insert_with(|| Box::new(DelayCounts::new(now)));
            is_short = watch.publishers.places() <= SLICE;
        }
        let mut listing = Listing { request: 0, scope, begun: None };
        if is_short && let Some(reply) = self.go_on_with(&mut listing, SLICE, now) {
            return Answered::Now(reply);
        }
        self.numbers.requests += 1;
        listing.request = self.numbers.requests;
        if self.listings.is_empty() {
            self.timers.insert(now, Timer::Listing);
        }
        self.listings.push_back(listing);
        Answered::Later(self.numbers.requests)
    }

    /// The next slice is due. One list is made at a time, so that no more than one takes memory.
    pub(super) fn on_listing_due(&mut self, now: Instant) {
        self.go_on_listing(SLICE, now);
        if !self.listings.is_empty() {
            self.timers.insert(now + PAUSE, Timer::Listing);
        }
    }

    /// The shard is about to drain: what is asked for is answered before.
    pub(super) fn end_listings(&mut self, now: Instant) {
        while !self.listings.is_empty() {
            self.go_on_listing(usize::MAX, now);
        }
    }

    fn go_on_listing(&mut self, places: usize, now: Instant) {
        let Some(mut listing) = self.listings.pop_front() else { return };
        match self.go_on_with(&mut listing, places, now) {
            Some(reply) => self.outputs.push_back(Output::AdminReply(listing.request, reply)),
            None => self.listings.push_front(listing),
        }
    }

    /// Looks at so many places more; the answer when that was all.
    fn go_on_with(&mut self, listing: &mut Listing, places: usize, now: Instant) -> Option<AdminReply> {
        let Some(key) = self.topics_by_name.get(&listing.scope.topic).copied() else {
            return Some(AdminReply::TopicNotFound);
        };
        if listing.begun.is_none() {
            listing.begun = self.begin_listing(key, &listing.scope, now);
        }
        let watch = self.topics[key].watch.as_deref();
        let (Some(begun), Some(watch)) = (&mut listing.begun, watch) else { return Some(AdminReply::TopicNotFound) };
        if watch.publishers.table() != begun.table {
            // The topic was deleted meanwhile, and another one has its name.
            return Some(AdminReply::TopicNotFound);
        }
        let end = begun.next.saturating_add(places).min(watch.publishers.places());
        watch.publishers.report(begun.next..end, begun.window, now, &mut begun.report.publishers);
        begun.next = end;
        let is_whole = end == watch.publishers.places();
        is_whole.then(|| AdminReply::Publishers(std::mem::take(&mut begun.report)))
    }

    /// Everything but the publishers; `None` if the topic is not watched any more.
    fn begin_listing(&mut self, key: TopicKey, scope: &PublishersScope, now: Instant) -> Option<Begun> {
        let Self { topics, channels, .. } = self;
        let topic = &mut topics[key];
        let watch = topic.watch.as_deref_mut()?;
        let window = watch.seconds.window(scope.seconds, now);
        let finished = watch.delays.as_mut().map(|delays| delays.ask(scope.seconds, scope.slo_ns, now));
        let mut end_to_end = Histogram::new();
        for channel in topic.channels.values() {
            delays_in(&mut channels[*channel].end_to_end, &mut end_to_end, window, now);
        }
        let mut access_delay = Histogram::new();
        delays_in(&mut topic.access_delay, &mut access_delay, window, now);
        let p99_us = |delays: &Histogram| (float(delays.quantile(0.99)) / 1e3 * 10.0).round() / 10.0;
        let delay = DelayReport {
            count: finished.map_or(0, |finished| finished.count),
            over_slo: finished.map_or(0, |finished| finished.over),
            e2e_p99_us: p99_us(&end_to_end),
            access_p99_us: p99_us(&access_delay),
        };
        let report = PublishersReport {
            topic: topic.name.to_string(),
            now_us: now.as_nanos() / 1_000,
            seconds: watch.seconds.report(window),
            publishers: Vec::new(),
            others: watch.publishers.others(window),
            delay,
        };
        Some(Begun { table: watch.publishers.table(), window, next: 0, report: Box::new(report) })
    }

    /// What holds after every step; panics where it does not.
    pub(super) fn assert_watches(&self) {
        let own = self.config.shard;
        let watches: Vec<_> = self.topics.values().filter_map(|topic| topic.watch.as_ref()).collect();
        if watches.is_empty() {
            return;
        }
        let serials: BTreeSet<u64> = self.clients.iter().map(|(_, client)| client.serial).collect();
        for watch in watches {
            watch.publishers.assert_invariants(|link| {
                if link.shard == own { serials.contains(&link.serial) } else { self.guests.contains_key(link) }
            });
        }
    }

    /// Notes what waits in a topic whose messages are not staged, as some have just come.
    pub(super) fn note_backlog(&mut self, topic: TopicKey, now: Instant) {
        let topic = &mut self.topics[topic];
        if !topic.limiter.as_ref().is_some_and(Limiter::delays) {
            topic.note_backlog(now);
        }
    }
}
