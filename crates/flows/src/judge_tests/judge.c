// Reads packets of one flow from standard input, has the judge of the BPF program judge them, and writes the flow. With an argument they
// are of UDP.
#include <linux/types.h>
#include <stdbool.h>
#include <stdio.h>

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

#include "settings.h"
#include "settings.check.h"
#include "shared.h"
#include "shared.check.h"
#include "weir/tcp.h"
#include "number.h"
#include "judge.h"
#include "datagrams.h"

static int judge_datagrams(void)
{
	static struct weir_udp_flow flow;
	struct weir_datagram datagram;

	while (fread(&datagram, sizeof(datagram), 1, stdin) == 1)
		judge_udp(&flow, &datagram);
	return fwrite(&flow, sizeof(flow), 1, stdout) != 1;
}

int main(int arguments, char **argument)
{
	static struct weir_flow flow;
	struct weir_packet packet;

	(void)argument;
	if (arguments > 1)
		return judge_datagrams();
	while (fread(&packet, sizeof(packet), 1, stdin) == 1) {
		if (!flow.born)
			flow.born = packet.now;
		judge(&flow, &packet);
	}
	return fwrite(&flow, sizeof(flow), 1, stdout) != 1;
}
