//! CUBIC's congestion window.

use tidegate_core::Instant;

/// Source: RFC 9438, §4.6.
const BETA: f64 = 0.7;
/// In segments per second cubed. Source: RFC 9438, §4.1.
const SCALE: f64 = 0.4;
/// Bytes that a Reno flow with CUBIC's decrease gains for each window acknowledged. Source: RFC 9438, §4.3.
const RENO_GAIN: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// `HyStart` leaves slow start when a round trip is longer than the shortest one by this or more. Source: Linux, `tcp_cubic`.
const DELAY_MIN_NS: u64 = 4_000_000;

/// A congestion window in bytes.
#[derive(Clone, Debug)]
pub(super) struct Cubic {
    mss: f64,
    window: f64,
    threshold: f64,
    /// The window before the last loss.
    peak: f64,
    /// What Reno would have.
    reno: f64,
    /// When growth began after the last loss.
    since: Option<Instant>,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    pub(super) bytes: f64,
    /// Bytes in flight before it.
    pub(super) in_flight: f64,
    pub(super) rtt_ns: Option<u64>,
    pub(super) rtt_min_ns: u64,
    pub(super) now: Instant,
}

impl Cubic {
    pub(super) fn new(mss: f64, window: f64) -> Self {
        Self { mss, window, threshold: f64::INFINITY, peak: 0.0, reno: 0.0, since: None }
    }

    pub(super) fn window(&self) -> f64 {
        self.window
    }

    /// The sender's pace in bytes per second, for sizing bursts: Linux's, twice the rate in slow start, else 1.2 times.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn pace(&self, srtt_ns: u64) -> f64 {
        let ratio = if self.window < self.threshold / 2.0 { 2.0 } else { 1.2 };
        ratio * self.window * 1e9 / srtt_ns.max(1) as f64
    }

    pub(super) fn on_ack(&mut self, acked: Acked) {
        if self.window < self.threshold {
            self.slow_start(acked);
        } else if acked.in_flight + self.mss > self.window {
            self.avoidance(acked);
        }
    }

    /// Packets were lost.
    pub(super) fn on_loss(&mut self) {
        self.peak = self.window;
        self.window = (self.window * BETA).max(2.0 * self.mss);
        self.threshold = self.window;
        self.since = None;
    }

    /// No acknowledgement came in time.
    pub(super) fn on_timeout(&mut self) {
        self.on_loss();
        self.window = self.mss;
    }

    fn slow_start(&mut self, acked: Acked) {
        let margin_ns = (acked.rtt_min_ns / 8).clamp(DELAY_MIN_NS, 4 * DELAY_MIN_NS);
        if acked.rtt_ns.is_some_and(|rtt_ns| rtt_ns > acked.rtt_min_ns + margin_ns) {
            self.threshold = self.window;
        }
        // A window half of which is used at most is not what holds the flow.
        if self.window < 2.0 * acked.in_flight {
            self.window += acked.bytes;
        }
    }

    fn avoidance(&mut self, acked: Acked) {
        let since = *self.since.get_or_insert(acked.now);
        if since == acked.now {
            self.reno = self.window;
            self.peak = self.peak.max(self.window);
        }
        self.reno += RENO_GAIN * self.mss * acked.bytes / self.window;
        let seconds = acked.now.since(since).as_secs_f64();
        let reach = ((self.peak - self.peak * BETA) / self.mss / SCALE).cbrt();
        let cubic = self.peak + SCALE * (seconds - reach).powi(3) * self.mss;
        let target = cubic.clamp(self.window, 1.5 * self.window);
        let grown = self.window + (target - self.window) * acked.bytes / self.window;
        self.window = grown.max(self.reno);
    }
}
