//! The end that data come from.

use std::collections::VecDeque;

use tidegate_core::Instant;

use super::cubic::{Acked, Cubic};
use super::{Ack, Burst};

/// Source: Linux, `TCP_INIT_CWND`.
const WINDOW_START: u64 = 10;
/// Source: Linux, `TCP_RTO_MIN` and, as a bound for this model, 8 s instead of `TCP_RTO_MAX`.
const TIMEOUT_MIN_NS: u64 = 200_000_000;
const TIMEOUT_MAX_NS: u64 = 8_000_000_000;
/// The timeout before the first round trip. Source: RFC 6298, §2.1.
const TIMEOUT_START_NS: u64 = 1_000_000_000;
/// Added to two round trips before the tail is probed, for the timers' grain.
const PROBE_EXTRA_NS: u64 = 2_000_000;
/// Added if a single segment is in flight, whose acknowledgement may be put off. Source: Linux, `tcp_schedule_loss_probe`.
const PROBE_ALONE_NS: u64 = 200_000_000;
/// Bursts are as long as the flow takes for this. Source: Linux, `sk_pacing_shift`.
const PACE_SHARE: f64 = 1.0 / 1_024.0;

/// Settings of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SenderConfig {
    /// Payload of a full segment, in bytes.
    pub mss: u64,
    /// Bytes of the largest burst; `mss` without segmentation offload.
    pub burst_max: u64,
    /// The receiver's window scale.
    pub scale: u8,
    /// Bytes that the application sends; `u64::MAX` for a flow that never ends.
    pub total: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    InFlight,
    Sacked,
    Lost,
}

/// A burst that is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Piece {
    burst: Burst,
    sent: Instant,
    /// Rises with each burst sent, the same piece sent again among them.
    order: u64,
    again: bool,
    state: State,
}

/// A sender that always has something to send until its total is sent.
///
/// Call [`poll_send`](Self::poll_send) until it has nothing after each other call.
#[derive(Clone, Debug)]
pub struct Sender {
    config: SenderConfig,
    cubic: Cubic,
    pieces: VecDeque<Piece>,
    /// The first byte not acknowledged, and the next to send.
    una: u64,
    next: u64,
    /// The receiver's window ends here.
    edge: u64,
    /// Bytes believed to be on their way.
    pipe: u64,
    /// Bytes that wait in the host's own queue.
    queued: u64,
    lost: usize,
    order: u64,
    /// Recovery ends when this is acknowledged.
    recovery_end: u64,
    srtt_ns: u64,
    rtt_var_ns: u64,
    rtt_min_ns: u64,
    /// Bytes of the last burst of new data.
    burst: u64,
    timeout_at: Option<Instant>,
    backoff: u32,
    /// True after the tail was probed without an answer.
    probed: bool,
    /// True if the closed window is to be probed.
    probe_window: bool,
    /// Bursts sent again, and timeouts.
    repeats: u64,
    timeouts: u64,
}

impl Sender {
    /// A sender that opens its flow with the first burst.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "sizes of windows")]
    pub fn new(config: SenderConfig) -> Self {
        Self {
            config,
            cubic: Cubic::new(config.mss as f64, (WINDOW_START * config.mss) as f64),
            pieces: VecDeque::new(),
            una: 0,
            next: 0,
            edge: 1,
            pipe: 0,
            queued: 0,
            lost: 0,
            order: 0,
            recovery_end: 0,
            srtt_ns: 0,
            rtt_var_ns: 0,
            rtt_min_ns: 0,
            burst: 0,
            timeout_at: None,
            backoff: 0,
            probed: false,
            probe_window: false,
            repeats: 0,
            timeouts: 0,
        }
    }

    /// Smoothed round trip in nanoseconds, as `TCP_INFO` has it; 0 before the first.
    #[must_use]
    pub fn srtt_ns(&self) -> u64 {
        self.srtt_ns
    }

    /// The first byte that is not acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.una
    }

    /// True if all is sent and acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.una > self.config.total
    }

    /// Bursts sent again.
    #[must_use]
    pub fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Times that no acknowledgement came in time.
    #[must_use]
    pub fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// When [`on_timeout`](Self::on_timeout) is to be called if nothing else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timeout_at
    }

    /// The application has nothing more to send than what went out.
    pub fn finish(&mut self) {
        self.config.total = self.config.total.min(self.next.saturating_sub(1));
    }

    /// A burst left the host's own queue.
    pub fn on_left(&mut self, burst: &Burst) {
        self.queued = self.queued.saturating_sub(burst.payload);
    }

    /// The host's own queue had no room for the burst that was just polled. It is as if not sent, and the window shrinks as
    /// after a mark. Poll again after the next event. Source: Linux, `tcp_write_xmit` and `tcp_enter_cwr`.
    pub fn on_refused(&mut self, burst: &Burst, now: Instant) {
        self.queued = self.queued.saturating_sub(burst.payload);
        if self.pieces.back().is_some_and(|piece| piece.burst == *burst && !piece.again) {
            self.pieces.pop_back();
            self.next = burst.seq;
            self.pipe -= burst.payload;
        } else if let Some(piece) = self.pieces.iter_mut().find(|piece| piece.burst == *burst) {
            piece.state = State::Lost;
            self.lost += 1;
            self.pipe -= burst.payload;
        }
        if self.una >= self.recovery_end {
            self.cubic.on_loss();
            self.recovery_end = self.next;
        }
        if self.pieces.is_empty() {
            // No acknowledgement will come: the timer tries again.
            self.timeout_at = Some(now.plus_nanos(self.timeout_ns()));
        }
    }

    /// The next burst to send now, if any may be sent.
    pub fn poll_send(&mut self, now: Instant) -> Option<Burst> {
        if self.next == 0 {
            return Some(self.send_new(Burst { seq: 0, payload: 0, segments: 1, syn: true }, now));
        }
        if let Some(burst) = self.send_again(now) {
            return Some(burst);
        }
        if core::mem::take(&mut self.probe_window) {
            return Some(Burst { seq: self.una, payload: 0, segments: 1, syn: false });
        }
        let burst = self.new_data();
        if burst.is_none() && self.pieces.is_empty() && !self.is_done() && self.timeout_at.is_none() {
            // The window is closed: only a probe can find that it opened.
            self.restart(now);
        }
        burst.map(|burst| self.send_new(burst, now))
    }

    /// An acknowledgement arrives.
    pub fn on_ack(&mut self, ack: Ack, now: Instant) {
        if ack.ack < self.una || ack.ack > self.next {
            return;
        }
        let scale = if ack.syn { 0 } else { self.config.scale };
        let edge = ack.ack + (u64::from(ack.field) << scale);
        // Without news an announced window only grows: what would shrink it is older.
        self.edge = if ack.ack > self.una { edge } else { self.edge.max(edge) };
        let in_flight = self.next - self.una;
        let acked = ack.ack - self.una;
        let mut latest = (0, 0);
        let mut rtt_ns = None;
        if let Some(first) = self.pieces.front().map(|piece| piece.burst.seq) {
            self.split(0, ack.ack.saturating_sub(first));
        }
        while let Some(piece) = self.pieces.front().copied().filter(|piece| piece.burst.end() <= ack.ack) {
            self.pieces.pop_front();
            self.forget(&piece);
            rtt_ns = self.delivered(&piece, &mut latest, now).or(rtt_ns);
        }
        if let Some(block) = ack.sacked {
            rtt_ns = self.sack(block, &mut latest, now).or(rtt_ns);
        }
        self.una = ack.ack;
        self.mark_lost(latest);
        self.smooth(rtt_ns);
        if acked > 0 {
            self.backoff = 0;
            self.probed = false;
            if self.una >= self.recovery_end {
                self.grow(acked, in_flight, rtt_ns, now);
            }
            self.restart(now);
        } else if self.pieces.is_empty() && self.edge > self.next {
            self.timeout_at = None;
        }
    }

    /// Nothing was heard for too long.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.timeout_at.is_none_or(|at| at > now) {
            return;
        }
        self.timeout_at = None;
        if self.is_done() {
            return;
        }
        if self.pieces.is_empty() {
            self.probe_window = true;
            self.backoff += 1;
        } else if self.probed || self.srtt_ns == 0 {
            self.timeouts += 1;
            self.cubic.on_timeout();
            self.recovery_end = self.next;
            for piece in &mut self.pieces {
                if piece.state == State::InFlight {
                    piece.state = State::Lost;
                    self.pipe -= piece.burst.payload;
                    self.lost += 1;
                }
            }
            self.backoff += 1;
        } else {
            self.probed = true;
            self.lose_last();
        }
        self.restart(now);
    }

    /// The tail may be lost: its last segment is sent again.
    fn lose_last(&mut self) {
        let Some(at) = self.pieces.iter().rposition(|piece| piece.state == State::InFlight) else { return };
        let payload = self.pieces[at].burst.payload;
        let last = if self.split(at, payload.saturating_sub(self.config.mss)) { at + 1 } else { at };
        let piece = &mut self.pieces[last];
        piece.state = State::Lost;
        self.pipe -= piece.burst.payload;
        self.lost += 1;
    }

    /// Makes two pieces of one, the first of `bytes`. True if both have something.
    fn split(&mut self, at: usize, bytes: u64) -> bool {
        let piece = self.pieces[at];
        if bytes == 0 || bytes >= piece.burst.payload {
            return false;
        }
        let mss = self.config.mss;
        let part = |seq, payload: u64| Burst { seq, payload, segments: payload.div_ceil(mss), syn: false };
        let first = part(piece.burst.seq, bytes);
        self.pieces[at].burst = first;
        self.pieces.insert(at + 1, Piece { burst: part(first.end(), piece.burst.payload - bytes), ..piece });
        self.lost += usize::from(piece.state == State::Lost);
        true
    }

    fn send_again(&mut self, now: Instant) -> Option<Burst> {
        if self.lost == 0 {
            return None;
        }
        let at = self.pieces.iter().position(|piece| piece.state == State::Lost)?;
        let room = self.window().saturating_sub(self.pipe);
        // As much as the window has room for goes again, and at least a segment if nothing is on its way.
        let most = if self.pipe == 0 { room.max(self.config.mss) } else { room };
        self.split(at, most / self.config.mss * self.config.mss);
        let burst = self.pieces[at].burst;
        // Linux sends nothing again beyond the window but the first burst.
        let allowed = at == 0 || burst.end() <= self.edge;
        if !allowed || burst.payload > most {
            return None;
        }
        self.order += 1;
        self.pieces[at] = Piece { burst, sent: now, order: self.order, again: true, state: State::InFlight };
        self.lost -= 1;
        self.repeats += 1;
        self.pipe += burst.payload;
        self.queued += burst.payload;
        Some(burst)
    }

    fn new_data(&self) -> Option<Burst> {
        let mss = self.config.mss;
        let left = self.config.total.saturating_add(1).saturating_sub(self.next);
        let room = self.edge.saturating_sub(self.next).min(self.window().saturating_sub(self.pipe));
        if left == 0 || room == 0 || self.queued >= self.queue_max() {
            return None;
        }
        let most = self.burst_size();
        let sent = if room >= left.min(most) {
            left.min(most)
        } else {
            // A burst that is less than it could be waits for room, unless it is a third of the window.
            let window = self.window().min(self.edge.saturating_sub(self.una));
            let whole = room - room % mss;
            let worth = whole > 0 && (whole >= most.min(window / 3) || self.pieces.is_empty());
            match (worth, self.pieces.is_empty()) {
                (true, _) => whole,
                (false, true) => room,
                (false, false) => return None,
            }
        };
        Some(Burst { seq: self.next, payload: sent, segments: sent.div_ceil(mss), syn: false })
    }

    fn send_new(&mut self, burst: Burst, now: Instant) -> Burst {
        self.order += 1;
        self.pieces.push_back(Piece { burst, sent: now, order: self.order, again: false, state: State::InFlight });
        self.next = burst.end();
        self.pipe += burst.payload;
        self.queued += burst.payload;
        self.burst = burst.payload;
        if self.timeout_at.is_none() || self.pieces.len() == 1 {
            self.restart(now);
        }
        burst
    }

    /// Bytes that may wait in the host's own queue before more are put there. Source: Linux, `tcp_small_queue_check`.
    fn queue_max(&self) -> u64 {
        (2 * self.burst).max(whole(self.cubic.pace(self.srtt_ns) * PACE_SHARE)).max(1)
    }

    /// Source: Linux, `tcp_tso_autosize`: near peers get the largest bursts.
    fn burst_size(&self) -> u64 {
        let near = self.config.burst_max >> (self.rtt_min_ns >> 19).min(63);
        let paced = whole(self.cubic.pace(self.srtt_ns) * PACE_SHARE).saturating_add(near);
        let size = paced.clamp(2 * self.config.mss, self.config.burst_max.max(2 * self.config.mss));
        let size = size.min(self.config.burst_max);
        size - size % self.config.mss
    }

    fn window(&self) -> u64 {
        whole(self.cubic.window())
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes of windows")]
    fn grow(&mut self, acked: u64, in_flight: u64, rtt_ns: Option<u64>, now: Instant) {
        let (bytes, in_flight) = (acked as f64, in_flight as f64);
        self.cubic.on_ack(Acked { bytes, in_flight, rtt_ns, rtt_min_ns: self.rtt_min_ns, now });
    }

    /// A piece leaves the list: it counts nowhere any more.
    fn forget(&mut self, piece: &Piece) {
        match piece.state {
            State::InFlight => self.pipe -= piece.burst.payload,
            State::Lost => self.lost -= 1,
            State::Sacked => {}
        }
    }

    /// A piece arrived. The round trip that it measures; `latest` becomes its order and place if they are the highest.
    fn delivered(&mut self, piece: &Piece, latest: &mut (u64, u64), now: Instant) -> Option<u64> {
        let rtt_ns = now.nanos_since(piece.sent).max(1);
        // Sent again, and answered sooner than can be: the answer is to the first one.
        if piece.state == State::Sacked || piece.again && rtt_ns < self.rtt_min_ns {
            return None;
        }
        *latest = (piece.order, piece.burst.seq).max(*latest);
        // What was given up for lost arrived some time ago.
        Some(rtt_ns).filter(|_| !piece.again && piece.state == State::InFlight)
    }

    fn sack(&mut self, (start, end): (u64, u64), latest: &mut (u64, u64), now: Instant) -> Option<u64> {
        for edge in [start, end] {
            // The piece that both sides of the edge lie in.
            let at = self.pieces.partition_point(|piece| piece.burst.end() <= edge);
            if let Some(first) = self.pieces.get(at).map(|piece| piece.burst.seq) {
                self.split(at, edge.saturating_sub(first));
            }
        }
        let first = self.pieces.partition_point(|piece| piece.burst.seq < start);
        let mut rtt_ns = None;
        for at in first..self.pieces.len() {
            let piece = self.pieces[at];
            if piece.burst.end() > end {
                break;
            }
            self.forget(&piece);
            rtt_ns = self.delivered(&piece, latest, now).or(rtt_ns);
            self.pieces[at].state = State::Sacked;
        }
        rtt_ns
    }

    /// Lines keep the order: what was sent before something that arrived is lost. Source: RFC 8985 (RACK).
    fn mark_lost(&mut self, latest: (u64, u64)) {
        if latest == (0, 0) {
            return;
        }
        let mut found = false;
        for piece in &mut self.pieces {
            if piece.state == State::InFlight && (piece.order, piece.burst.seq) < latest {
                piece.state = State::Lost;
                self.pipe -= piece.burst.payload;
                self.lost += 1;
                found = true;
            }
        }
        if found && self.una >= self.recovery_end {
            self.cubic.on_loss();
            self.recovery_end = self.next;
        }
    }

    /// Source: RFC 6298, §2.
    fn smooth(&mut self, rtt_ns: Option<u64>) {
        let Some(rtt_ns) = rtt_ns else { return };
        if self.srtt_ns == 0 {
            (self.srtt_ns, self.rtt_var_ns, self.rtt_min_ns) = (rtt_ns, rtt_ns / 2, rtt_ns);
            return;
        }
        self.rtt_min_ns = self.rtt_min_ns.min(rtt_ns);
        self.rtt_var_ns = (3 * self.rtt_var_ns + self.srtt_ns.abs_diff(rtt_ns)) / 4;
        self.srtt_ns = (7 * self.srtt_ns + rtt_ns) / 8;
    }

    /// Source: RFC 6298, §2 and 5.5.
    fn timeout_ns(&self) -> u64 {
        let base = if self.srtt_ns == 0 { TIMEOUT_START_NS } else { self.srtt_ns + 4 * self.rtt_var_ns };
        base.max(TIMEOUT_MIN_NS).saturating_mul(1 << self.backoff.min(10)).min(TIMEOUT_MAX_NS)
    }

    /// The timer starts anew.
    fn restart(&mut self, now: Instant) {
        if self.is_done() {
            self.timeout_at = None;
            return;
        }
        if self.pieces.is_empty() && self.edge > self.next {
            // Nothing is on its way and something may be sent: no timer is needed.
            self.timeout_at = None;
            return;
        }
        let timeout = self.timeout_ns();
        let alone = self.pieces.len() == 1 && self.pipe <= self.config.mss;
        let probe = 2 * self.srtt_ns + if alone { PROBE_ALONE_NS } else { PROBE_EXTRA_NS };
        let probes = !self.probed && self.srtt_ns > 0 && !self.pieces.is_empty();
        self.timeout_at = Some(now.plus_nanos(if probes { probe.min(timeout) } else { timeout }));
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
fn whole(bytes: f64) -> u64 {
    bytes as u64
}
