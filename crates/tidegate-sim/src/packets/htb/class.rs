//! Tokens of a class, and how they are spent.

use tidegate_core::Instant;

use super::{ClassConfig, PRIORITIES};

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct Class {
    config: ClassConfig,
    /// 0 of leaves; those of inner classes fall from the top.
    level: usize,
    /// At `checked`, in nanoseconds; below zero is a debt.
    tokens_ns: i64,
    ceil_tokens_ns: i64,
    checked: Instant,
    /// For each priority the child whose turn it is.
    pub(super) turns: [usize; PRIORITIES],
    /// Bytes that wait here and below.
    pub(super) backlog: u64,
    /// Bytes that left.
    pub(super) sent: u64,
}

impl Class {
    pub(super) fn new(config: ClassConfig, level: usize, now: Instant) -> Self {
        assert!(config.rate > 0 && config.ceil >= config.rate, "a class has a rate, and a ceiling not below it");
        Self {
            level,
            tokens_ns: signed(config.buffer_ns),
            ceil_tokens_ns: signed(config.ceil_buffer_ns),
            config,
            checked: now,
            turns: [0; PRIORITIES],
            backlog: 0,
            sent: 0,
        }
    }

    pub(super) fn config(&self) -> &ClassConfig {
        &self.config
    }

    pub(super) fn level(&self) -> usize {
        self.level
    }

    /// Tokens of its own and at its ceiling.
    pub(super) fn tokens_at(&self, now: Instant) -> (i64, i64) {
        let since = signed(now.nanos_since(self.checked));
        let own = self.tokens_ns.saturating_add(since).min(signed(self.config.buffer_ns));
        (own, self.ceil_tokens_ns.saturating_add(since).min(signed(self.config.ceil_buffer_ns)))
    }

    /// A packet of `bytes` left on the account of a class of `level` at or above or below this one: those below it only
    /// borrowed.
    pub(super) fn charge(&mut self, bytes: u64, level: usize, now: Instant) {
        (self.tokens_ns, self.ceil_tokens_ns) = self.tokens_at(now);
        self.checked = now.max(self.checked);
        if self.level >= level {
            self.tokens_ns -= cost_ns(bytes, self.config.rate);
        }
        self.ceil_tokens_ns -= cost_ns(bytes, self.config.ceil);
        self.backlog -= bytes;
        self.sent += bytes;
    }

    pub(super) fn set_config(&mut self, config: ClassConfig, now: Instant) {
        (self.tokens_ns, self.ceil_tokens_ns) = self.tokens_at(now);
        self.checked = now.max(self.checked);
        let ClassConfig { parent, leaf, .. } = self.config;
        self.config = ClassConfig { parent, leaf, ..config };
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn cost_ns(bytes: u64, rate: u64) -> i64 {
    i64::try_from(u128::from(bytes) * u128::from(SECOND_NS) / u128::from(rate)).unwrap_or(i64::MAX)
}
