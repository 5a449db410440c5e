/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* DCTCP as RFC 8257 has it, for kernels without `tcp_dctcp`. Section numbers are that RFC's. It counts segments where the RFC
 * counts bytes; bulk has segments of one size.
 *
 * The window is its own and is written with each acknowledgement. Answers to the kernel's `ssthresh` would be less code, but on
 * Linux 6.18 the kernel was seen to go on, now and then, with a threshold of 0x81104110, which no program had answered. */
#include "bpf.h"

/* include/net/tcp.h and include/net/inet_connection_sock.h */
#define CONG_NON_RESTRICTED 1
#define CONG_NEEDS_ECN 2
#define ECN_DEMAND_CWR 4
#define EVENT_LOSS 3
#define EVENT_NO_CE 4
#define EVENT_CE 5
#define STATE_RECOVERY 3
#define ACK_DELAYED 2
#define ACK_NOW 16

/* 3.3: one, and the estimation gain's inverse as a power of two. */
#define ALPHA_ONE 1024U
#define GAIN_SHIFT 4
#define CWND_MIN 2U
#define CWND_MAX (1U << 20)

static long (*bpf_tcp_send_ack)(void *, __u32) = (void *)BPF_FUNC_tcp_send_ack;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock {
	unsigned long sk_pacing_rate;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct {
		__u8 pending;
	} icsk_ack;
	__u64 icsk_ca_priv[13];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_cwnd;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 rcv_nxt;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 max_packets_out;
	__u32 mss_cache;
	/* Eight times of it. */
	__u32 srtt_us;
	__u8 ecn_flags;
};

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *);
	void (*set_state)(struct sock *, __u8);
	void (*cwnd_event)(struct sock *, int);
	void (*cong_control)(struct sock *, __u32, int, const void *);
	__u32 (*undo_cwnd)(struct sock *);
	char name[16];
	__u32 flags;
	void (*init)(struct sock *);
};

#pragma clang attribute pop

/* Of one connection. */
struct dctcp {
	__u32 cwnd;
	__u32 ssthresh;
	/* Segments that have been acknowledged of the next one of the window. */
	__u32 grown;
	__u32 alpha;
	/* The observation window ends when this is acknowledged. */
	__u32 window_end;
	__u32 window_delivered;
	__u32 window_marked;
	/* The window has been cut for marks until this is acknowledged. */
	__u32 cut_end;
	__u32 delivered;
	__u32 marked;
	/* 3.2: DCTCP.CE, and what was acknowledged with it. */
	__u32 ce;
	__u32 acknowledged;
};

#define SOCKET(ctx) ((struct tcp_sock *)(ctx)[0])
#define OWN(socket) ((struct dctcp *)(socket)->inet_conn.icsk_ca_priv)

static inline int before(__u32 one, __u32 other)
{
	return (__s32)(one - other) < 0;
}

static inline __u32 at_least_min(__u32 cwnd)
{
	return cwnd > CWND_MIN ? cwnd : CWND_MIN;
}

SEC("struct_ops/init")
void dctcp_init(__u64 *ctx)
{
	struct tcp_sock *socket = SOCKET(ctx);
	struct dctcp *own = OWN(socket);

	own->cwnd = socket->snd_cwnd;
	own->ssthresh = CWND_MAX;
	own->grown = 0;
	/* The first mark halves the window, as 3.3 advises. */
	own->alpha = ALPHA_ONE;
	own->window_end = own->cut_end = socket->snd_nxt;
	own->delivered = own->window_delivered = socket->delivered;
	own->marked = own->window_marked = socket->delivered_ce;
	own->ce = 0;
	own->acknowledged = socket->rcv_nxt;
}

/* 3.3: alpha once in each window of data. */
static inline void estimate(struct tcp_sock *socket, struct dctcp *own)
{
	__u32 delivered = socket->delivered - own->window_delivered;
	__u32 marked = socket->delivered_ce - own->window_marked, alpha = own->alpha;

	if (before(socket->snd_una, own->window_end))
		return;
	/* Small rests of alpha go too. */
	alpha -= alpha >> GAIN_SHIFT ? alpha >> GAIN_SHIFT : alpha;
	if (delivered && marked)
		alpha += (marked << (10 - GAIN_SHIFT)) / delivered;
	own->alpha = alpha < ALPHA_ONE ? alpha : ALPHA_ONE;
	own->window_end = socket->snd_nxt;
	own->window_delivered = socket->delivered;
	own->window_marked = socket->delivered_ce;
}

/* As Reno: a segment for each acknowledged one below the threshold, one for each window above it, and none while the window is
 * not used. */
static inline void grow(struct tcp_sock *socket, struct dctcp *own, __u32 acked)
{
	if (own->cwnd < own->ssthresh) {
		if (own->cwnd < 2 * socket->max_packets_out)
			own->cwnd += acked;
		if (own->cwnd > own->ssthresh)
			own->cwnd = own->ssthresh;
	} else if (own->cwnd <= socket->max_packets_out) {
		own->grown += acked;
		if (own->grown >= own->cwnd) {
			own->grown = 0;
			own->cwnd++;
		}
	}
	if (own->cwnd > CWND_MAX)
		own->cwnd = CWND_MAX;
}

/* What the kernel does for other controls: no packets larger, and no more of them in the host, than this rate asks for. */
static inline void pace(struct tcp_sock *socket, struct dctcp *own)
{
	__u64 percent = own->cwnd < own->ssthresh / 2 ? 200 : 120;

	if (socket->srtt_us)
		socket->inet_conn.icsk_inet.sk.sk_pacing_rate =
			(__u64)own->cwnd * socket->mss_cache * 8 * 10000 * percent / socket->srtt_us;
}

SEC("struct_ops/cong_control")
void dctcp_control(__u64 *ctx)
{
	struct tcp_sock *socket = SOCKET(ctx);
	struct dctcp *own = OWN(socket);
	__u32 acked = socket->delivered - own->delivered, marked = socket->delivered_ce - own->marked;

	own->delivered = socket->delivered;
	own->marked = socket->delivered_ce;
	estimate(socket, own);
	if (!before(socket->snd_una, own->cut_end)) {
		if (marked) {
			/* 3.3: once in each window that has marks. */
			own->cwnd = at_least_min(own->cwnd - ((own->cwnd * own->alpha) >> 11));
			own->ssthresh = own->cwnd;
			own->cut_end = socket->snd_nxt;
		} else {
			grow(socket, own, acked);
		}
	}
	socket->snd_cwnd = own->cwnd;
	pace(socket, own);
}

/* 3.5: a loss halves the window, marks or not. */
static inline void lost(struct tcp_sock *socket, struct dctcp *own)
{
	own->cwnd = own->ssthresh = at_least_min(own->cwnd / 2);
	own->cut_end = socket->snd_nxt;
}

SEC("struct_ops/set_state")
void dctcp_state(__u64 *ctx)
{
	struct tcp_sock *socket = SOCKET(ctx);

	if ((ctx[1] & 0xff) == STATE_RECOVERY)
		lost(socket, OWN(socket));
}

static inline void echo(struct tcp_sock *socket, __u32 ce)
{
	if (ce)
		socket->ecn_flags |= ECN_DEMAND_CWR;
	else
		socket->ecn_flags &= ~ECN_DEMAND_CWR;
}

/* 3.2: acknowledgements tell exactly which segments were marked, delayed ones too. */
static inline void arrived(struct tcp_sock *socket, struct dctcp *own, __u32 ce)
{
	if (own->ce != ce) {
		if (socket->inet_conn.icsk_ack.pending & ACK_DELAYED) {
			echo(socket, own->ce);
			bpf_tcp_send_ack(socket, own->acknowledged);
		}
		socket->inet_conn.icsk_ack.pending |= ACK_NOW;
	}
	own->acknowledged = socket->rcv_nxt;
	own->ce = ce;
	echo(socket, ce);
}

SEC("struct_ops/cwnd_event")
void dctcp_event(__u64 *ctx)
{
	struct tcp_sock *socket = SOCKET(ctx);
	struct dctcp *own = OWN(socket);
	int event = ctx[1];

	if (event == EVENT_CE || event == EVENT_NO_CE) {
		arrived(socket, own, event == EVENT_CE);
	} else if (event == EVENT_LOSS) {
		lost(socket, own);
		/* A time-out begins with one segment. */
		own->cwnd = 1;
		own->cut_end = socket->snd_una;
	}
}

/* Asked for, but of no effect: the window is written with each acknowledgement. */
SEC("struct_ops/ssthresh")
__u32 dctcp_ssthresh(__u64 *ctx)
{
	return OWN(SOCKET(ctx))->ssthresh;
}

SEC("struct_ops/undo_cwnd")
__u32 dctcp_undo(__u64 *ctx)
{
	return OWN(SOCKET(ctx))->cwnd;
}

SEC(".struct_ops")
struct tcp_congestion_ops dctcp = {
	.ssthresh = (void *)dctcp_ssthresh,
	.set_state = (void *)dctcp_state,
	.cwnd_event = (void *)dctcp_event,
	.cong_control = (void *)dctcp_control,
	.undo_cwnd = (void *)dctcp_undo,
	.name = "tidegate_dctcp",
	.flags = CONG_NON_RESTRICTED | CONG_NEEDS_ECN,
	.init = (void *)dctcp_init,
};
