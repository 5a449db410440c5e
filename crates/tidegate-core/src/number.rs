//! Between whole numbers, in which is decided, and fractions, in which is estimated.

/// `count` as a fraction; exact up to 2^53, and 2^63 at most: processors convert numbers with a sign, others take them a
/// handful of steps.
#[inline]
#[must_use]
pub fn float(count: u64) -> f64 {
    signed_float(signed(count))
}

/// `amount` as a fraction; exact up to 2^53.
#[inline]
#[expect(clippy::cast_precision_loss, reason = "estimates need no more than 53 bits")]
#[must_use]
pub fn signed_float(amount: i64) -> f64 {
    amount as f64
}

/// The whole part of `x`, 0 if it is negative or no number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate; NaN gives 0")]
#[inline]
#[must_use]
pub fn whole(x: f64) -> u64 {
    x as u64
}

/// `x` with 24 bits, as estimates are kept.
#[expect(clippy::cast_possible_truncation, reason = "estimates of single tenants are kept short")]
#[inline]
#[must_use]
pub fn short(x: f64) -> f32 {
    x as f32
}

/// `count`, or the largest number below 2^63.
#[inline]
#[must_use]
pub fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
