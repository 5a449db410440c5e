//! Random numbers that the caller seeds: same seed, same numbers, on every machine.

/// The xoshiro256++ generator; its state is filled from the seed by splitmix64.
///
/// Not for secrets. Uniform integers and [`f64`](Self::f64) are the same on every platform; the exponential and normal
/// numbers are as equal as the platforms' logarithms.
/// Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2021).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`; any number will do.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut weyl = seed;
        Self { state: core::array::from_fn(|_| splitmix64(&mut weyl)) }
    }

    /// Stream `number` of `seed`: streams of one seed are independent of each other, and adding one changes none.
    #[must_use]
    pub fn stream(seed: u64, number: u64) -> Self {
        let mut weyl = number;
        Self::new(seed ^ splitmix64(&mut weyl))
    }

    /// A generator independent of what `self` yields from now on.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self::new(self.u64())
    }

    /// 64 random bits.
    #[inline]
    pub fn u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Uniform in 0..1, a multiple of 2^-53.
    #[inline]
    pub fn f64(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit exactly")]
        let bits = (self.u64() >> 11) as f64;
        bits * (0.5f64).powi(53)
    }

    /// Uniform in 0..`bound`, every number exactly as likely; 0 if `bound` is 0.
    ///
    /// Source: Lemire, "Fast random integer generation in an interval" (2019).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let mut product = u128::from(self.u64()) * u128::from(bound);
        if low(product) < bound {
            // 2^64 mod bound of the low halves belong to numbers that would come once too often.
            let surplus = bound.wrapping_neg() % bound;
            while low(product) < surplus {
                product = u128::from(self.u64()) * u128::from(bound);
            }
        }
        high(product)
    }

    /// Uniform in `range`; its start if it is empty.
    pub fn range(&mut self, range: core::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.f64() < p
    }

    /// Exponentially distributed with mean 1: the gap before the next event of a Poisson process of rate 1.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -(-self.f64()).ln_1p()
    }

    /// Normally distributed with mean 0 and deviation 1, by Box and Muller's method.
    pub fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (core::f64::consts::TAU * self.f64()).cos()
    }

    /// Puts `items` into random order, every order equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).expect("not above `last`");
            items.swap(last, other);
        }
    }
}

fn splitmix64(weyl: &mut u64) -> u64 {
    *weyl = weyl.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*weyl ^ (*weyl >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
fn low(product: u128) -> u64 {
    product as u64
}

fn high(product: u128) -> u64 {
    (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(n: u32, mut draw: impl FnMut() -> f64) -> f64 {
        (0..n).map(|_| draw()).sum::<f64>() / f64::from(n)
    }

    #[test]
    fn yields_the_published_sequences() {
        // splitmix64 of seed 1234567 and xoshiro256++ of state 1, 2, 3, 4: the reference programs' first numbers.
        let mut weyl = 1_234_567;
        let seeded: [u64; 3] = core::array::from_fn(|_| splitmix64(&mut weyl));
        assert_eq!(seeded, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let numbers: [u64; 5] = core::array::from_fn(|_| rng.u64());
        let expected =
            [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386, 9_228_616_714_210_784_205];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn below_is_uniform_where_a_remainder_would_not_be() {
        // The remainder of 64 bits by 3 * 2^62 would give the lowest third half of all draws.
        let mut rng = Rng::new(2);
        let share = mean(30_000, || f64::from(u8::from(rng.below(3 << 62) < 1 << 62)));
        assert!((share - 1.0 / 3.0).abs() < 0.015, "{share}");
        assert_eq!((rng.below(0), rng.below(1), rng.range(5..5)), (0, 0, 5));
        assert!((0..1_000).all(|_| (7..9).contains(&rng.range(7..9))));
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut rng = Rng::new(3);
        assert!((mean(100_000, || rng.f64()) - 0.5).abs() < 0.005);
        assert!((mean(100_000, || rng.exponential()) - 1.0).abs() < 0.02);
        assert!((mean(100_000, || rng.exponential().powi(2)) - 2.0).abs() < 0.1);
        assert!(mean(100_000, || rng.normal()).abs() < 0.02);
        assert!((mean(100_000, || rng.normal().powi(2)) - 1.0).abs() < 0.03);
        assert!((mean(100_000, || rng.normal().powi(4)) - 3.0).abs() < 0.2);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let mut parent = Rng::new(4);
        let (mut left, mut right) = (parent.split(), parent.split());
        assert_ne!(left.u64(), right.u64());
        assert_eq!(Rng::stream(4, 7), Rng::stream(4, 7));
        assert_ne!(Rng::stream(4, 7), Rng::stream(4, 8));
        assert_ne!(Rng::stream(4, 7), Rng::stream(7, 4));
    }

    #[test]
    fn a_shuffle_keeps_the_items() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::new(5).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }
}
