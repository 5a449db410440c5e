//! What a ticket of this scheme's says of its call, beside what those of every scheme say.

use crate::machine::Ticket;

/// Where a call is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Stage {
    Waiting,
    Running,
    /// Refused; told of once more when that was answered.
    Shed,
    /// It waits for its client or for something behind its handler.
    Paused,
}

/// The lowest 22 bits of a session's generation: with its id they name one client for as good as ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Generation(u64);

impl Generation {
    #[inline]
    pub(super) fn of(generation: u32) -> Self {
        Self(u64::from(generation) & Mark::GENERATION)
    }
}

/// A call's stage, its session's generation and its predicted wait, in the number that a ticket has room for: a whole
/// ticket is copied at each of a call's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark(u64);

impl Mark {
    const STAGE_BITS: u32 = 2;
    const GENERATION_BITS: u32 = 22;
    const PREDICTED_AT: u32 = Self::STAGE_BITS + Self::GENERATION_BITS;
    const STAGE: u64 = (1 << Self::STAGE_BITS) - 1;
    const GENERATION: u64 = (1 << Self::GENERATION_BITS) - 1;
    /// The longest wait that it can hold: eighteen minutes.
    pub(super) const LONGEST_NS: u64 = (1 << (u64::BITS - Self::PREDICTED_AT)) - 1;

    /// Of a call that waits, for `predicted_ns` by what was predicted: at most [`Mark::LONGEST_NS`].
    #[inline]
    pub(super) fn new(generation: Generation, predicted_ns: u64) -> Self {
        let predicted_ns = predicted_ns.min(Self::LONGEST_NS);
        Self(generation.0 << Self::STAGE_BITS | predicted_ns << Self::PREDICTED_AT).at(Stage::Waiting)
    }

    /// Of nobody's call, which was refused.
    pub(super) fn nobody() -> Self {
        Self(0).at(Stage::Shed)
    }

    /// What stands in a ticket.
    #[inline]
    pub(super) fn of(ticket: &Ticket) -> Self {
        Self(ticket.mark)
    }

    /// For a ticket.
    #[inline]
    pub(super) fn to_bits(self) -> u64 {
        self.0
    }

    /// The same call at another stage.
    #[inline]
    pub(super) fn at(self, stage: Stage) -> Self {
        let stage = match stage {
            Stage::Waiting => 0,
            Stage::Running => 1,
            Stage::Shed => 2,
            Stage::Paused => 3,
        };
        Self(self.0 & !Self::STAGE | stage)
    }

    #[inline]
    pub(super) fn stage(self) -> Stage {
        match self.0 & Self::STAGE {
            0 => Stage::Waiting,
            1 => Stage::Running,
            2 => Stage::Shed,
            _ => Stage::Paused,
        }
    }

    #[inline]
    pub(super) fn generation(self) -> Generation {
        Generation(self.0 >> Self::STAGE_BITS & Self::GENERATION)
    }

    #[inline]
    pub(super) fn predicted_ns(self) -> u64 {
        self.0 >> Self::PREDICTED_AT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_stays_what_it_was_at_every_stage() {
        let generation = Generation::of(u32::MAX);
        for predicted_ns in [0, 1, 12_345, Mark::LONGEST_NS, u64::MAX] {
            for stage in [Stage::Waiting, Stage::Running, Stage::Shed, Stage::Paused] {
                let mark = Mark::new(generation, predicted_ns).at(Stage::Paused).at(stage);
                assert_eq!((mark.stage(), mark.generation()), (stage, generation));
                assert_eq!(mark.predicted_ns(), predicted_ns.min(Mark::LONGEST_NS));
            }
        }
        assert_ne!(Generation::of(7), Generation::of(9));
    }
}
