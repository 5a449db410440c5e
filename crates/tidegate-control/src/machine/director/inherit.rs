//! What a former leader had in force, taken over: nobody moves because another process leads.

use std::collections::BTreeMap;

use tidegate_core::Instant;
use tidegate_core::limit::Limit;

use super::super::portion::{Portion, WHOLE, sum};
use super::super::roster::NodeState;
use super::super::types::{NodeNo, PublisherNo};
use super::Director;
use super::types::{NodeName, Phase, Placement};

/// What a leader leaves to the next one.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Inherited {
    /// Where publishers belong.
    pub placement: Placement,
    /// What nodes have of the contract.
    pub parts: Vec<(NodeName, Limit)>,
    /// A plan stood: none is made before something changes.
    pub stands: bool,
}

impl Director {
    /// Takes over what another leader had in force, or this process before it was started again; at the next
    /// [`Event::Lead`](super::Event::Lead), which is to follow. Publishers that are not in its placement stay where they are
    /// seen. If a node of it does not take publishers any more, a new plan follows.
    pub fn inherit(&mut self, inherited: Inherited) {
        self.inherited = Some(inherited);
    }

    fn number_of(&self, name: &NodeName) -> Option<NodeNo> {
        self.numbers().find(|&node| self.node(node).name == *name)
    }

    /// Opens with what was inherited; false if no node of it takes publishers.
    pub(super) fn open_as(&mut self, inherited: &Inherited, now: Instant) -> bool {
        let Inherited { placement, parts, stands } = inherited;
        let home = |name: &NodeName| {
            let node = self.number_of(name)?;
            let known = self.node(node);
            (known.state == NodeState::Ready && known.clock.is_some()).then_some(node)
        };
        let homes: Vec<Option<NodeNo>> = placement.nodes.iter().map(home).collect();
        let is_whole = homes.iter().all(Option::is_some);
        let takes: Vec<NodeNo> = homes.iter().copied().flatten().collect();
        if takes.is_empty() {
            return false;
        }
        let place = |(number, known): (PublisherNo, &super::crowd::Known)| {
            let named = placement.publishers.get(&known.identity).and_then(|at| homes.get(*at as usize).copied());
            (number, named.flatten().or_else(|| takes.contains(&known.on).then_some(known.on)))
        };
        let places: Vec<(PublisherNo, Option<NodeNo>)> = self.crowd.iter().map(place).collect();
        for &node in &takes {
            self.standing.set_takes(node, true);
        }
        for (publisher, node) in places {
            self.standing.put(publisher, node);
        }
        self.settle_homeless();
        let contract = self.config.limit;
        let part = |(name, limit): &(NodeName, Limit)| Some((self.number_of(name)?, Portion::of(contract, *limit)));
        let kept: BTreeMap<NodeNo, Portion> = parts.iter().filter_map(part).collect();
        let whole = Portion { rate_shares: WHOLE, burst: contract.burst };
        if is_whole && takes.iter().all(|node| kept.contains_key(node)) && sum(kept.values()).is_within(whole) {
            self.set_parts(kept);
            self.adaptor.restart(now + self.config.fit.settle + self.config.adapt.window / 2);
        } else {
            self.divide(now);
        }
        if *stands && is_whole {
            (self.phase, self.plan_at) = (Phase::Stands, None);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use tidegate_core::Rate;

    use super::super::super::types::{NodeLoad, Slo};
    use super::super::types::{Ask, DirectorConfig, Event, PlacementChange, Reading, Seen};
    use super::*;

    fn limit(per_s: u64, burst: u64) -> Limit {
        Limit::new(Rate::per_s(per_s), burst)
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn inherited() -> Inherited {
        Inherited {
            placement: Placement {
                revision: 7,
                nodes: vec!["a".into(), "b".into()],
                default: vec![1.0, 1.0],
                publishers: [("p", 0), ("q", 1)].map(|(name, at)| (name.into(), at)).into(),
            },
            parts: vec![("a".into(), limit(700, 7)), ("b".into(), limit(300, 3))],
            stands: true,
        }
    }

    /// A director that leads over `nodes`, of which each sees the publishers that are named with it; and what it tells.
    fn lead(nodes: &[(&str, &[&str])], inherited: Inherited) -> (Director, Vec<PlacementChange>) {
        let slo = Slo { quantile: 0.99, within: Duration::from_millis(1) };
        let mut director = Director::new(DirectorConfig::new(limit(1_000, 10), slo), at(0));
        let load = NodeLoad { mcap_per_s: 10_000.0, allocated_per_s: 0.0 };
        for (name, _) in nodes {
            director.on_event(Event::Node { node: (*name).into(), state: NodeState::Ready, load }, at(0));
        }
        director.inherit(inherited);
        let quiet = Duration::from_secs(10);
        director.on_event(Event::Lead { leads: true, above: 100, quiet }, at(1));
        let mut told = Vec::new();
        let mut now = 1;
        while now < 9_000 {
            while let Some(order) = director.poll_order() {
                let event = match order.what {
                    Ask::Sense { node, .. } => {
                        let here =
                            nodes.iter().find(|(name, _)| node == (*name).into()).map_or(&[][..], |(_, here)| here);
                        let seen =
                            |name: &&str| Seen { identity: (*name).into(), correlation: None, rate_per_s: 100.0 };
                        let publishers = here.iter().map(seen).collect();
                        let reading = Reading { clock_us: now * 1_000, publishers, ..Reading::default() };
                        Event::Sensed { order: order.no, reading }
                    }
                    Ask::Prepare { .. } => Event::Prepared { order: order.no, missing: Vec::new() },
                    Ask::Place(change) => {
                        told.push(change);
                        continue;
                    }
                    other => panic!("{other:?} before the quiet ended"),
                };
                director.on_event(event, at(now));
            }
            let next = director.next_timeout().map_or(at(9_000), |next| next.max(at(now)));
            now = 1 + u64::try_from(next.since(at(0)).as_millis()).unwrap();
            director.on_timeout(at(now));
        }
        (director, told)
    }

    #[test]
    fn nothing_changes_when_another_leads() {
        // `q` is with `b` although it was seen at `a`: it is on its way there.
        let (director, told) = lead(&[("a", &["p", "q", "new"]), ("b", &[])], inherited());
        let view = director.view(at(9_000));
        assert_eq!((view.phase, view.publishers), (Phase::Stands, 3));
        let wanted: Vec<(u64, f64, u32)> = view
            .nodes
            .iter()
            .map(|node| (node.wanted.burst, node.wanted.rate.as_per_s().round(), node.publishers))
            .collect();
        assert_eq!(wanted, [(7, 700.0, 2), (3, 300.0, 1)]);
        let placement = director.placement();
        assert!(placement.revision > 100 && told[0].nodes.len() == 2, "{told:?}");
        let places: Vec<(&str, u32)> = placement.publishers.iter().map(|(name, at)| (name.as_str(), *at)).collect();
        assert_eq!(places, [("new", 0), ("p", 0), ("q", 1)]);
    }

    #[test]
    fn a_node_that_is_gone_makes_a_new_plan() {
        let (director, _) = lead(&[("a", &["p", "q"])], inherited());
        let view = director.view(at(9_000));
        assert_eq!((view.phase, view.nodes[0].publishers), (Phase::Plans, 2));
        assert_eq!(view.nodes[0].wanted, limit(1_000, 10), "the whole contract");
    }

    #[test]
    fn without_any_of_its_nodes_it_opens_as_ever() {
        let (director, told) = lead(&[("c", &["p"])], Inherited { stands: false, ..inherited() });
        assert_eq!((director.view(at(9_000)).nodes[0].publishers, told[0].nodes.len()), (1, 1));
    }
}
