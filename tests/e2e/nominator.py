"""A nominator as a program, for the tests that kill it: it nominates each gated Pod to the node of its label `to`.

What happens is told on the standard output, a JSON object per line. SIGTERM ends it in peace. Without `--ttl` it has no
plan: it only keeps the hints that it finds. With `--shards` it is one of several replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from contextlib import AsyncExitStack
from typing import Any

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster, ShardSet
from asyncdispatch.nomination import Decision, NominationHandle, Nominator

TIMING: dict[str, Any] = {"lease_duration": 3, "renew_deadline": 2, "retry_period": 0.4}
"""A fifth of the usual times."""


def tell(what: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": what, **more}) + "\n")
    sys.stdout.flush()


class Program:
    """One process."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace) -> None:
        self.cluster, self.options = cluster, options
        self.kept: set[str] = set()
        self.tried: set[str] = set()
        self.owned: frozenset[int] = frozenset()
        self.shards: ShardSet | None = None

    async def live(self, leaving: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as self.tasks, AsyncExitStack() as stack:
            if self.options.shards:
                total = self.options.shards
                made = self.cluster.shards("planner", self.options.namespace, self.options.name, total=total, **TIMING)
                self.shards = await stack.enter_async_context(made)
            dispatcher = await stack.enter_async_context(Dispatcher())
            if self.shards is not None:
                self.shards.join(dispatcher)
            nominator = Nominator(dispatcher, self.cluster, shards=self.shards)
            self.nominator = await stack.enter_async_context(nominator)
            tell("started")
            rounds = self.tasks.create_task(self.rounds())
            await leaving.wait()
            rounds.cancel()
        tell("ended")

    async def rounds(self) -> None:
        while True:
            if self.shards is not None and self.shards.owned != self.owned:
                self.owned = self.shards.owned
                tell("owns", shards=sorted(self.owned))
            if self.options.ttl:
                await self.plan()
            for handle in self.nominator.live:
                if handle.decision_id not in self.kept:
                    self.kept.add(handle.decision_id)
                    self.tasks.create_task(self.follow(handle))
            await asyncio.sleep(0.1)

    async def plan(self) -> None:
        """Each gated Pod of ours without a hint, once."""
        for pod in list(self.nominator.pods):
            meta, uid = pod["metadata"], pod["metadata"]["uid"]
            node = meta.get("labels", {}).get("to")
            free = pod["spec"].get("schedulingGates") and not pod["status"].get("nominatedNodeName")
            ours = self.shards is None or self.shards.owns(pod)
            if node and free and ours and uid not in self.tried:
                self.tried.add(uid)
                await self.nominator.nominate(
                    Decision(pod=pod, node=node, algorithm_version="label", reason="by label", ttl=self.options.ttl)
                )

    async def follow(self, handle: NominationHandle) -> None:
        if await handle.written():
            tell("keeps", pod=handle.decision.ref.name, decision=handle.decision_id)
        outcome = await handle.outcome()
        tell("outcome", pod=handle.decision.ref.name, decision=handle.decision_id, state=outcome.state.value)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--namespace", required=True, help="of the Leases")
    parser.add_argument("--ttl", type=float, help="of its hints, in seconds")
    parser.add_argument("--shards", type=int, help="in all")
    parser.add_argument("--name", default="nominator")
    options = parser.parse_args()
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    async with Cluster.connect(options.kubeconfig) as cluster:
        await Program(cluster, options).live(leaving)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
