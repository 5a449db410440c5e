//! When a director leads and by which configuration, and how it ends.

use core::time::Duration;

use tidegate_core::Instant;

use super::super::adaptor::Adaptor;
use super::super::portion::Portion;
use super::super::steps::{LOAN, Steps, StepsConfig};
use super::super::term::TermEnd;
use super::super::types::{NodeNo, PublisherNo};
use super::types::{Ask, DirectorConfig, Phase};
use super::{Asked, Director};

impl Director {
    /// Another configuration, from now on.
    pub(super) fn on_configured(&mut self, config: DirectorConfig, reissues: bool, now: Instant) {
        let limit = config.limit;
        let before = core::mem::replace(&mut self.config, config);
        let of_plan = |config: &DirectorConfig| (config.slo, config.principles, config.fit, config.planner);
        let plans = of_plan(&before) != of_plan(&self.config);
        if self.config.adapt != before.adapt {
            self.adaptor = Adaptor::new(self.config.adapt, now);
        }
        if limit != before.limit {
            self.on_limit(limit, now);
        }
        // Its channels may be others.
        for node in &mut self.nodes {
            (node.prepared, node.missing) = (false, Vec::new());
        }
        if let Some(steps) = &mut self.steps {
            if reissues {
                steps.reissue();
            }
            if plans && self.crowd.len() > 0 {
                self.running = None;
                self.plan_at = Some(now);
            }
        }
    }

    /// A term that was not renewed in time is over, also if nobody says so: this process may have stood still.
    pub(super) fn end_term(&mut self, now: Instant) {
        if self.steps.is_some() && self.leads_until.has_come(now) {
            self.stop_leading();
        }
    }

    fn stop_leading(&mut self) {
        (self.steps, self.phase, self.running) = (None, Phase::Follows, None);
        self.orders.clear();
        self.waiting.clear();
    }

    pub(super) fn on_lead(&mut self, leads: bool, above: u64, quiet: Duration, now: Instant) {
        if self.phase == Phase::Ended {
            return;
        }
        self.waiting.clear();
        self.running = None;
        self.opened = false;
        self.leads_until = TermEnd::UNKNOWN;
        if !leads {
            return self.stop_leading();
        }
        let config = StepsConfig {
            lease: self.config.lease,
            renew_every: self.config.renew_every,
            answer_within: self.config.answer_within,
            linger: if self.config.lends { LOAN } else { Duration::ZERO },
        };
        let quiet_until = if quiet.is_zero() { Instant::ZERO } else { now + quiet + quiet / 1_000 };
        let mut steps = Steps::new(config, self.config.limit, quiet_until, above);
        for (number, node) in (0..).map(NodeNo).zip(&mut self.nodes) {
            if !node.answers() {
                (node.clock, node.listed) = (None, None);
            }
            if let Some((at, clock_us)) = node.clock {
                steps.on_clock(&number, clock_us, at);
            }
        }
        // Everybody is told anew where to send.
        let publishers: Vec<PublisherNo> = self.crowd.iter().map(|(number, _)| number).collect();
        for &publisher in &publishers {
            if let Some(known) = self.crowd.get_mut(publisher) {
                known.told = None;
            }
            self.standing.put(publisher, None);
        }
        for node in self.numbers() {
            self.standing.set_takes(node, false);
        }
        self.dirty = publishers;
        self.told = (Vec::new(), Vec::new());
        self.left.clear();
        self.parts.clear();
        self.steps = Some(steps);
        self.placement = self.placement.max(above);
        self.adaptor = Adaptor::new(self.config.adapt, now);
        (self.split, self.split_above) = (None, self.split_above.max(above));
        (self.phase, self.led_since, self.sense_at, self.sweep_at) = (Phase::Watches, now, now, now);
        self.plan_at = (self.crowd.len() > 0).then_some(now + self.config.watch_first);
        self.watched_since = now;
    }

    pub(super) fn on_end(&mut self, now: Instant) {
        let Some(steps) = self.steps.take() else {
            self.phase = Phase::Ended;
            return;
        };
        self.orders.clear();
        self.waiting.clear();
        self.running = None;
        let revision = steps.revision() + 1;
        for node in self.numbers().filter(|node| steps.most(node) != Portion::NONE).collect::<Vec<_>>() {
            let ask = Ask::Withdraw { node: self.node(node).name.clone(), revision };
            self.ask(node, Asked::Withdraw, self.config.answer_within, now, ask);
        }
        self.phase = Phase::Ended;
    }
}
