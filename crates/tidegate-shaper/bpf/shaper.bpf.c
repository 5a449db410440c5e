// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Keeps the queue of each HTB class short by the receive windows in acknowledgements. Two programs at the device of the class:
 * `egress` sees what enters the queue, `ingress` the acknowledgements. Two more, `enqueued` and `dequeued`, count the queue where
 * it cannot be read. Nothing here waits, and no packet is held or dropped: without these programs every flow goes on with the receiver's own
 * window.
 * Source: Improving Latency and Burst-tolerance for Software Rate Limiters, section 3. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "control.h"
#include "state.h"
#include "packet.h"
#include "rules.h"
#include "flows.h"
#include "htb.h"
#include "watch.h"

#define NEXT_PROGRAM -1
/* What a flow that no window holds may send at once and stay sparse: its share of the class is a 64th. */
#define SPARSE_DEBT_NS 2000000ULL
#define SPARSE_DEBT_MOST_NS 20000000ULL
#define SPARSE_SHARE 64
/* A flow with more in flight is not sparse, whatever holds it. */
#define SPARSE_FLIGHT_BYTES 16384
/* The budget of all sparse flows of a class together: half of it, over this span. */
#define SPARSE_BUDGET_NS 10000000ULL
/* Data that a SYN may carry and its answer leave out. */
#define SYN_DATA_MAX 0xffff
/* Major number of our qdisc. */
#define QDISC_MAJOR 0x71de
/* Minor numbers from a class's own: crates/tidegate-shaper/src/machine/tree.rs. */
#define SPARSE_LEAF 1
#define TCP_INNER 2
#define TCP_LEAVES 3
#define OTHER_LEAVES 20
#define OTHER_LEAF_COUNT 8

static __always_inline u64 now_ns(void)
{
	return settings.under_test ? told.now : bpf_ktime_get_ns();
}

static __always_inline u32 random(void)
{
	return settings.under_test ? told.random : bpf_get_prandom_u32();
}

struct class {
	u32 index;
	struct class_config *config;
	struct class_state *state;
	struct class_counts *counts;
};

static __always_inline int class_at(u32 index, struct class *class)
{
	class->index = index;
	class->config = bpf_map_lookup_elem(&class_configs, &index);
	class->state = bpf_map_lookup_elem(&class_states, &index);
	class->counts = bpf_map_lookup_elem(&class_counters, &index);
	return class->config && class->state && class->counts && class->config->rate;
}

/* What the limiter lets pass, in bytes per second. */
static __always_inline u64 drain_of(const struct class *class)
{
	return drain_rate(&class->state->drain, class->config->rate, class->config->ceil);
}

/* --- the queue --- */

/* Bytes that wait in TCP's own leaves: what entered less what left. Exact again whenever the device's queue is empty, so a
 * dropped packet is forgotten then. */
static __always_inline u64 backlog_of_leaves(struct Qdisc *root, struct class_state *state, u32 classid)
{
	struct htb_class *inner = find_class(root, classid + TCP_INNER);
	u64 left, all = root->qstats.backlog;
	s64 backlog;

	if (!inner)
		return 0;
	left = dequeued_of(inner);
	if (!all)
		state->dequeued_at = left - state->enqueued;
	backlog = state->enqueued + state->dequeued_at - left;
	if (backlog < 0)
		return 0;
	return (u64)backlog < all ? (u64)backlog : all;
}

static __always_inline s64 queue_in_kernel(struct __sk_buff *skb, struct class *class, u64 now)
{
	struct Qdisc *root = root_of(skb), *leaf;
	struct htb_class *htb = find_class(root, class->config->classid);
	u64 backlog = 0;

	if (!htb)
		return 0;
	if (class->config->isolation) {
		backlog = backlog_of_leaves(root, class->state, class->config->classid);
	} else {
		leaf = htb->leaf.q;
		if (leaf && !htb->level)
			backlog = leaf->qstats.backlog;
	}
	return (s64)span_of(backlog, drain_of(class)) - credit_of(htb, now);
}

/* Bytes that have left the class. */
static __always_inline u64 drained_of(struct __sk_buff *skb, struct class *class)
{
	struct htb_class *htb;

	if (settings.under_test)
		return told.drained;
	if (WATCHES_QUEUE) {
		struct waiting *waiting = bpf_map_lookup_elem(&waiting_bytes, &class->index);

		return waiting ? waiting->left : 0;
	}
	if (!READS_KERNEL)
		return 0;
	htb = find_class(root_of(skb), class->config->classid);
	return htb ? dequeued_of(htb) : 0;
}

/* Nanoseconds; negative while the class has tokens that nobody used. */
static __always_inline s64 queue_of(struct __sk_buff *skb, struct class *class, u64 now)
{
	if (settings.under_test)
		return told.queue;
	if (READS_KERNEL)
		return queue_in_kernel(skb, class, now);
	if (WATCHES_QUEUE)
		return queue_watched(class->config, class->state, class->index, now);
	return (s64)(class->state->busy_until - now);
}

/* The bucket of a limiter that works whenever it has something to send. */
static __always_inline void enter_virtual_queue(struct class *class, u32 bytes, u64 now)
{
	u64 until = class->state->busy_until;

	if ((s64)(now - until) > (s64)class->config->burst)
		until = now - class->config->burst;
	class->state->busy_until = until + span_of(bytes, class->config->rate);
}

/* --- classes --- */

/* Sparse flows go first, as long as they stay within half of the class together. */
static __always_inline int sparse_budget(struct class *class, u32 bytes, u64 now)
{
	u64 until = class->state->sparse_until;

	if ((s64)(until - now) > (s64)SPARSE_BUDGET_NS)
		return 0;
	if ((s64)(now - until) > 0)
		until = now;
	class->state->sparse_until = until + 2 * span_of(bytes, class->config->rate);
	return 1;
}

static __always_inline u32 hash_of(const struct flow_key *key)
{
	u32 hash = key->local[3] ^ key->remote[3] ^ key->local[1] ^ key->remote[1];

	hash ^= (u32)key->local_port << 16 | key->remote_port;
	return hash * 0x9e3779b1;
}

/* To the class, or to a leaf of it; `leaf` counts from the class's own minor number. */
static __always_inline void enter_class(struct __sk_buff *skb, struct class *class, u32 leaf, u64 now)
{
	u32 in_tcp = leaf >= TCP_LEAVES && leaf < TCP_LEAVES + TCP_LEAF_COUNT;

	if (settings.classifies)
		skb->priority = class->config->classid + (class->config->isolation ? leaf : 0);
	if (class->config->isolation && in_tcp)
		__sync_fetch_and_add(&class->state->enqueued, skb->wire_len);
	if (settings.occupancy == OCCUPANCY_VIRTUAL)
		enter_virtual_queue(class, skb->wire_len, now);
	if (WATCHES_QUEUE)
		skb->cb[MARK_WORD] = MARK_OURS | (!class->config->isolation || in_tcp ? MARK_WAITS : 0) | (class->index & MARK_CLASS);
}

/* Where a packet goes that no window can hold: machine/ahead.rs. Sparse up to a small share of the class; one that had more waits in
 * turn until it has paid for all, since what it sends then must not overtake what waits. */
static __always_inline u32 leaf_of_other(struct __sk_buff *skb, struct class *class, const struct packet *packet, u64 now)
{
	u32 in_turn = OTHER_LEAVES + (hash_of(&packet->key) >> 16) % OTHER_LEAF_COUNT;
	struct other *other, fresh = {};
	u64 until;

	if (!class->config->isolation)
		return 0;
	other = bpf_map_lookup_elem(&others, &packet->key);
	if (!other) {
		bpf_map_update_elem(&others, &packet->key, &fresh, BPF_ANY);
		other = bpf_map_lookup_elem(&others, &packet->key);
		if (!other)
			return in_turn;
	}
	until = other->debt_until;
	if ((s64)(now - until) >= 0) {
		until = now;
		other->in_turn = 0;
	}
	until = min_of(until + SPARSE_SHARE * span_of(skb->wire_len, class->config->rate), now + SPARSE_DEBT_MOST_NS);
	other->debt_until = until;
	if (!other->in_turn)
		other->in_turn = until - now > SPARSE_DEBT_NS || !sparse_budget(class, skb->wire_len, now);
	return other->in_turn ? in_turn : SPARSE_LEAF;
}

/* --- flows: machine/flow and machine/class.rs --- */

/* Anybody can forge a reset: a flow that goes on is held again with its next packet. */
static __always_inline void end_flow(struct class *class, const struct packet *packet)
{
	u32 is_held;

	if (packet->flags & TCP_RST)
		is_held = let_go(&packet->key, class->index);
	else
		is_held = forget_held(&packet->key, class->index);
	if (is_held)
		class->counts->flows_ended++;
	else if (!(packet->flags & TCP_RST))
		forget_loose(&packet->key);
}

static __always_inline void begin(struct flow *flow, u32 first)
{
	flow->una = flow->next = flow->edge = flow->network.round_end = first;
	flow->flags &= ~FRESH;
}

static __always_inline u32 in_flight_of(const struct flow *flow, u32 ack)
{
	return after(ack, flow->next) ? 0 : flow->next - ack;
}

static __always_inline u32 counts(const struct class_state *state, const struct flow *flow, u64 now)
{
	return flow->epoch && (flow->epoch == state->epoch || flow->epoch + 2 * EPOCH_NS > now);
}

/* True if this is the first time in this epoch. */
static __always_inline u32 on_limited(struct class *class, struct flow *flow)
{
	if (flow->epoch == class->state->epoch)
		return 0;
	flow->epoch = class->state->epoch;
	__sync_fetch_and_add(&class->state->limited_now, 1);
	return 1;
}

static __always_inline void sent_syn(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	struct offers offers;
	u32 ecn = packet->flags & (TCP_ECE | TCP_CWR);

	read_offers(skb, packet, &offers);
	if (packet->flags & TCP_ACK) {
		if (flow->flags & KNOWS_SCALE)
			return;
		if (offers.scale < 0 || !(flow->flags & OFFERS_SCALE))
			flow->scale = 0;
		flow->flags |= KNOWS_SCALE;
		if (flow->flags & OFFERS_ECN && ecn == TCP_ECE)
			flow->flags |= NATIVE_ECN;
	} else {
		if (offers.scale >= 0)
			flow->flags |= OFFERS_SCALE;
		if (ecn == (TCP_ECE | TCP_CWR))
			flow->flags |= OFFERS_ECN;
	}
	begin(flow, packet->seq + packet->payload + 1);
}

static __always_inline void received_syn(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	struct offers offers;
	u32 ecn = packet->flags & (TCP_ECE | TCP_CWR);

	/* One that answers must answer ours: a scale that is not the peer's would close the flow. */
	if (packet->flags & TCP_ACK && (flow->flags & (KNOWS_SCALE | FRESH) || flow->next - packet->ack > SYN_DATA_MAX))
		return;
	read_offers(skb, packet, &offers);
	flow->mss = offers.mss > TIMESTAMP_BYTES + 1 ? offers.mss - TIMESTAMP_BYTES : 1;
	if (packet->flags & TCP_ACK) {
		flow->scale = offers.scale < 0 || !(flow->flags & OFFERS_SCALE) ? 0 : offers.scale;
		flow->flags |= KNOWS_SCALE;
		if (flow->flags & OFFERS_ECN && ecn == TCP_ECE)
			flow->flags |= NATIVE_ECN;
	} else {
		if (offers.scale >= 0) {
			flow->flags |= OFFERS_SCALE;
			flow->scale = offers.scale;
		}
		if (ecn == (TCP_ECE | TCP_CWR))
			flow->flags |= OFFERS_ECN;
	}
}

/* True if the window has no room for another whole segment behind this one. */
static __always_inline u32 sent_data(struct __sk_buff *skb, struct class *class, const struct packet *packet, struct flow *flow, u64 now)
{
	u32 end = packet->seq + packet->payload, wanted;

	if (flow->flags & FRESH)
		begin(flow, packet->seq);
	if (skb->gso_size)
		flow->mss = skb->gso_size;
	else if (packet->payload > flow->mss)
		flow->mss = packet->payload;
	if (!after(end, flow->next) || after(flow->next, packet->seq)) {
		flow->timed = 0;
	} else if (!flow->timed) {
		s64 queue = queue_of(skb, class, now);

		flow->timed = 1;
		flow->sample_end = end;
		flow->sample_queue = queue > 0 ? queue : 0;
		flow->sample_at = now;
	}
	if (after(end, flow->next))
		flow->next = end;
	/* A sender with a large window waits until it has room for another packet as large as this. */
	wanted = flow->opens ? max_of(flow->mss, packet->payload) : flow->mss;
	return (s32)(flow->edge - end) < (s32)wanted;
}

/* The flows of each leaf are counted anew in each epoch, so that one that ended without a word is forgotten. */
static __always_inline void begin_epoch_of_leaves(struct class_state *state)
{
	u64 known = state->leaf_epoch;

	if (known == state->epoch || __sync_val_compare_and_swap(&state->leaf_epoch, known, state->epoch) != known)
		return;
	for (u32 i = 0; i < TCP_LEAF_COUNT; i++)
		state->leaf_last[i] = __sync_lock_test_and_set(&state->leaf_now[i], 0);
}

/* The leaf with the fewest flows, since HTB serves leaves in turn: flows that share one have half of what the others have. */
static __noinline u32 emptiest_leaf(struct class_state *state)
{
	u32 emptiest = 0, least = ~0U;

	if (!state)
		return 0;
	for (u32 i = 0; i < TCP_LEAF_COUNT; i++) {
		u32 flows = max_of(state->leaf_now[i], state->leaf_last[i]);
		if (flows < least) {
			least = flows;
			emptiest = i;
		}
	}
	return emptiest;
}

/* A flow leaves its leaf only when nothing of it waits there that a packet in another leaf could overtake. */
static __always_inline void choose_leaf(struct class *class, struct flow *flow, u32 is_idle, u32 is_first, u64 now)
{
	struct class_state *state = class->state;

	if (!counts(state, flow, now) && in_flight_of(flow, flow->una) <= SPARSE_FLIGHT_BYTES) {
		if (is_idle)
			flow->leaf = NO_LEAF;
		return;
	}
	if (flow->leaf != NO_LEAF && !is_first)
		return;
	begin_epoch_of_leaves(state);
	if (flow->leaf == NO_LEAF)
		flow->leaf = emptiest_leaf(state);
	__sync_fetch_and_add(&state->leaf_now[flow->leaf % TCP_LEAF_COUNT], 1);
}

static __always_inline u32 rtt_bucket(u64 ns)
{
	u32 us = ns / 1000 < 0xffffffff ? ns / 1000 : 0xffffffff, octave = 0, value = us, bucket;

	if (value >= 1 << 16) { octave += 16; value >>= 16; }
	if (value >= 1 << 8) { octave += 8; value >>= 8; }
	if (value >= 1 << 4) { octave += 4; value >>= 4; }
	if (value >= 1 << 2) { octave += 2; value >>= 2; }
	if (value >= 1 << 1) octave += 1;
	bucket = octave >= 2 ? octave * 4 + (us >> (octave - 2) & 3) : us;
	return bucket < RTT_BUCKETS ? bucket : RTT_BUCKETS - 1;
}

static __always_inline u64 round_trip(struct class *class, struct flow *flow, u64 now)
{
	u64 rtt = now - flow->sample_at;
	u32 bucket = rtt_bucket(rtt);

	flow->timed = 0;
	if (bucket < RTT_BUCKETS)
		class->counts->rtt[bucket]++;
	return rtt;
}

static __always_inline void measured(struct class *class, struct flow *flow, u64 now)
{
	u64 rtt = round_trip(class, flow, now), others = class->state->base, base;

	base = rtt > flow->sample_queue ? rtt - flow->sample_queue : 0;
	flow->base = follow_base(flow->base, base);
	/* A far flow is far from the others: it says nothing of their way. */
	if (!others || flow->base <= 2 * others + FAR_MARGIN_NS)
		class->state->base = follow_base(others, base);
}

/* A class that may borrow drains as its neighbours let it. The virtual queue knows nothing of neighbours. */
static __always_inline u64 follow_drain(struct __sk_buff *skb, struct class *class, u64 window, s64 queue, u64 now)
{
	struct class_state *state = class->state;
	struct class_config *config = class->config;
	u64 before = drain_of(class), period = max_of(state->base, UPDATE_NS);
	enum measured measured;

	if (config->ceil <= config->rate || !(READS_KERNEL || WATCHES_QUEUE))
		return window;
	measured = drain_period(&state->drain, queue, config->setpoint / 2, period, drained_of(skb, class), config->rate,
				config->ceil, now);
	return drain_window(window, measured, before, drain_of(class), state->base, config->setpoint);
}

static __always_inline void update(struct __sk_buff *skb, struct class *class, u64 now)
{
	struct class_state *state = class->state;
	struct class_config *config = class->config;
	u64 due = state->next_update, samples, above, window;
	s64 sum;

	if (now < due)
		return;
	/* One of several processors does it. */
	if (__sync_val_compare_and_swap(&state->next_update, due, now + max_of(state->base, UPDATE_NS)) != due)
		return;
	if (now - state->epoch >= EPOCH_NS) {
		state->epoch = now;
		state->limited_last = __sync_lock_test_and_set(&state->limited_now, 0);
	}
	if (!state->samples)
		return;
	sum = __sync_lock_test_and_set(&state->queue_sum, 0);
	samples = __sync_lock_test_and_set(&state->samples, 0);
	above = __sync_lock_test_and_set(&state->above, 0);
	/* Another processor may have been between the two; then the next update has them. */
	if (!samples)
		return;
	class->counts->updates++;
	sum = sum < 0 ? -(s64)((u64)-sum / samples) : (s64)((u64)sum / samples);
	window = state->window;
	if (config->mode == MODE_DCTCP) {
		state->alpha = class_alpha(state->alpha, above, samples);
		window = dctcp(window, state->alpha, above, span_of(state->mss, drain_of(class)));
	} else {
		window = integral(window, sum, config->setpoint);
	}
	window = follow_drain(skb, class, window, sum, now);
	state->window = clamp_window(window, drain_of(class), state->mss);
}

static __always_inline void sample(struct class *class, s64 queue)
{
	class->state->queue_last = queue;
	if (queue > QUEUE_MAX_NS)
		queue = QUEUE_MAX_NS;
	if (queue < -QUEUE_MAX_NS)
		queue = -QUEUE_MAX_NS;
	__sync_fetch_and_add(&class->state->queue_sum, queue);
	__sync_fetch_and_add(&class->state->samples, 1);
	if (queue > (s64)class->config->setpoint)
		__sync_fetch_and_add(&class->state->above, 1);
}

/* The window that goes on to the sender: the flow's share, what the network's marks allow, or the receiver's own. */
static __always_inline void write_window(struct __sk_buff *skb, struct class *class, const struct packet *packet, struct flow *flow)
{
	const struct class_state *state = class->state;
	u32 flows = max_of(max_of(state->limited_now, state->limited_last), 1);
	u32 scale = packet->flags & TCP_SYN ? 0 : flow->scale & 15;
	u64 far = far_ns(flow->base, state->base);
	u32 mss = max_of(flow->mss, 1);
	u32 share = share_of(state->window, flows, drain_of(class), far, mss);
	u32 room = after(packet->ack, flow->edge) ? 0 : flow->edge - packet->ack;
	u32 field;

	share = min_of(share, flow->network.window);
	flow->opens = !in_clumps(share, far > 0);
	field = announce(share, in_flight_of(flow, packet->ack), room, far > 0, mss, scale, random());

	if (field < packet->window) {
		if (READS_KERNEL && !settings.under_test)
			set_window(skb, packet, field, is_to_be_summed(skb));
		else
			set_tcp_word(skb, packet, 14, packet->window, field);
		class->counts->rewritten++;
	} else {
		field = packet->window;
	}
	flow->edge = packet->ack + (field << scale);
}

static __always_inline void acknowledged(struct __sk_buff *skb, struct class *class, const struct packet *packet, struct flow *flow, u64 now)
{
	u32 acked;

	class->counts->acks++;
	if (flow->flags & FRESH)
		begin(flow, packet->ack);
	/* Old, or of what was not sent; the end of a flow counts as a byte. */
	if (after(flow->una, packet->ack) || after(packet->ack, flow->next + 1))
		return;
	acked = packet->ack - flow->una;
	flow->una = packet->ack;
	if (after(flow->una, flow->next))
		flow->next = flow->una;
	if (class->config->ecn && !(flow->flags & NATIVE_ECN)) {
		u32 marked = packet->flags & TCP_ECE;

		if (acked)
			network_ack(&flow->network, acked, marked, flow->una, flow->next, flow->mss);
		if (marked) {
			class->counts->marks_seen++;
			set_flags(skb, packet, packet->flags & ~TCP_ECE);
		}
	}
	if (flow->timed && !after(flow->sample_end, packet->ack))
		measured(class, flow, now);
	if (counts(class->state, flow, now))
		sample(class, queue_of(skb, class, now));
	update(skb, class, now);
	write_window(skb, class, packet, flow);
}

/* Both ends have closed, or one has given up. */
static __always_inline int is_over(const struct packet *packet, struct flow *flow, u8 fin)
{
	if (packet->flags & TCP_FIN)
		flow->flags |= fin;
	return packet->flags & TCP_RST || (flow->flags & (LOCAL_FIN | REMOTE_FIN)) == (LOCAL_FIN | REMOTE_FIN);
}

static __always_inline void mark_for_network(struct __sk_buff *skb, struct class *class, const struct packet *packet, struct flow *flow)
{
	if (flow->flags & NATIVE_ECN)
		return;
	if (packet->payload && !packet->ecn)
		set_ecn(skb, packet, ECN_ECT0);
	if (packet->flags & TCP_ACK && flow->flags & MARK_PENDING) {
		flow->flags &= ~MARK_PENDING;
		set_flags(skb, packet, packet->flags | TCP_ECE);
		class->counts->marks_echoed++;
	}
}

/* The flow of a packet that goes out. */
static __always_inline struct flow *flow_of_sent(const struct packet *packet, u32 *is_held)
{
	struct flow *flow;

	if (packet->flags & TCP_SYN) {
		end_before(&packet->key);
		flow = packet->flags & TCP_ACK ? bpf_map_lookup_elem(&opening, &packet->key) : 0;
	} else {
		flow = bpf_map_lookup_elem(&flows, &packet->key);
		*is_held = flow != 0;
		if (!flow)
			flow = loose_flow(&packet->key);
	}
	return flow || packet->flags & TCP_RST ? flow : new_flow(&packet->key, packet->flags & TCP_SYN);
}

/* The flow of a packet that comes in. */
static __always_inline struct flow *flow_of_received(const struct packet *packet)
{
	struct flow *flow;

	if ((packet->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return new_flow(&packet->key, 1);
	if (packet->flags & TCP_SYN)
		return bpf_map_lookup_elem(&opening, &packet->key);
	flow = bpf_map_lookup_elem(&flows, &packet->key);
	return flow ? flow : loose_flow(&packet->key);
}

/* A guest may choose the priority of its packets: one that names a class of ours would put them there, or past all limits. */
static __always_inline int in_no_class(struct __sk_buff *skb)
{
	if (settings.classifies && skb->priority >> 16 == QDISC_MAJOR)
		skb->priority = 0;
	return NEXT_PROGRAM;
}

SEC("tcx/egress")
int egress(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct flow *flow = 0;
	struct class class;
	u64 now;
	u32 index, leaf, limited, rules, is_first, is_held = 0, is_other = 0;

	/* What an earlier device left there. */
	if (WATCHES_QUEUE)
		skb->cb[MARK_WORD] = 0;
	read_packet(skb, &packet);
	rules = rules_in_force();
	if (packet.is_tcp)
		flow = flow_of_sent(&packet, &is_held);
	index = flow && flow->rules == rules ? flow->class : NO_CLASS;
	if (index == NO_CLASS) {
		index = classify(skb, &packet, rules);
		if (flow && is_held) {
			flow = move_held(&packet.key, flow, index, rules);
		} else if (flow) {
			flow->class = index;
			flow->rules = rules;
		}
	}
	if (!class_at(index, &class))
		return in_no_class(skb);
	if (flow && !is_held && flow->flags & KNOWS_SCALE && !(packet.flags & (TCP_SYN | TCP_RST))) {
		flow = hold(&packet.key, flow, index);
		if (flow)
			class.counts->flows_made++;
	}
	now = now_ns();
	if (!flow) {
		class.counts->other_packets++;
		class.counts->other_bytes += skb->wire_len;
		enter_class(skb, &class, leaf_of_other(skb, &class, &packet, now), now);
		return NEXT_PROGRAM;
	}
	flow->seen = now >> 30;
	leaf = SPARSE_LEAF;
	if (packet.flags & TCP_SYN) {
		sent_syn(skb, &packet, flow);
	} else if (packet.payload) {
		u32 is_idle = in_flight_of(flow, flow->una) == 0;

		class.counts->sent_packets++;
		class.counts->sent_bytes += packet.payload;
		class.counts->segments += skb->gso_segs ? skb->gso_segs : 1;
		limited = sent_data(skb, &class, &packet, flow, now) && flow->flags & KNOWS_SCALE;
		class.state->mss = max_of(flow->mss, 1);
		is_first = 0;
		if (limited) {
			class.counts->limited++;
			is_first = on_limited(&class, flow);
		}
		if (flow->flags & KNOWS_SCALE) {
			choose_leaf(&class, flow, is_idle, is_first, now);
			if (flow->leaf != NO_LEAF)
				leaf = TCP_LEAVES + flow->leaf % TCP_LEAF_COUNT;
		} else {
			class.counts->unscaled++;
			leaf = leaf_of_other(skb, &class, &packet, now);
			is_other = 1;
		}
	}
	/* Over their budget, sparse flows wait in turn with the others. */
	if (leaf == SPARSE_LEAF && !is_other && class.config->isolation && !sparse_budget(&class, skb->wire_len, now)) {
		leaf = (hash_of(&packet.key) >> 16) % TCP_LEAF_COUNT;
		/* Until nothing of the flow waits there that its next could overtake. */
		if (packet.payload)
			flow->leaf = leaf;
		leaf += TCP_LEAVES;
	}
	enter_class(skb, &class, leaf, now);
	if (class.config->ecn)
		mark_for_network(skb, &class, &packet, flow);
	if (is_over(&packet, flow, LOCAL_FIN))
		end_flow(&class, &packet);
	return NEXT_PROGRAM;
}

SEC("tcx/ingress")
int ingress(struct __sk_buff *skb)
{
	struct packet packet = {};
	struct flow *flow;
	struct class class;
	u64 now;

	read_packet(skb, &packet);
	if (!packet.is_tcp)
		return NEXT_PROGRAM;
	turn(&packet.key);
	flow = flow_of_received(&packet);
	if (!flow)
		return NEXT_PROGRAM;
	if (packet.flags & TCP_SYN)
		received_syn(skb, &packet, flow);
	if (flow->class == NO_CLASS || !class_at(flow->class, &class))
		return NEXT_PROGRAM;
	now = now_ns();
	if (packet.flags & TCP_SYN)
		on_limited(&class, flow);
	if (class.config->ecn && packet.ecn == ECN_CE && !(flow->flags & NATIVE_ECN)) {
		flow->flags |= MARK_PENDING;
		set_ecn(skb, &packet, 0);
	}
	if (packet.flags & TCP_ACK && flow->flags & KNOWS_SCALE && !(packet.flags & TCP_RST)) {
		if (class.config->mode != MODE_OFF)
			acknowledged(skb, &class, &packet, flow, now);
		else if (flow->timed && !after(flow->sample_end, packet.ack))
			/* Nothing is held, but what the flows feel is told. */
			round_trip(&class, flow, now);
	}
	if (is_over(&packet, flow, REMOTE_FIN))
		end_flow(&class, &packet);
	return NEXT_PROGRAM;
}

char LICENSE[] SEC("license") = "GPL";
