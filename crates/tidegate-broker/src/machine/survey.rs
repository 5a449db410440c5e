//! Snapshots. Those of many topics are made a slice at a time, so that messages do not wait for them.

use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::estimate::Histogram;
use tidegate_core::estimate::window::WindowedHistogram;
use tidegate_core::limit::Limit;

use super::admin::{AdminReply, Answered, Delays, SnapshotScope};
use super::channel::ChannelKey;
use super::client::Client;
use super::limiter::{Discipline, Limiter, Mode, Source, Unit};
use super::output::Output;
use super::parts::PartStatus;
use super::shard::Shard;
use super::snapshot::{
    ChannelSnapshot, DelaySnapshot, LimitSnapshot, PartSnapshot, ShadowSnapshot, ShardSnapshot, TopicSnapshot,
};
use super::timers::Timer;
use super::topic::TopicKey;

/// Topics that are looked at together.
const SLICE: usize = 16;
/// From slice to slice: 10,000 topics take 160 ms.
pub(super) const PAUSE: Duration = Duration::from_micros(250);

/// A snapshot under way. It shows each topic as it was when its turn came.
#[derive(Debug)]
pub(super) struct Survey {
    request: u64,
    scope: SnapshotScope,
    left: Vec<TopicKey>,
    topics: Vec<TopicSnapshot>,
}

impl Shard {
    /// Begins a snapshot; it is answered at once if it is small.
    pub(super) fn snapshot(&mut self, scope: SnapshotScope, now: Instant) -> Answered {
        let left: Vec<TopicKey> = match &scope.topic {
            Some(name) => self.topics_by_name.get(name).copied().into_iter().collect(),
            None => self.topics.iter().map(|(key, _)| key).collect(),
        };
        let topics = Vec::with_capacity(left.len());
        let mut survey = Survey { request: 0, scope, left, topics };
        if survey.left.len() <= SLICE || self.is_ending() {
            self.look_at(&mut survey, usize::MAX, now);
            return Answered::Now(AdminReply::Snapshot(Box::new(self.shard_snapshot(survey))));
        }
        self.numbers.requests += 1;
        survey.request = self.numbers.requests;
        if self.surveys.is_empty() {
            self.timers.insert(now, Timer::Survey);
        }
        self.surveys.push_back(survey);
        Answered::Later(self.numbers.requests)
    }

    /// The next slice is due.
    pub(super) fn on_survey_due(&mut self, now: Instant) {
        self.go_on_with_survey(SLICE, now);
        if !self.surveys.is_empty() {
            self.timers.insert(now + PAUSE, Timer::Survey);
        }
    }

    /// The shard is about to drain: what is under way is answered before.
    pub(super) fn end_surveys(&mut self, now: Instant) {
        while !self.surveys.is_empty() {
            self.go_on_with_survey(usize::MAX, now);
        }
    }

    fn go_on_with_survey(&mut self, topics: usize, now: Instant) {
        let Some(mut survey) = self.surveys.pop_front() else { return };
        self.look_at(&mut survey, topics, now);
        if survey.left.is_empty() {
            let request = survey.request;
            let snapshot = self.shard_snapshot(survey);
            self.outputs.push_back(Output::AdminReply(request, AdminReply::Snapshot(Box::new(snapshot))));
        } else {
            self.surveys.push_front(survey);
        }
    }

    fn look_at(&mut self, survey: &mut Survey, topics: usize, now: Instant) {
        let first = survey.left.len().saturating_sub(topics);
        for key in survey.left.drain(first..) {
            // It may be gone by now.
            if self.topics.get(key).is_some() {
                survey.topics.push(self.topic_snapshot(key, &survey.scope, now));
            }
        }
    }

    fn shard_snapshot(&self, survey: Survey) -> ShardSnapshot {
        let clients = self.clients.iter().map(|(_, client)| client).filter(|_| survey.scope.clients);
        ShardSnapshot {
            shard: self.config.shard,
            topics: survey.topics,
            producers: clients.filter(|client| !client.about.pub_counts.is_empty()).map(Client::snapshot).collect(),
            connections: self.clients.len() as u64,
            log_error: self.queues.error().cloned(),
        }
    }

    fn topic_snapshot(&mut self, key: TopicKey, scope: &SnapshotScope, now: Instant) -> TopicSnapshot {
        let part = self.part_status(&self.topics[key].name, now).map(|part| part_snapshot(&part));
        let topic = &mut self.topics[key];
        let limit = topic
            .limiter
            .as_mut()
            .filter(|limiter| !limiter.is_retiring())
            .map(|limiter| LimitSnapshot { part, ..limit_snapshot(limiter, scope.delays, now) });
        let waiting = topic.waiting();
        let waiting_bytes = if waiting > 0 { topic.line_bytes() } else { 0 };
        let in_lanes = topic.host.as_ref().map(|host| host.waiting()).unwrap_or_default();
        let limit = limit.map(|mut limit| {
            limit.tokens += topic.host.as_ref().map_or(0.0, |host| (host.tokens(now) * 100.0).round() / 100.0);
            limit
        });
        let counts = &topic.counts;
        let mut snapshot = TopicSnapshot {
            name: topic.name.to_string(),
            paused: topic.paused,
            limit,
            offered_total: counts.offered,
            offered_bytes_total: counts.offered_bytes,
            admitted_total: counts.admitted,
            admitted_bytes_total: counts.admitted_bytes,
            delayed_total: counts.delayed,
            refused_total: counts.refused,
            shadow_total: counts.shadow,
            dropped_total: counts.dropped,
            waiting: waiting + in_lanes.messages,
            waiting_bytes: waiting_bytes + in_lanes.bytes,
            blocked_publishers: topic.blocked_publishers() + in_lanes.blocked,
            lanes: topic.host.as_ref().map_or(0, |host| host.lanes()),
            access_delay_us: delays(&mut topic.access_delay, scope.delays, now),
            depth: topic.depth() + in_lanes.messages,
            backend_depth: topic.queue.backend_depth(),
            memory_bytes: topic.queue.memory_bytes() + topic.staged_bytes + topic.deferred.bytes() + in_lanes.bytes,
            e2e_count: 0,
            e2e_percentiles_ns: Vec::new(),
            channels: Vec::new(),
        };
        if !self.config.e2e_percentiles.is_empty() && !topic.channels.is_empty() {
            let mut all = Histogram::new();
            for key in topic.channels.values() {
                self.channels[*key].e2e.iter().for_each(|window| window.merge_into(&mut all, now));
            }
            snapshot.e2e_count = all.count();
            snapshot.e2e_percentiles_ns = self.config.e2e_percentiles.iter().map(|q| all.quantile(*q)).collect();
        }
        let channels: Vec<ChannelKey> = topic
            .channels
            .iter()
            .filter(|(name, _)| scope.channel.as_ref().is_none_or(|channel| channel == *name))
            .map(|(_, key)| *key)
            .collect();
        snapshot.channels = channels.into_iter().map(|key| self.channel_snapshot(key, scope, now)).collect();
        snapshot
    }

    fn channel_snapshot(&mut self, key: ChannelKey, scope: &SnapshotScope, now: Instant) -> ChannelSnapshot {
        let channel = &mut self.channels[key];
        let limit = channel.limiter.as_mut().map(|limiter| limit_snapshot(limiter, scope.delays, now));
        let clients = if scope.clients {
            channel.clients.iter().map(|conn| self.clients[*conn].snapshot()).collect()
        } else {
            Vec::new()
        };
        let counts = &channel.counts;
        let e2e = channel.e2e.as_ref().map(|window| window.snapshot(now));
        ChannelSnapshot {
            name: channel.name.to_string(),
            paused: channel.paused,
            limit,
            message_total: counts.messages,
            delivered_total: counts.delivered,
            finished_total: counts.finished,
            requeued_total: counts.requeued,
            timed_out_total: counts.timed_out,
            dropped_total: counts.dropped,
            shadow_total: counts.shadow,
            depth: channel.queue.depth(),
            backend_depth: channel.queue.backend_depth(),
            in_flight: channel.in_flight,
            // Under a contract they wait in the topic, for every channel.
            deferred: (channel.deferred.len() + self.topics[channel.topic].deferred.len()) as u64,
            client_count: channel.clients.len() as u64,
            access_delay_us: delays(&mut channel.access_delay, scope.delays, now),
            end_to_end_us: delays(&mut channel.end_to_end, scope.delays, now),
            e2e_count: e2e.as_ref().map_or(0, Histogram::count),
            e2e_percentiles_ns: e2e
                .map_or_else(Vec::new, |all| self.config.e2e_percentiles.iter().map(|q| all.quantile(*q)).collect()),
            clients,
        }
    }
}

fn delays(window: &mut WindowedHistogram, wanted: Delays, now: Instant) -> DelaySnapshot {
    if wanted == Delays::Without {
        return DelaySnapshot::default();
    }
    let merged = window.snapshot(now);
    #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
    let us = |ns: u64| (ns as f64 / 1e3 * 10.0).round() / 10.0;
    DelaySnapshot {
        count: merged.count(),
        mean: (merged.mean() / 1e3 * 10.0).round() / 10.0,
        p50: us(merged.quantile(0.5)),
        p90: us(merged.quantile(0.9)),
        p99: us(merged.quantile(0.99)),
        p999: us(merged.quantile(0.999)),
        max: us(merged.max()),
    }
}

fn limit_snapshot(limiter: &mut Limiter, wanted: Delays, now: Instant) -> LimitSnapshot {
    let (contract, source) = (limiter.contract, limiter.source);
    let Limit { rate, burst } = contract.limit;
    LimitSnapshot {
        rate_per_s: rate.as_per_s(),
        burst,
        unit: match contract.unit {
            Unit::Messages => "messages",
            Unit::Bytes => "bytes",
        },
        discipline: match contract.discipline {
            Discipline::Wait => "wait",
            Discipline::Refuse => "refuse",
        },
        mode: match contract.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
        },
        source: match source {
            Source::File => "file",
            Source::Admin => "admin",
            Source::Part => "part",
        },
        tokens: (limiter.tokens(now) * 100.0).round() / 100.0,
        shadow: (contract.mode == Mode::Shadow).then(|| ShadowSnapshot {
            delay_us: delays(&mut limiter.shadow_delay, wanted, now),
            line: limiter.shadow_line(now),
        }),
        part: None,
    }
}

fn part_snapshot(part: &PartStatus) -> PartSnapshot {
    let in_force = part.in_force.unwrap_or(part.limit);
    PartSnapshot {
        rate_per_s: in_force.rate.as_per_s(),
        burst: in_force.burst,
        revision: part.revision,
        lapses_in_ms: part.lapses_in_ms(),
        on_lapse: part.on_lapse.name(),
    }
}
