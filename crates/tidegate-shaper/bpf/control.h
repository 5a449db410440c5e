/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The window of a class and the shares of its flows: the arithmetic of crates/tidegate-core/src/control/window/, where it is
 * explained. A differential test holds both together. Spans are nanoseconds of the class's drain, sizes bytes of payload. */
#ifndef TIDEGATE_CONTROL_H
#define TIDEGATE_CONTROL_H

#define SECOND_NS 1000000000ULL
#define UPDATE_NS 100000ULL
#define EPOCH_NS 10000000ULL
#define WINDOW_MAX_NS 4000000ULL
#define WINDOW_MAX_SEGMENTS 64
#define FLOOR_SEGMENTS 2
#define SHARE_MAX (1U << 30)
#define CLUMP_MAX 65536
#define BASE_MAX_NS SECOND_NS
#define HEADER_BYTES 66
#define NEAR_MAX_NS 200000ULL
#define FAR_MARGIN_NS 100000ULL
#define QUEUE_MAX_NS (1LL << 36)
#define DRAIN_SPAN_NS 1000000ULL
#define DRAIN_SPAN_BYTES 16384ULL
#define DRAIN_SPAN_MAX_NS 10000000ULL
#define DRAIN_FORGET_NS 100000000ULL
#define ALPHA_SHIFT 4
#define CLASS_ALPHA_ONE (1U << 10)
#define NETWORK_WINDOW_MAX (1U << 30)
#define NETWORK_ALPHA_ONE (1U << 20)

enum mode { MODE_OFF = 0, MODE_INTEGRAL = 1, MODE_DCTCP = 2 };

static __always_inline u64 bytes_in(u64 rate, u64 ns)
{
	return rate / 1000000 * ns / 1000 + rate % 1000000 * ns / SECOND_NS;
}

static __always_inline u64 span_of(u64 bytes, u64 rate)
{
	return bytes * SECOND_NS / rate;
}

static __always_inline u64 min_of(u64 a, u64 b)
{
	return a < b ? a : b;
}

static __always_inline u64 max_of(u64 a, u64 b)
{
	return a > b ? a : b;
}

/* `a` lies behind `b` on the circle of sequence numbers. */
static __always_inline u32 after(u32 a, u32 b)
{
	return (s32)(b - a) < 0;
}

/* --- class.rs --- */

static __always_inline u64 clamp_window(u64 window, u64 rate, u32 mss)
{
	u64 least = span_of(FLOOR_SEGMENTS * mss, rate), most = span_of(WINDOW_MAX_SEGMENTS * mss, rate);

	return max_of(min_of(window, max_of(most, WINDOW_MAX_NS)), least);
}

static __always_inline u64 integral(u64 window, s64 queue, u64 setpoint)
{
	s64 error = (s64)setpoint - queue;

	if (error >= 0)
		return window + (min_of(error, setpoint) >> 2);
	return window - (min_of(-error, window) >> 2);
}

static __always_inline u32 class_alpha(u32 alpha, u64 above, u64 samples)
{
	s64 share = (above << 10) / samples;

	return alpha + ((share - (s64)alpha) >> ALPHA_SHIFT);
}

static __always_inline u64 dctcp(u64 window, u32 alpha, u64 above, u64 segment)
{
	return above ? window - (window * min_of(alpha, CLASS_ALPHA_ONE) >> 11) : window + segment;
}

static __always_inline u64 follow_base(u64 base, u64 sample)
{
	sample = max_of(min_of(sample, BASE_MAX_NS), 1);
	if (!base)
		return sample;
	if (sample < base)
		return base - ((base - sample) >> 3);
	return base + (min_of(sample - base, base) >> 6);
}

/* --- drain.rs --- */

enum measured { MEASURED_NOTHING, MEASURED_QUEUED, MEASURED_FASTER };

struct drain {
	u64 rate;
	u64 began;
	u64 last;
	u64 drained;
	s64 queue_sum;
	u64 periods;
};

static __always_inline u64 drain_rate(const struct drain *drain, u64 rate, u64 ceil)
{
	return max_of(min_of(drain->rate, ceil), rate);
}

static __always_inline void begin_span(struct drain *drain, u64 drained, u64 now)
{
	drain->began = now;
	drain->drained = drained;
	drain->queue_sum = 0;
	drain->periods = 0;
}

static __always_inline enum measured drain_period(struct drain *drain, s64 queue, s64 queue_least, u64 period, u64 drained,
						  u64 rate, u64 ceil, u64 now)
{
	u64 gap = now - drain->last, pause = 2 * (period + span_of(DRAIN_SPAN_BYTES, rate)), span, bytes, passed, before;
	u32 is_over, is_queued;

	drain->last = now;
	if (gap > pause) {
		if (gap > pause + DRAIN_FORGET_NS)
			drain->rate = rate;
		begin_span(drain, drained, now);
		return MEASURED_NOTHING;
	}
	drain->queue_sum += queue;
	drain->periods++;
	span = now - drain->began;
	if (span < DRAIN_SPAN_NS)
		return MEASURED_NOTHING;
	bytes = drained > drain->drained ? drained - drain->drained : 0;
	is_over = bytes >= DRAIN_SPAN_BYTES || span >= DRAIN_SPAN_MAX_NS;
	is_queued = drain->queue_sum >= queue_least * (s64)drain->periods;
	passed = max_of(min_of((is_over ? bytes : DRAIN_SPAN_BYTES) * SECOND_NS / span, ceil), rate);
	if (is_over)
		begin_span(drain, drained, now);
	before = drain_rate(drain, rate, ceil);
	if (is_queued && passed < before) {
		drain->rate = passed;
		return MEASURED_QUEUED;
	}
	if (is_over && is_queued && passed > before) {
		drain->rate = before + (passed - before) / 2;
		return MEASURED_QUEUED;
	}
	if (is_over && passed > before) {
		drain->rate = passed;
		return MEASURED_FASTER;
	}
	return MEASURED_NOTHING;
}

/* The window at a new drain. */
static __always_inline u64 drain_window(u64 window, enum measured measured, u64 before, u64 after, u64 base, u64 setpoint)
{
	u64 same = span_of(bytes_in(before, window), after);

	if (measured == MEASURED_QUEUED)
		return same;
	if (measured == MEASURED_FASTER)
		return max_of(min_of(window, base + setpoint), same);
	return window;
}

/* --- share.rs --- */

static __always_inline u64 far_ns(u64 flow_base, u64 class_base)
{
	u64 near = min_of(class_base, NEAR_MAX_NS);

	flow_base = min_of(flow_base, BASE_MAX_NS);
	return flow_base > 2 * near + FAR_MARGIN_NS ? flow_base - near : 0;
}

static __always_inline u32 share_of(u64 window, u32 flows, u64 rate, u64 far, u32 mss)
{
	u64 payload = bytes_in(rate, far - far / 32) * mss / (mss + HEADER_BYTES);
	u64 bytes = (bytes_in(rate, window) + payload) / flows;

	return min_of(max_of(bytes, (u64)mss * 9 / 4), SHARE_MAX);
}

/* --- announce.rs --- */

static __always_inline u32 round_up(u32 bytes, u32 scale)
{
	return (bytes + (1U << scale) - 1) >> scale << scale;
}

static __always_inline u32 in_clumps(u32 share, u32 is_far)
{
	return share <= CLUMP_MAX && !is_far;
}

/* In units of the scale. */
static __always_inline u32 announce(u32 share, u32 in_flight, u32 room, u32 is_far, u32 mss, u32 scale, u16 coin)
{
	u32 whole, low, high, window;

	if (in_clumps(share, is_far) && in_flight > mss)
		return round_up(max_of(room, in_flight), scale) >> scale;
	whole = share / mss * mss;
	low = max_of(whole >> scale << scale, round_up(FLOOR_SEGMENTS * mss, scale));
	high = max_of((whole + mss) >> scale << scale, low + (1U << scale));
	window = low;
	if (share > low && (u64)coin * (high - low) >> 16 < share - low)
		window = high;
	return round_up(max_of(window, in_flight), scale) >> scale;
}

/* --- network.rs --- */

struct network {
	u64 acked;
	u64 marked;
	u32 window;
	u32 alpha;
	u32 round_end;
	u32 seen_marks;
};

static __always_inline void end_round(struct network *network, u32 in_flight, u32 mss)
{
	u32 share = network->acked ? (network->marked << 20) / network->acked : 0;

	network->alpha = network->alpha - (network->alpha >> ALPHA_SHIFT) + (share >> ALPHA_SHIFT);
	if (network->marked)
		network->window -= (u64)network->window * network->alpha >> 21;
	else if (network->seen_marks && in_flight + mss >= network->window)
		network->window += mss;
	network->window = max_of(min_of(network->window, NETWORK_WINDOW_MAX), FLOOR_SEGMENTS * mss);
	network->acked = network->marked = 0;
}

static __always_inline void network_ack(struct network *network, u32 acked, u32 marked, u32 una, u32 next, u32 mss)
{
	u32 in_flight = next - una + acked;

	network->acked += acked;
	if (marked) {
		network->marked += acked;
		if (!network->seen_marks) {
			network->seen_marks = 1;
			network->window = in_flight;
		}
	}
	if ((s32)(una - network->round_end) < 0 || !network->acked)
		return;
	end_round(network, in_flight, mss);
	network->round_end = next;
}

#endif
