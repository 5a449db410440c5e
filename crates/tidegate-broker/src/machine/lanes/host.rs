//! The home's knowledge of its lanes.

use std::time::Duration;

use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::number::float;
use tidegate_core::{Instant, Rate};

use super::words::{Landed, Left, Stand};
use crate::machine::limiter::Unit;

/// Lanes that were shut are not opened again before: what shut them may last.
const REST: Duration = Duration::from_millis(100);
/// Messages after which a lane is told that they have come: a quarter of what may be under way,
const TELL_MESSAGES: u64 = 1_024;
/// and the same in bytes.
const TELL_BYTES: u64 = 1024 * 1024;

/// How far a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It sends everything as it is.
    Shut,
    /// It was told to hold.
    Told,
    /// It holds; it is not known yet how much of what it sent before waits here.
    Holds,
    /// It holds, and so many messages of the line here go before its own.
    Behind(u64),
    /// It has its share.
    Open,
    /// It was told to shut.
    Shutting,
    /// Its shard has ended.
    Gone,
}

/// The lanes of one topic, as its home knows them.
#[derive(Debug)]
pub(crate) struct Host {
    own: usize,
    /// Somebody publishes from another shard.
    wanted: bool,
    /// The last opening, and whether it is in force.
    epoch: u64,
    open: bool,
    /// By shard, as everything below.
    stages: Vec<Stage>,
    shares: Vec<Limit>,
    stands: Vec<Stand>,
    landed: Vec<Landed>,
    /// Tokens that lanes have left, and those that they minted after they were shut here.
    left: u64,
    minted: u64,
    shut_at: Instant,
    /// Lanes are not opened before.
    rests_until: Instant,
}

impl Host {
    /// The lanes of a topic that lives on `own`, on as many `shards`; all are shut.
    pub(crate) fn new(own: usize, shards: usize) -> Self {
        Self {
            own,
            wanted: false,
            epoch: 0,
            open: false,
            stages: vec![Stage::Shut; shards],
            shares: Vec::new(),
            stands: vec![Stand::default(); shards],
            landed: vec![Landed::default(); shards],
            left: 0,
            minted: 0,
            shut_at: Instant::ZERO,
            rests_until: Instant::ZERO,
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own;
        (0..self.stages.len()).filter(move |shard| *shard != own)
    }

    /// Something was published on another shard.
    pub(crate) fn on_guest(&mut self) {
        self.wanted = true;
    }

    /// The opening that is in force.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.open.then_some(self.epoch)
    }

    /// Lanes would be of use, and all are shut.
    pub(crate) fn would_open(&self, now: Instant) -> bool {
        self.wanted && !self.open && now >= self.rests_until && self.is_all_in()
    }

    /// No lane holds anything of this topic, or has a share.
    pub(crate) fn is_all_in(&self) -> bool {
        self.stages.iter().all(|stage| matches!(stage, Stage::Shut | Stage::Gone))
    }

    /// Opens lanes with these shares; the shards to be told to hold.
    pub(crate) fn open(&mut self, epoch: u64, shares: Vec<Limit>) -> Vec<usize> {
        (self.epoch, self.open, self.shares) = (epoch, true, shares);
        (self.left, self.minted) = (0, 0);
        let told: Vec<usize> = self.others().filter(|shard| self.stages[*shard] == Stage::Shut).collect();
        for shard in &told {
            self.stages[*shard] = Stage::Told;
        }
        told
    }

    /// The lane of `shard` holds.
    pub(crate) fn on_holds(&mut self, shard: usize, epoch: u64) {
        if self.epoch == epoch && self.stages[shard] == Stage::Told {
            self.stages[shard] = Stage::Holds;
        }
    }

    /// The line here has `depth` messages now, and whoever published before a lane held is in it: the lane that may go.
    pub(crate) fn next_to_go(&mut self, depth: u64) -> Option<usize> {
        if !self.open {
            return None;
        }
        for stage in &mut self.stages {
            // What stood before the lane's own can only become less.
            match stage {
                Stage::Holds => *stage = Stage::Behind(depth),
                Stage::Behind(left) => *left = (*left).min(depth),
                _ => {}
            }
        }
        self.stages.iter().position(|stage| *stage == Stage::Behind(0))
    }

    /// A message left the line here.
    #[inline]
    pub(crate) fn on_popped(&mut self) {
        for stage in &mut self.stages {
            if let Stage::Behind(left) = stage {
                *left = left.saturating_sub(1);
            }
        }
    }

    /// The share of the lane of `shard`.
    pub(crate) fn share(&self, shard: usize) -> Limit {
        self.shares[shard]
    }

    /// The lane of `shard` gets its share; the rate that is left here. `None` if the sum is no rate.
    pub(crate) fn go(&mut self, shard: usize) -> Option<Rate> {
        self.stages[shard] = Stage::Open;
        self.landed[shard] = Landed::default();
        self.rate_here()
    }

    fn rate_here(&self) -> Option<Rate> {
        let here = self.shares.iter().zip(&self.stages).filter(|(_, stage)| **stage != Stage::Open);
        here.map(|(share, _)| share.rate).try_fold(Rate::ZERO, Rate::checked_add)
    }

    /// What the lane of `shard` releases in `epoch` passes.
    #[inline]
    pub(crate) fn is_open_for(&self, shard: usize, epoch: u64) -> bool {
        self.open && self.epoch == epoch && self.stages[shard] == Stage::Open
    }

    /// Something that the lane of `shard` released has come; what it is to be told of that.
    #[inline]
    pub(crate) fn on_landed(&mut self, shard: usize, bytes: u64) -> Option<Landed> {
        let landed = &mut self.landed[shard];
        landed.messages += 1;
        landed.bytes += bytes;
        let tell = landed.messages >= TELL_MESSAGES || landed.bytes >= TELL_BYTES;
        tell.then(|| std::mem::take(landed))
    }

    /// Shuts all lanes; the shards to be told.
    pub(crate) fn shut(&mut self, now: Instant) -> Vec<usize> {
        if !self.open {
            return Vec::new();
        }
        (self.open, self.shut_at, self.rests_until) = (false, now, now + REST);
        let is_told = |stage: Stage| matches!(stage, Stage::Told | Stage::Holds | Stage::Behind(_) | Stage::Open);
        let told: Vec<usize> = self.others().filter(|shard| is_told(self.stages[*shard])).collect();
        for shard in &told {
            self.stages[*shard] = Stage::Shutting;
        }
        told
    }

    /// The lane of `shard` is shut.
    pub(crate) fn on_shut(&mut self, shard: usize, epoch: u64, left: Option<Left>) {
        if self.epoch != epoch || matches!(self.stages[shard], Stage::Shut | Stage::Gone) {
            return;
        }
        let was_shut = self.stages[shard] == Stage::Shutting;
        self.stages[shard] = Stage::Shut;
        self.stands[shard] = Stand::default();
        let Some(left) = left else { return };
        self.left = self.left.saturating_add(left.tokens);
        if was_shut && left.at > self.shut_at {
            let rate = self.shares[shard].rate;
            // In a bucket that was empty then.
            let bucket = TokenBucket::empty(Limit::new(rate, u64::MAX), self.shut_at);
            let minted = bucket.level(left.at).div_ceil(u128::from(rate.period_ns()));
            self.minted = self.minted.saturating_add(u64::try_from(minted).unwrap_or(u64::MAX));
        }
    }

    /// All lanes are shut: the tokens that come back. What they minted after they were shut here was minted here as well;
    /// it is taken off all together, since they may have lent it to each other.
    pub(crate) fn take_left(&mut self) -> u64 {
        let tokens = self.left.saturating_sub(self.minted);
        (self.left, self.minted) = (0, 0);
        tokens
    }

    /// The rate that is left here while lanes are open, after one has left by itself.
    pub(crate) fn rate_now(&self) -> Option<Rate> {
        if self.open { self.rate_here() } else { None }
    }

    /// The shard has ended.
    pub(crate) fn on_gone(&mut self, shard: usize) {
        self.stages[shard] = Stage::Gone;
        self.stands[shard] = Stand::default();
    }

    /// The lane of `shard` says how it stands.
    pub(crate) fn on_stand(&mut self, shard: usize, stand: Stand) {
        if !matches!(self.stages[shard], Stage::Shut | Stage::Gone) {
            self.stands[shard] = stand;
        }
    }

    /// Lanes that have a share.
    pub(crate) fn lanes(&self) -> u64 {
        self.stages.iter().filter(|stage| **stage == Stage::Open).count() as u64
    }

    /// Messages that wait in all lanes, with their memory and their publishers.
    pub(crate) fn waiting(&self) -> Stand {
        let mut all = Stand::default();
        for stand in &self.stands {
            all.messages += stand.messages;
            all.bytes += stand.bytes;
            all.body_bytes += stand.body_bytes;
            all.blocked += stand.blocked;
        }
        all
    }

    /// Tokens in the shares now.
    pub(crate) fn tokens(&self, now: Instant) -> f64 {
        self.buckets().map(|bucket| bucket.tokens(now)).sum()
    }

    /// Tokens that are missing from the shares now, and those that lines wait for.
    pub(crate) fn backlog(&self, unit: Unit, now: Instant) -> f64 {
        let missing = self.buckets().map(|bucket| float(bucket.limit().burst) - bucket.tokens(now));
        missing.sum::<f64>() + float(self.stands.iter().map(|stand| unit.cost(stand.messages, stand.body_bytes)).sum())
    }

    fn buckets(&self) -> impl Iterator<Item = &TokenBucket> {
        let open = self.stages.iter().zip(&self.stands).filter(|(stage, _)| **stage == Stage::Open);
        open.filter_map(|(_, stand)| stand.bucket.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn host() -> Host {
        let mut host = Host::new(1, 3);
        host.on_guest();
        assert!(host.would_open(at(0)));
        let share = Limit::new(Rate::per_s(1_000), 4);
        assert_eq!(host.open(5, vec![share; 3]), [0, 2]);
        host
    }

    #[test]
    fn a_lane_goes_when_what_it_sent_before_has_left_the_line() {
        let mut host = host();
        assert_eq!(host.next_to_go(0), None, "it does not hold yet");
        host.on_holds(0, 4);
        assert_eq!(host.next_to_go(0), None, "another opening");
        host.on_holds(0, 5);
        assert_eq!(host.next_to_go(2), None);
        host.on_popped();
        // Others have come behind.
        assert_eq!(host.next_to_go(9), None);
        host.on_popped();
        assert_eq!(host.next_to_go(9), Some(0));
        assert_eq!(host.go(0), Some(Rate::per_s(2_000)));
        assert_eq!((host.next_to_go(0), host.is_open_for(0, 5), host.is_open_for(2, 5)), (None, true, false));
    }

    #[test]
    fn what_a_lane_mints_after_its_home_has_shut_it_does_not_count() {
        let mut host = host();
        for shard in [0, 2] {
            host.on_holds(shard, 5);
        }
        for shard in [0, 2] {
            assert_eq!(host.next_to_go(0), Some(shard));
            host.go(shard);
        }
        assert_eq!(host.shut(at(10)), [0, 2]);
        assert!(!host.is_open_for(0, 5) && !host.is_all_in());
        // Only once.
        for _ in 0..2 {
            host.on_shut(0, 5, Some(Left { tokens: 1, at: at(12) }));
        }
        assert!(!host.is_all_in());
        // The first has lent the second what it minted.
        host.on_shut(2, 5, Some(Left { tokens: 4, at: at(11) }));
        assert_eq!((host.take_left(), host.take_left()), (1 + 4 - 2 - 1, 0));
        assert!(host.is_all_in() && !host.would_open(at(109)) && host.would_open(at(110)));
    }

    #[test]
    fn a_shard_that_has_ended_gets_no_lane() {
        let mut host = Host::new(0, 2);
        host.on_gone(1);
        host.on_guest();
        assert!(host.open(1, vec![Limit::new(Rate::per_s(1), 1); 2]).is_empty());
        assert!(host.is_all_in());
    }

    #[test]
    fn lanes_are_told_now_and_then_what_has_come() {
        let mut host = host();
        let told: Vec<_> = (0..2 * TELL_MESSAGES).filter_map(|_| host.on_landed(2, 1)).collect();
        assert_eq!(told, [Landed { messages: TELL_MESSAGES, bytes: TELL_MESSAGES }; 2]);
        assert_eq!(host.on_landed(2, TELL_BYTES), Some(Landed { messages: 1, bytes: TELL_BYTES }));
    }
}
