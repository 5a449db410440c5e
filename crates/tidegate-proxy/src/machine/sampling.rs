//! Which requests have a line in the access log, and how many each line stands for.

use tidegate_core::Rng;
use tidegate_wire::trace_context::TraceParent;

/// The rule.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// The part of requests that are written by chance, 0 to 1.
    pub sample: f64,
    /// What is written in any case.
    pub always: Always,
}

/// What is written in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Always {
    /// Answers of 500 and above, but for refusals.
    pub server_errors: bool,
    /// What was refused.
    pub refused: bool,
    /// Requests that their callers trace.
    pub traced: bool,
}

/// What chance said about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chance {
    /// It is written.
    Chosen,
    /// It is not, unless it is one that is written in any case.
    Passed,
}

/// What is known of a request's line when the request begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Draw {
    /// It is written in any case.
    Certain,
    /// It is for chance to say, and for how the request ends.
    By(Chance),
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// A limit said no, or there was no room.
    Refused,
    /// Its answer is one of 500 and above.
    ServerError,
    /// Any other way.
    Other,
}

impl Sampling {
    /// Everything is written.
    pub const ALL: Self = Self { sample: 1.0, always: Always { server_errors: false, refused: false, traced: false } };

    /// Asks chance.
    #[must_use]
    pub fn choose(&self, rng: &mut Rng) -> Chance {
        if self.sample >= 1.0 || rng.chance(self.sample) { Chance::Chosen } else { Chance::Passed }
    }

    /// What is known of a request with this `caller`'s `traceparent`.
    #[must_use]
    pub fn draw(&self, chance: Chance, caller: Option<TraceParent>) -> Draw {
        if self.always.traced && caller.is_some_and(TraceParent::is_sampled) { Draw::Certain } else { Draw::By(chance) }
    }

    /// Whether a line may still be written, so that it is to be gathered.
    #[must_use]
    pub fn may_be_written(&self, draw: Draw) -> bool {
        self.always.server_errors || self.always.refused || draw != Draw::By(Chance::Passed)
    }

    /// The probability with which a line that is written was: one of 0.01 stands for a hundred requests. `None` if it is not
    /// written.
    #[must_use]
    pub fn probability(&self, draw: Draw, end: End) -> Option<f64> {
        let in_any_case = match end {
            End::Refused => self.always.refused,
            End::ServerError => self.always.server_errors,
            End::Other => false,
        };
        match draw {
            Draw::Certain => Some(1.0),
            Draw::By(_) if in_any_case => Some(1.0),
            Draw::By(Chance::Chosen) => Some(self.sample),
            Draw::By(Chance::Passed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::trace_context::{SpanId, TraceId};

    use super::*;

    const NOTHING: Always = Always { server_errors: false, refused: false, traced: false };

    fn caller(sampled: bool) -> TraceParent {
        TraceParent::root(TraceId::of_random(1), SpanId::of_random(1), sampled)
    }

    #[test]
    fn the_lines_stand_for_all_requests_together() {
        let always = Always { server_errors: true, refused: false, traced: true };
        let (rule, mut rng) = (Sampling { sample: 0.1, always }, Rng::new(7));
        let (mut lines, mut weight) = (0, 0.0);
        for number in 0..100_000_u32 {
            let end = match number % 10 {
                1 => End::ServerError,
                2 => End::Refused,
                _ => End::Other,
            };
            let draw = rule.draw(rule.choose(&mut rng), Some(caller(number % 20 == 3)));
            if let Some(probability) = rule.probability(draw, end) {
                lines += 1;
                weight += 1.0 / probability;
            }
        }
        // A tenth are errors and a twentieth traced; of the rest, a tenth.
        assert!((23_000..24_000).contains(&lines), "{lines}");
        assert!((97_000.0..103_000.0).contains(&weight), "{weight}");
    }

    #[test]
    fn only_what_can_be_written_is_gathered() {
        let (passed, chosen) = (Draw::By(Chance::Passed), Draw::By(Chance::Chosen));
        let rule = |always| Sampling { sample: 0.0, always };
        assert!(!rule(NOTHING).may_be_written(passed) && rule(NOTHING).may_be_written(chosen));
        assert!(rule(Always { refused: true, ..NOTHING }).may_be_written(passed));
        assert_eq!(rule(NOTHING).probability(passed, End::ServerError), None);
        assert_eq!(rule(Always { server_errors: true, ..NOTHING }).probability(passed, End::ServerError), Some(1.0));
        assert_eq!(rule(Always { server_errors: true, ..NOTHING }).probability(passed, End::Refused), None);
        assert_eq!(rule(Always { refused: true, ..NOTHING }).probability(passed, End::Refused), Some(1.0));
    }

    #[test]
    fn a_traced_request_is_certain_only_where_the_rule_says_so() {
        let mut rng = Rng::new(1);
        let none = Sampling { sample: 0.0, always: NOTHING };
        let traced = Sampling { always: Always { traced: true, ..NOTHING }, ..none };
        let chance = none.choose(&mut rng);
        assert_eq!(chance, Chance::Passed);
        assert_eq!(none.draw(chance, Some(caller(true))), Draw::By(chance));
        assert_eq!(traced.draw(chance, Some(caller(true))), Draw::Certain);
        assert_eq!(
            (traced.draw(chance, Some(caller(false))), traced.draw(chance, None)),
            (Draw::By(chance), Draw::By(chance))
        );
        assert_eq!(Sampling { sample: 1.0, always: NOTHING }.choose(&mut rng), Chance::Chosen);
    }
}
