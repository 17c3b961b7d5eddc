// Reads packets of one connection from standard input, has the judge of the BPF program judge them, and writes the flow.
#include <linux/types.h>
#include <stdbool.h>
#include <stdio.h>

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

#include "shared.h"
#include "shared.check.h"
#include "weir/tcp.h"
#include "number.h"
#include "judge.h"

int main(void)
{
	static struct weir_flow flow;
	struct weir_packet packet;

	while (fread(&packet, sizeof(packet), 1, stdin) == 1)
		judge(&flow, &packet);
	return fwrite(&flow, sizeof(flow), 1, stdout) != 1;
}
