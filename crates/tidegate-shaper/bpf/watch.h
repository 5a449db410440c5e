/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The queue of a class where HTB's structures cannot be read: bytes are counted as they enter and leave the device's queue, at
 * two tracepoints, and what HTB's token bucket owes is computed.
 *
 * Both tracepoints run with the queue locked, so that one processor at a time counts. The classic tracepoint of the same name
 * would not do: it names neither the namespace nor the packet's class and length. */
#ifndef TIDEGATE_WATCH_H
#define TIDEGATE_WATCH_H

#include <bpf/bpf_tracing.h>

/* `egress` leaves the class with the packet: in the last word of what belongs to the queue, beyond what fq_codel, fq, netem
 * and cake use of it. */
#define MARK_WORD 4
#define MARK_OURS 0x71de0000U
#define MARK_OURS_MASK 0xffff0000U
#define MARK_WAITS 0x100U
#define MARK_CLASS 0xffU
/* Packets that a driver takes at once; what is more is forgotten when the device's queue is empty. */
#define BATCH_MAX 256

#ifndef WITHOUT_BTF
static __always_inline u32 mark_of(const struct sk_buff *packet)
{
	return *(u32 *)(((struct qdisc_skb_cb *)packet->cb)->data + 4 * MARK_WORD);
}

/* As HTB charges it. */
static __always_inline u32 length_of(const struct sk_buff *packet)
{
	return ((struct qdisc_skb_cb *)packet->cb)->pkt_len;
}

static __always_inline struct watched *watched_at(const struct netdev_queue *of)
{
	struct net_device *device = of->dev;
	u32 only = 0;

	if (device->ifindex != settings.device || device->nd_net.net->ns.inum != settings.namespace)
		return 0;
	return bpf_map_lookup_elem(&watched_device, &only);
}

/* What a class has waiting, as of this round. */
static __always_inline struct waiting *waiting_at(const struct watched *watched, u32 index)
{
	struct waiting *waiting = bpf_map_lookup_elem(&waiting_bytes, &index);

	if (waiting && waiting->round != watched->round) {
		waiting->bytes = 0;
		waiting->round = watched->round;
	}
	return waiting;
}

/* HTB's token bucket of the class, at the rate that it drains by, what it borrows included. HTB sends while it owes nothing, or with batched timers no more than a
 * burst, so that no error of ours adds up. */
static __always_inline void charge(const struct class_config *config, struct class_state *state, u32 bytes, u64 now)
{
	u64 until = state->busy_until;

	if ((s64)(now - until) > (s64)config->burst)
		until = now - config->burst;
	if ((s64)(until - now) > (s64)config->debt)
		until = now + config->debt;
	state->busy_until = until + span_of(bytes, drain_rate(&state->drain, config->rate, config->ceil));
}

static __always_inline void leaves(const struct watched *watched, const struct sk_buff *packet, u64 now)
{
	u32 mark = mark_of(packet), bytes = length_of(packet), index = mark & MARK_CLASS;
	struct class_config *config;
	struct class_state *state;
	struct waiting *waiting;

	if ((mark & MARK_OURS_MASK) != MARK_OURS)
		return;
	config = bpf_map_lookup_elem(&class_configs, &index);
	state = bpf_map_lookup_elem(&class_states, &index);
	if (!config || !state || !config->rate)
		return;
	charge(config, state, bytes, now);
	waiting = waiting_at(watched, index);
	if (!waiting)
		return;
	waiting->left += bytes;
	if (mark & MARK_WAITS)
		waiting->bytes -= waiting->bytes < bytes ? waiting->bytes : bytes;
}

SEC("?tp_btf/qdisc_enqueue")
int BPF_PROG(enqueued, struct Qdisc *queue, const struct netdev_queue *of, struct sk_buff *packet)
{
	struct watched *watched = watched_at(of);
	struct waiting *waiting;
	u32 mark;

	if (!watched)
		return 0;
	/* What was counted before and is not there was dropped. */
	if (queue->q.qlen <= 1)
		watched->round++;
	mark = mark_of(packet);
	if ((mark & (MARK_OURS_MASK | MARK_WAITS)) != (MARK_OURS | MARK_WAITS))
		return 0;
	waiting = waiting_at(watched, mark & MARK_CLASS);
	if (waiting)
		waiting->bytes += length_of(packet);
	return 0;
}

SEC("?tp_btf/qdisc_dequeue")
int BPF_PROG(dequeued, struct Qdisc *queue, const struct netdev_queue *of, int packets, struct sk_buff *packet)
{
	struct watched *watched = watched_at(of);
	u32 requeues;
	u64 now;

	/* Kernels before 6.13 hold the packet to be there always and drop the check for it; then what is read of none is 0. */
	if (!watched || !packet || !length_of(packet))
		return 0;
	/* What the device did not take went back to the head of the queue: it comes by again, and has been counted. */
	requeues = queue->qstats.requeues;
	watched->again += requeues - watched->requeues;
	watched->requeues = requeues;
	if (watched->again) {
		watched->again--;
		return 0;
	}
	now = bpf_ktime_get_ns();
	for (int i = 0; i < BATCH_MAX && i < packets && packet; i++) {
		leaves(watched, packet, now);
		packet = packet->next;
	}
	if (!queue->q.qlen)
		watched->round++;
	return 0;
}

#endif

/* Nanoseconds; negative while the class has tokens that nobody used. */
static __always_inline s64 queue_watched(const struct class_config *config, const struct class_state *state, u32 index, u64 now)
{
	u32 only = 0;
	struct watched *watched = bpf_map_lookup_elem(&watched_device, &only);
	struct waiting *waiting = bpf_map_lookup_elem(&waiting_bytes, &index);
	u64 bytes = waiting && watched && waiting->round == watched->round ? waiting->bytes : 0;
	s64 owed = (s64)(state->busy_until - now);

	if (owed < -(s64)config->burst)
		owed = -(s64)config->burst;
	return (s64)span_of(bytes, drain_rate(&state->drain, config->rate, config->ceil)) + owed;
}

#endif
