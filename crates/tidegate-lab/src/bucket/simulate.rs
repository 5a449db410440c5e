//! The production bucket in virtual time.

use hdrhistogram::Histogram;
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rng};
use tidegate_sim::line::Line;
use tidegate_sim::workload::{Arrival, Periodic, Poisson, Publishers, trace};

use super::assign::Assigner;
use super::{Arrivals, BucketAnswer, BucketError, BucketQuestion, MessageDelay, Method, Part};
use crate::statistics::{Interval, float, interval_of};

/// How likely each stated interval holds the truth.
const CONFIDENCE: f64 = 0.95;
/// Stretches of a run whose means are compared: enough for a good t, few enough to be long.
const STRETCHES: u64 = 50;
/// Messages in a stretch at least; below, the stretches are surely not independent.
const STRETCH_MIN: u64 = 100;
/// Numbers of the streams of random numbers.
const ARRIVALS: u64 = 0;
pub(super) const ASSIGNMENT: u64 = 1;

/// Runs the messages of `question` through the core's gate, or one for each part.
///
/// # Errors
/// If the question makes no sense, or the bucket cannot be split so.
pub fn simulate(question: &BucketQuestion) -> Result<BucketAnswer, BucketError> {
    let mut delays = matches!(question.arrivals, Arrivals::List(_)).then(Vec::new);
    let keep = delays.as_mut();
    let observed = observe(question, &[], keep)?;
    let share = observed.interval(CONFIDENCE, |stretch| stretch.delayed.into());
    let mean = observed.interval(CONFIDENCE, |stretch| stretch.delay_ns);
    let bounds = |interval: Interval, unit: f64| {
        [interval.mean - interval.half_width, interval.mean + interval.half_width].map(|bound| bound / unit)
    };
    // Of a list, every message was counted: there is nothing to be unsure of.
    let sampled = delays.is_none();
    Ok(BucketAnswer {
        method: Method::Simulation,
        load: question.load(),
        share_delayed: observed.share_delayed(),
        share_delayed_interval: share.filter(|_| sampled).map(|share| bounds(share, 1.0)),
        delay_us_mean: observed.delay_us_mean(),
        delay_us_mean_interval: mean.filter(|_| sampled).map(|mean| bounds(mean, 1e3)),
        delay_us_p50: observed.delay_us_quantile(0.5),
        delay_us_p90: observed.delay_us_quantile(0.9),
        delay_us_p95: observed.delay_us_quantile(0.95),
        delay_us_p99: observed.delay_us_quantile(0.99),
        delay_us_p999: observed.delay_us_quantile(0.999),
        delay_us_max: Some(float(observed.delay_ns_max) / 1e3),
        confidence: CONFIDENCE,
        messages: Some(observed.total.messages),
        parts: observed.parts,
        delays,
    })
}

/// Runs the messages of `question`; counts also those delayed longer than each of `thresholds_ns`.
pub(crate) fn observe(
    question: &BucketQuestion,
    thresholds_ns: &[u64],
    keep: Option<&mut Vec<MessageDelay>>,
) -> Result<Observed, BucketError> {
    let limits = question.parts()?;
    let mut rng = Rng::stream(question.seed, ARRIVALS);
    let run = |messages| Run::new(question, limits, messages, thresholds_ns);
    let of = |count, rate| Publishers { count, rate, batch: question.batch };
    Ok(match &question.arrivals {
        Arrivals::Poisson { rate } => {
            run(question.messages).through(Poisson::new(of(1, *rate), Instant::ZERO, rng), keep)
        }
        Arrivals::Periodic { rate, publishers } => {
            run(question.messages).through(Periodic::new(of(*publishers, *rate), Instant::ZERO, &mut rng), keep)
        }
        Arrivals::List(list) => {
            let arrivals = trace(list.clone()).map(|arrival| Arrival { messages: question.batch, ..arrival });
            run(list.len() as u64 * u64::from(question.batch)).through(arrivals, keep)
        }
    })
}

/// Sums over a stretch of messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stretch {
    messages: u64,
    pub(crate) delayed: u64,
    pub(crate) delay_ns: u128,
    /// Messages delayed longer than each threshold.
    pub(crate) longer: Vec<u64>,
}

/// What a run saw.
#[derive(Debug)]
pub(crate) struct Observed {
    parts: Vec<Part>,
    total: Total,
    stretches: Vec<Stretch>,
    /// Of the delayed messages, to three digits.
    delays_ns: Histogram<u64>,
    delay_ns_max: u64,
}

#[derive(Clone, Debug, Default)]
struct Total {
    messages: u64,
    delayed: u64,
    delay_ns: u128,
}

impl Observed {
    fn share_delayed(&self) -> f64 {
        float(self.total.delayed) / float(self.total.messages)
    }

    fn delay_us_mean(&self) -> f64 {
        float_u128(self.total.delay_ns) / float(self.total.messages) / 1e3
    }

    fn delay_us_quantile(&self, q: f64) -> f64 {
        let rank = (q * float(self.total.messages)).ceil().max(1.0);
        let undelayed = float(self.total.messages - self.total.delayed);
        if rank <= undelayed {
            return 0.0;
        }
        // Half a rank less, so that rounding does not reach for the next message.
        let among_delayed = (rank - undelayed - 0.5) / float(self.total.delayed);
        float(self.delays_ns.value_at_quantile(among_delayed).min(self.delay_ns_max)) / 1e3
    }

    /// The interval of the mean, per message, of what `of` counts; `None` if the run was too short to tell.
    pub(crate) fn interval(&self, confidence: f64, of: impl Fn(&Stretch) -> u128) -> Option<Interval> {
        let means: Vec<f64> =
            self.stretches.iter().map(|stretch| float_u128(of(stretch)) / float(stretch.messages)).collect();
        (means.len() as u64 == STRETCHES).then(|| interval_of(&means, confidence)).flatten()
    }

    pub(crate) fn messages(&self) -> u64 {
        self.total.messages
    }
}

/// A run under way.
struct Run<'a> {
    question: &'a BucketQuestion,
    lines: Vec<Option<Line>>,
    assigner: Assigner,
    messages: u64,
    stretch_messages: u64,
    thresholds_ns: &'a [u64],
    stretch: Stretch,
    by_part: Vec<u64>,
    observed: Observed,
}

impl<'a> Run<'a> {
    fn new(question: &'a BucketQuestion, limits: Vec<Limit>, messages: u64, thresholds_ns: &'a [u64]) -> Self {
        let rng = Rng::stream(question.seed, ASSIGNMENT);
        // A part without weight has no tokens, and no messages.
        let line = |limit: &Limit| (!limit.rate.is_zero()).then(|| Line::new(*limit, Instant::ZERO));
        let stretch_messages = messages / STRETCHES;
        Self {
            lines: limits.iter().map(line).collect(),
            assigner: Assigner::new(question.assignment, question.weights(), rng),
            messages,
            // Too short for stretches: one that never ends.
            stretch_messages: if stretch_messages < STRETCH_MIN { u64::MAX } else { stretch_messages },
            thresholds_ns,
            stretch: Stretch { longer: vec![0; thresholds_ns.len()], ..Stretch::default() },
            by_part: vec![0; limits.len()],
            observed: Observed {
                parts: limits.into_iter().map(part).collect(),
                total: Total::default(),
                stretches: Vec::new(),
                delays_ns: Histogram::new(3).expect("three digits are within its range"),
                delay_ns_max: 0,
            },
            question,
        }
    }

    /// Sends `arrivals` through the lines until all messages are counted.
    fn through(
        mut self,
        arrivals: impl Iterator<Item = Arrival>,
        mut keep: Option<&mut Vec<MessageDelay>>,
    ) -> Observed {
        let mut warm_up = if keep.is_some() { 0 } else { self.question.warm_up };
        'all: for arrival in arrivals {
            self.assigner.begin_batch();
            for _ in 0..arrival.messages {
                let part = self.assigner.next();
                let line = self.lines[part].as_mut().expect("a part that gets messages has a rate");
                let delay_ns = line.release(arrival.at).nanos_since(arrival.at);
                if warm_up > 0 {
                    warm_up -= 1;
                    continue;
                }
                self.count(part, delay_ns);
                if let Some(delays) = &mut keep {
                    delays.push(MessageDelay { arrival_ns: arrival.at, part, delay_us: float(delay_ns) / 1e3 });
                }
                if self.observed.total.messages + self.stretch.messages == self.messages {
                    break 'all;
                }
            }
        }
        self.end_stretch();
        for (part, messages) in self.observed.parts.iter_mut().zip(&self.by_part) {
            part.message_share = float(*messages) / float(self.observed.total.messages);
        }
        self.observed
    }

    #[inline]
    fn count(&mut self, part: usize, delay_ns: u64) {
        self.by_part[part] += 1;
        self.stretch.messages += 1;
        if delay_ns > 0 {
            self.stretch.delayed += 1;
            self.stretch.delay_ns += u128::from(delay_ns);
            self.observed.delay_ns_max = self.observed.delay_ns_max.max(delay_ns);
            self.observed.delays_ns.record(delay_ns).expect("the histogram grows as it must");
            for (longer, &threshold_ns) in self.stretch.longer.iter_mut().zip(self.thresholds_ns) {
                *longer += u64::from(delay_ns > threshold_ns);
            }
        }
        if self.stretch.messages == self.stretch_messages {
            self.end_stretch();
        }
    }

    fn end_stretch(&mut self) {
        let next = Stretch { longer: vec![0; self.thresholds_ns.len()], ..Stretch::default() };
        let stretch = std::mem::replace(&mut self.stretch, next);
        let total = &mut self.observed.total;
        total.messages += stretch.messages;
        total.delayed += stretch.delayed;
        total.delay_ns += stretch.delay_ns;
        if stretch.messages == self.stretch_messages {
            self.observed.stretches.push(stretch);
        }
    }
}

fn float_u128(sum: u128) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a mean needs no more than 53 bits")]
    let sum = sum as f64;
    sum
}

fn part(limit: Limit) -> Part {
    Part { rate: limit.rate, burst: limit.burst, message_share: 0.0 }
}
