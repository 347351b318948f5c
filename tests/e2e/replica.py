"""A replica of a program, for the tests of leases: it leads when it can, and then writes as fast as it is let.

Each write creates a ConfigMap that names who wrote it and in which term, so that the server's own order of versions
tells who wrote when. What happens is told on the standard output, a JSON object per line. SIGTERM ends it in peace.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import sys
from typing import Any

from asyncdispatch import Backpressure, CallHandle, Dispatcher, DispatcherConfig, StaleContext
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.kubernetes import Cluster, LeaseTiming


def tell(what: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": what, **more}) + "\n")
    sys.stdout.flush()


class Replica:
    """One process."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.options = options
        self.leaving = asyncio.Event()
        self.counter = itertools.count()
        self.outcomes: dict[str, int] = {}

    async def live(self) -> None:
        timing = {name: getattr(self.options, name) for name in LeaseTiming.__dataclass_fields__}
        config = DispatcherConfig(max_in_flight=8, capacity=500)
        lease = self.cluster.lease(self.options.lease, self.options.namespace, self.options.name, **timing)
        tell("started", identity=lease.identity)
        async with lease, Dispatcher(config) as dispatcher:
            leader = asyncio.create_task(self.lead(lease, dispatcher))
            left = asyncio.create_task(self.leaving.wait())
            await asyncio.wait({leader, left}, return_when=asyncio.FIRST_COMPLETED)
            leader.cancel()
            await asyncio.wait({leader})
        tell("ended", outcomes=self.outcomes, terms=lease.statistics().terms)

    async def lead(self, lease: Any, dispatcher: Dispatcher) -> None:
        while True:
            async with lease.leadership(dispatcher) as leading:
                tell("leads", identity=lease.identity, epoch=leading.epoch)
                await self.write(lease.identity, dispatcher, leading)
            tell("lost", reason=leading.ended)

    async def write(self, identity: str, dispatcher: Dispatcher, leading: SchedulingContext) -> None:
        while True:
            number = next(self.counter)
            obj = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": f"write-{identity.replace('_', '-')}-{number}",
                    "namespace": self.options.namespace,
                    "labels": {"written": "by-a-replica"},
                },
                "data": {"identity": identity, "epoch": str(leading.epoch), "number": str(number)},
            }
            try:
                handle = dispatcher.submit(self.cluster.create(obj, context=leading))
            except Backpressure as full:
                await asyncio.sleep(full.retry_after)
            except StaleContext:
                await asyncio.sleep(0.01)  # about to be cancelled
            else:
                handle.add_done_callback(self.count)
                await asyncio.sleep(self.options.pause)

    def count(self, handle: CallHandle[Any]) -> None:
        kind = type(handle.settled).__name__
        self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
        if kind == "Succeeded" and self.outcomes[kind] == 1:
            tell("wrote")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--lease", required=True)
    parser.add_argument("--name", required=True, help="its identity")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two writes")
    parser.add_argument("--lease-duration", type=float, default=15)
    parser.add_argument("--renew-deadline", type=float, default=10)
    parser.add_argument("--retry-period", type=float, default=2)
    return parser.parse_args()


async def main() -> None:
    options = arguments()
    async with Cluster.connect(options.kubeconfig) as cluster:
        replica = Replica(cluster, options)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, replica.leaving.set)
        await replica.live()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
