//! Which calls may be sent without a credit, in one number.

use crate::machine::Priority;

/// Priorities better than `level / 65536` are sent always, that one with a chance of the remainder / 65536, worse
/// ones only to probe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Level(u32);

/// A chance of one.
const WHOLE: u32 = 1 << 16;
/// The chance with which calls beyond the level are sent, so that their demand stays known: one in 256.
const PROBE: u32 = WHOLE / 256;

impl Level {
    /// Everything is sent.
    pub const OPEN: Self = Self(256 * WHOLE);

    /// Better priorities always, `priority` with `chance` from 0 to 1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a chance of at most 1 is within 65536"
    )]
    #[inline]
    pub fn at(priority: Priority, chance: f64) -> Self {
        Self(u32::from(priority.0) * WHOLE + (chance.clamp(0.0, 1.0) * f64::from(WHOLE)) as u32)
    }

    /// As carried by a grant. Anything above [`Level::OPEN`] is taken for it.
    #[must_use]
    pub fn from_wire(level: u32) -> Self {
        Self(level.min(Self::OPEN.0))
    }

    /// As a grant carries it.
    #[must_use]
    #[inline]
    pub fn to_wire(self) -> u32 {
        self.0
    }

    /// The chance of a call of `priority`, in 1/65536.
    #[inline]
    #[must_use]
    pub fn parts(self, priority: Priority) -> u32 {
        self.0.saturating_sub(u32::from(priority.0) * WHOLE).clamp(PROBE, WHOLE)
    }

    /// The chance of a call of `priority`, above 0 and at most 1.
    #[inline]
    #[must_use]
    pub fn chance(self, priority: Priority) -> f64 {
        f64::from(self.parts(priority)) / f64::from(WHOLE)
    }

    /// Whether calls of `priority` are let through for sure, and worse ones are not.
    #[inline]
    pub(super) fn is_sure(self, priority: Priority) -> bool {
        self != Self::OPEN && (u32::from(priority.0) + 1) * WHOLE < self.0
    }

    /// The same priorities, with `factor` times the chance of the marginal one.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most one whole chance")]
    #[inline]
    pub(super) fn times(self, factor: f64) -> Self {
        let chance = f64::from(self.0 % WHOLE) * factor;
        Self(self.0 - self.0 % WHOLE + chance.clamp(0.0, f64::from(WHOLE)) as u32)
    }

    /// The level for a client that lets calls through by the priority `claimed` which the server takes for `priority`: no
    /// lower than this, and high enough that they come with the chance of `priority`.
    #[inline]
    pub(super) fn in_claims(self, priority: Priority, claimed: Priority) -> Self {
        self.max(Self::at(claimed, self.chance(priority)))
    }

    /// Whether a call goes, if `carry` holds what earlier chances left over: with a chance of a third, each third one.
    ///
    /// Fewer surprises than a draw for each: over any stretch the number sent is within one of its mean.
    #[inline]
    pub(crate) fn passes(self, priority: Priority, carry: &mut u32) -> bool {
        Self::draw(self.parts(priority), carry)
    }

    /// The same for a call that was let through before with a chance of `came_by` / 65536: only what is missing is drawn.
    #[inline]
    pub(crate) fn passes_after(self, priority: Priority, came_by: u32, carry: &mut u32) -> bool {
        let (parts, came_by) = (self.parts(priority), came_by.clamp(PROBE, WHOLE));
        if came_by == WHOLE {
            return self.passes(priority, carry);
        }
        // The smaller one is below 2^16, and shifted below 2^32.
        parts >= came_by || Self::draw((parts << 16) / came_by, carry)
    }

    /// The same with a chance from 0 to 1; of one in 256 at least.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a chance of at most 1 is within 65536"
    )]
    #[inline]
    pub(super) fn passes_by(chance: f64, carry: &mut u32) -> bool {
        Self::draw(((chance.clamp(0.0, 1.0) * f64::from(WHOLE)) as u32).max(PROBE), carry)
    }

    #[inline]
    fn draw(parts: u32, carry: &mut u32) -> bool {
        *carry += parts;
        let passes = *carry >= WHOLE;
        if passes {
            *carry -= WHOLE;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_priorities_pass_and_worse_ones_probe() {
        let level = Level::at(Priority(100), 0.25);
        assert_eq!(level.parts(Priority(99)), WHOLE);
        assert_eq!(level.parts(Priority(100)), WHOLE / 4);
        assert_eq!(level.parts(Priority(101)), PROBE);
        assert_eq!(Level::OPEN.parts(Priority(255)), WHOLE);
        assert_eq!(Level::from_wire(u32::MAX), Level::OPEN);
    }

    #[test]
    fn the_marginal_priority_is_never_sure() {
        let level = Level::at(Priority(100), 1.0);
        assert!(level.is_sure(Priority(99)) && !level.is_sure(Priority(100)) && !level.is_sure(Priority(101)));
        assert!(!Level::OPEN.is_sure(Priority(0)), "nobody is held back");
    }

    #[test]
    fn a_factor_moves_the_chance_and_never_the_priority() {
        let level = Level::at(Priority(7), 0.5);
        assert_eq!(level.times(0.5), Level::at(Priority(7), 0.25));
        assert_eq!((level.times(3.0), level.times(0.0)), (Level::at(Priority(7), 1.0), Level::at(Priority(7), 0.0)));
        assert_eq!(Level::OPEN.times(1.5), Level::OPEN);
    }

    #[test]
    fn a_claimed_priority_is_told_the_chance_of_the_true_one_at_least() {
        let level = Level::at(Priority(0), 0.5);
        assert_eq!(level.in_claims(Priority(0), Priority(128)), Level::at(Priority(128), 0.5));
        let level = Level::at(Priority(128), 0.5);
        assert_eq!(level.in_claims(Priority(255), Priority(128)), level, "others of its calls may truly be that");
        assert_eq!(Level::OPEN.in_claims(Priority(0), Priority(255)), Level::OPEN);
    }

    #[test]
    fn each_fourth_call_passes_at_a_quarter() {
        let (level, mut carry) = (Level::at(Priority(7), 0.25), 0);
        let passed: Vec<_> = (0..8).map(|_| level.passes(Priority(7), &mut carry)).collect();
        assert_eq!(passed, [false, false, false, true, false, false, false, true]);
    }
    #[test]
    fn a_call_that_was_chosen_before_is_drawn_for_the_missing_part_only() {
        let (level, mut carry) = (Level::at(Priority(7), 0.25), 0);
        let mut passed = |came_by: u32| (0..8).filter(|_| level.passes_after(Priority(7), came_by, &mut carry)).count();
        assert_eq!([WHOLE / 8, WHOLE / 4, WHOLE / 2, WHOLE].map(&mut passed), [8, 8, 4, 2]);
        let nothing = Level::at(Priority(0), 0.0);
        assert!(nothing.passes_after(Priority(7), 0, &mut 0), "what came is a probe at least");
    }
}
