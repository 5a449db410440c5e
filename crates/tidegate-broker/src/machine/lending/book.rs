//! The circles of a shard, and what went through them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_core::Instant;
use tidegate_core::lend::{Circle, Frame, LendConfig, Lending, Member, Memory, OpenError, Position, Purse};
use tidegate_wire::nsq::TopicName;

use super::split::{LendState, Split, WhySplit, member};
use super::{Addressed, BOOTS_PER_START};

/// What lending looks like in a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LendSnapshot {
    /// Topics whose orders ask for it, by name.
    pub circles: Vec<CircleSnapshot>,
    /// Datagrams sent,
    pub sent: u64,
    /// received,
    pub received: u64,
    /// and received but unreadable, of another key, or beyond what a batch takes.
    pub refused: u64,
}

/// One topic that is to lend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CircleSnapshot {
    /// Which.
    pub topic: TopicName,
    /// How it lends.
    pub state: LendState,
    /// Its circle, if it is in one.
    pub circle: Option<u64>,
    /// The generation of its split.
    pub generation: u64,
    /// Where it stands.
    pub position: Position,
    /// The other brokers of the circle.
    pub flows: Vec<FlowSnapshot>,
}

/// What went between this broker and another in one circle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowSnapshot {
    /// Name of the other.
    pub node: String,
    /// Where it takes datagrams.
    pub address: SocketAddr,
    /// Tokens that it was given,
    pub gave: u64,
    /// and that it gave, since this broker joined.
    pub got: u64,
}

/// Parts of tokens are shown as the next whole number of them.
fn in_tokens(position: Position, grain: u64) -> Position {
    let Position { base, lent, borrowed, withheld } = position;
    let [base, lent, borrowed, withheld] = [base, lent, borrowed, withheld].map(|parts| parts.div_ceil(grain));
    Position { base, lent, borrowed, withheld }
}

/// A running sum of another session begins anew.
#[derive(Clone, Copy, Default, Debug)]
struct Sum {
    session: u64,
    last: u64,
    total: u64,
}

impl Sum {
    /// `sum` was given in `session`; what comes late is less.
    fn note(&mut self, session: u64, sum: u64) {
        if session > self.session {
            (self.session, self.last) = (session, 0);
        }
        if session == self.session && sum > self.last {
            self.total += sum - self.last;
            self.last = sum;
        }
    }
}

#[derive(Debug)]
struct Flow {
    member: Member,
    node: String,
    address: SocketAddr,
    gave: Sum,
    got: Sum,
}

/// A circle that the shard is in, or leaves.
#[derive(Debug)]
pub(crate) struct Place<K> {
    topic: TopicName,
    /// The topic; `None` once it is deleted.
    pub(crate) key: Option<K>,
    generation: u64,
    /// What one token is in the frames.
    grain: u64,
    flows: Vec<Flow>,
}

/// What is to be for a topic.
#[derive(Debug, Default)]
struct Wish {
    split: Option<Arc<Split>>,
    circle: Option<Circle>,
    /// Circles of this generation and of older ones were left: they are not joined again.
    left: u64,
    /// Loans of an earlier circle have not ended before.
    not_before: Instant,
    why: Option<WhySplit>,
}

/// See the [module](super). `K` is the key of a topic.
#[derive(Debug)]
pub(crate) struct Lender<K> {
    shard: usize,
    /// No earlier process of this broker lends any more.
    started: Instant,
    /// The next number of sessions, and how many are left.
    boots: std::ops::Range<u32>,
    /// It has the number of the last split that was joined.
    lending: Option<(Member, Lending)>,
    /// At most [`CIRCLES_MAX`](tidegate_core::lend::CIRCLES_MAX).
    places: BTreeMap<Circle, Place<K>>,
    leaving: BTreeSet<Circle>,
    wishes: BTreeMap<TopicName, Wish>,
    wishes_max: usize,
    /// Where other members take datagrams; at most as many as the machine has peers.
    addresses: BTreeMap<Member, SocketAddr>,
    inbox: Vec<(Frame, Instant)>,
    sent: u64,
    received: u64,
    pub(crate) refused: u64,
}

impl<K: Copy> Lender<K> {
    /// The lender of `shard`, which remembers the splits of at most `wishes_max` topics.
    pub(crate) fn new(boot: u32, (shard, wishes_max): (usize, usize), started: Instant) -> Self {
        Self {
            shard,
            started,
            boots: boot..boot.saturating_add(BOOTS_PER_START),
            lending: None,
            places: BTreeMap::new(),
            leaving: BTreeSet::new(),
            wishes: BTreeMap::new(),
            wishes_max,
            addresses: BTreeMap::new(),
            inbox: Vec::new(),
            sent: 0,
            received: 0,
            refused: 0,
        }
    }

    pub(crate) fn machine(&mut self) -> Option<(&mut Lending, &BTreeMap<Circle, Place<K>>)> {
        let Self { lending, places, .. } = self;
        lending.as_mut().map(|(_, lending)| (lending, &*places))
    }

    /// When to do something if nothing comes.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.lending.as_ref()?.1.next_timeout()
    }

    pub(crate) fn wish(&mut self, topic: &TopicName, split: Option<Arc<Split>>) {
        if let Some(wish) = self.wishes.get_mut(topic) {
            wish.split = split;
        } else if split.is_some() && self.wishes.len() < self.wishes_max {
            self.wishes.insert(topic.clone(), Wish { split, ..Wish::default() });
        }
    }

    pub(crate) fn wished(&self, topic: &TopicName) -> Option<Arc<Split>> {
        self.wishes.get(topic)?.split.clone()
    }

    /// The circle that `topic` is in, or leaves.
    pub(crate) fn circle_of(&self, topic: &TopicName) -> Option<Circle> {
        self.wishes.get(topic)?.circle
    }

    pub(crate) fn is_leaving(&self, circle: Circle) -> bool {
        self.leaving.contains(&circle)
    }

    pub(crate) fn is_in_a_circle(&self) -> bool {
        !self.places.is_empty()
    }

    pub(crate) fn place(&self, circle: Circle) -> Option<&Place<K>> {
        self.places.get(&circle)
    }

    /// `split` says that the topic is in `circle`.
    pub(crate) fn is_circle_of(&self, split: &Split, circle: Circle) -> bool {
        self.place(circle).is_some_and(|place| split.circle(place.topic.as_str(), place.grain) == circle)
    }

    pub(crate) fn open_circles(&self) -> Vec<(TopicName, Circle)> {
        let open = self.places.iter().filter(|(circle, _)| !self.leaving.contains(circle));
        open.map(|(circle, place)| (place.topic.clone(), *circle)).collect()
    }

    /// Opens the circle of `split` for the topic, whose bucket is `purse`.
    pub(crate) fn join(
        &mut self,
        (topic, key): (&TopicName, K),
        split: &Split,
        (base, keep, grain): (u64, u64, u64),
        purse: &mut impl Purse,
        now: Instant,
    ) -> Result<(), WhySplit> {
        let Some(wish) = self.wishes.get(topic) else { return Err(WhySplit::Full) };
        if split.generation <= wish.left {
            return Err(WhySplit::Left);
        }
        if now < wish.not_before {
            return Err(WhySplit::Starting);
        }
        let own = member(split.own, self.shard);
        let others = split.nodes.iter().filter(|node| node.number != split.own);
        let flows: Vec<Flow> = others
            .map(|node| {
                let (member, address) = node.shard_of(topic.as_str());
                Flow { member, node: node.name.clone(), address, gave: Sum::default(), got: Sum::default() }
            })
            .collect();
        let members: Vec<Member> = flows.iter().map(|flow| flow.member).collect();
        let circle = split.circle(topic.as_str(), grain);
        self.lending_as(own)?;
        let Some((_, lending)) = &mut self.lending else { return Err(WhySplit::Full) };
        // What an earlier process of this broker lent is over when the machine trusts itself.
        let opened = lending.open(circle, &members, (base, keep), Memory::Unknown, purse, now);
        opened.map_err(|why| match why {
            OpenError::Open => WhySplit::Left,
            _ => WhySplit::Full,
        })?;
        self.addresses.extend(flows.iter().map(|flow| (flow.member, flow.address)));
        let generation = split.generation;
        self.places.insert(circle, Place { topic: topic.clone(), key: Some(key), generation, grain, flows });
        if let Some(wish) = self.wishes.get_mut(topic) {
            (wish.circle, wish.why) = (Some(circle), None);
        }
        Ok(())
    }

    /// The machine is the one of `own`: another one is made when no circle is left.
    fn lending_as(&mut self, own: Member) -> Result<(), WhySplit> {
        match &self.lending {
            Some((is, _)) if *is == own => return Ok(()),
            Some(_) if self.is_in_a_circle() => return Err(WhySplit::Starting),
            _ => {}
        }
        let boot = self.boots.next().ok_or(WhySplit::Full)?;
        self.lending = Some((own, Lending::new(LendConfig::new(own), boot, self.started)));
        self.addresses.clear();
        Ok(())
    }

    /// `circle` was left, and may not be over yet.
    pub(crate) fn leave(&mut self, circle: Circle) {
        self.leaving.insert(circle);
        if let Some(place) = self.places.get(&circle)
            && let Some(wish) = self.wishes.get_mut(&place.topic)
        {
            wish.left = wish.left.max(place.generation);
        }
    }

    /// The topic of `circle` is gone; what it lent is over at `until`.
    pub(crate) fn forfeit(&mut self, circle: Circle, until: Instant) {
        let Some(place) = self.places.get_mut(&circle) else { return };
        place.key = None;
        if let Some(wish) = self.wishes.get_mut(&place.topic) {
            (wish.circle, wish.not_before) = (None, until);
        }
    }

    /// Forgets circles that are over; their topics.
    pub(crate) fn sweep(&mut self, now: Instant) -> Vec<TopicName> {
        let Self { leaving, lending, places, wishes, .. } = self;
        let mut left = Vec::new();
        leaving.retain(|circle| {
            let open = lending.as_ref().is_some_and(|(_, lending)| lending.account(*circle).is_some());
            if !open && let Some(place) = places.remove(circle) {
                if let Some(wish) = wishes.get_mut(&place.topic)
                    && wish.circle == Some(*circle)
                {
                    (wish.circle, wish.not_before) = (None, now);
                }
                left.push(place.topic);
            }
            open
        });
        left
    }

    pub(crate) fn note(&mut self, topic: &TopicName, why: Option<WhySplit>) {
        if let Some(wish) = self.wishes.get_mut(topic) {
            wish.why = why;
        }
    }

    pub(crate) fn receive(&mut self, frame: Frame, now: Instant, most: usize) {
        self.received += 1;
        if self.lending.is_none() {
            return;
        }
        if self.inbox.len() >= most {
            self.refused += 1;
            return;
        }
        for entry in &frame.entries {
            if let Some(flow) = self.flow(entry.circle, frame.from) {
                flow.got.note(frame.mine, entry.given);
            }
        }
        self.inbox.push((frame, now));
    }

    /// What went between this broker and `member` in `circle`.
    fn flow(&mut self, circle: Circle, member: Member) -> Option<&mut Flow> {
        self.places.get_mut(&circle)?.flows.iter_mut().find(|flow| flow.member == member)
    }

    pub(crate) fn take_inbox(&mut self) -> Vec<(Frame, Instant)> {
        std::mem::take(&mut self.inbox)
    }

    /// The next frame to send, and where.
    pub(crate) fn poll_frame(&mut self) -> Option<Addressed> {
        loop {
            let frame = self.lending.as_mut()?.1.poll_output()?;
            let Some(&address) = self.addresses.get(&frame.to) else { continue };
            for entry in &frame.entries {
                if let Some(flow) = self.flow(entry.circle, frame.to) {
                    flow.gave.note(frame.mine, entry.given);
                }
            }
            self.sent += 1;
            return Some((address, frame));
        }
    }

    pub(crate) fn state_of(&self, topic: &TopicName) -> Option<LendState> {
        let wish = self.wishes.get(topic)?;
        Some(match wish.circle {
            Some(circle) if self.leaving.contains(&circle) => LendState::Leaves,
            Some(_) => LendState::Lends,
            None => {
                wish.split.as_ref()?;
                LendState::Split(wish.why.unwrap_or(WhySplit::Starting))
            }
        })
    }

    pub(crate) fn snapshot(&self) -> LendSnapshot {
        let of_wish = |(topic, wish): (&TopicName, &Wish)| {
            let state = self.state_of(topic)?;
            let place = wish.circle.and_then(|circle| self.places.get(&circle));
            let grain = place.map_or(1, |place| place.grain);
            let flow = |flow: &Flow| FlowSnapshot {
                node: flow.node.clone(),
                address: flow.address,
                gave: flow.gave.total / grain,
                got: flow.got.total / grain,
            };
            let position = wish.circle.and_then(|circle| self.lending.as_ref()?.1.account(circle)).unwrap_or_default();
            let position = in_tokens(position, grain);
            Some(CircleSnapshot {
                topic: topic.clone(),
                state,
                circle: wish.circle.map(|circle| circle.0),
                generation: place.map_or(wish.split.as_ref().map_or(0, |split| split.generation), |it| it.generation),
                position,
                flows: place.map_or_else(Vec::new, |place| place.flows.iter().map(flow).collect()),
            })
        };
        LendSnapshot {
            circles: self.wishes.iter().filter_map(of_wish).collect(),
            sent: self.sent,
            received: self.received,
            refused: self.refused,
        }
    }
}
