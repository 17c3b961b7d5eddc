// The place of a packet when the kernel lets go of it.
#pragma once

// Numbers that proc gives to namespaces begin here (include/linux/proc_ns.h): the initial ones are among the last below it or
// dynamic. A smaller number was read from something that is no namespace.
#define LEAST_NETNS 0xEFFFFF00

static __always_inline __u32 plausible(__u32 inum)
{
	return inum >= LEAST_NETNS ? inum : 0;
}

// `skb->dev` shares its place with other things while a packet waits in a socket's queue or tree. Reading through them
// gives zeros or something that is no number of a namespace.
static __always_inline __u32 netns_of_device(struct net_device *dev)
{
	return dev ? plausible(dev->nd_net.net->ns.inum) : 0;
}

// The namespace of a socket that is an argument of a tracepoint: by a helper and not by walking, because on some kernels the
// verifier believes that such a one is never null, and removes the question (fixed in Linux 6.14).
static __always_inline __u32 netns_of_socket(struct sock *sk)
{
	return sk ? plausible(BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum)) : 0;
}

// The namespace of the socket that made the packet or gets it, if it is known already.
static __always_inline __u32 netns_of_owner(struct sk_buff *skb)
{
	struct sock *sk = skb->sk;

	return sk ? plausible(sk->__sk_common.skc_net.net->ns.inum) : 0;
}

// A packet made here has a route before it has a device.
static __always_inline __u32 netns_of_route(struct sk_buff *skb)
{
	struct dst_entry *dst = (void *)(skb->_skb_refdst & SKB_DST_PTRMASK);

	return dst ? plausible(BPF_CORE_READ(dst, dev, nd_net.net, ns.inum)) : 0;
}

// The start of the network header. Before the stack has set it, the data begin with it.
static __always_inline void *network_header(struct sk_buff *skb)
{
	__u16 at = skb->network_header;

	return at && at != 0xffff ? skb->head + at : skb->data;
}
