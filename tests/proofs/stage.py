"""Where a proof is played: a namespace on some API server, a cluster for the dispatcher, and hands to make trouble."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster
from tests.e2e.audit import Carried, Ledger, audit
from tests.facts.world import World, pod

Json = dict[str, Any]
_NUMBERS = itertools.count(1)


class Stage(ABC):
    """One namespace of its own. `world` asks past any dispatcher and may do all."""

    world: World

    @abstractmethod
    def api_client(self, user: str) -> Any:
        """An ApiClient of "admin", or of "bot", who has the rights that `grant` gives."""

    @abstractmethod
    def carried(self) -> list[Carried]:
        """The writes in this namespace that the server has carried out."""

    @abstractmethod
    async def grant(self, *, but_not: tuple[str, str]) -> None:
        """Let the bot do all in the namespace, but for one verb on one resource."""

    @abstractmethod
    async def deny(self) -> None:
        """An admission policy that denies what is labelled `forbidden=yes`."""

    @abstractmethod
    def storm(self) -> AbstractAsyncContextManager[None]:
        """The server turns away most of what the bot asks, as its Priority and Fairness does."""

    async def items(self, path: str) -> list[Json]:
        """What is at a collection's path."""
        reply = await self.world.get(path)
        assert reply.status == 200, reply.text
        return list(reply.json["items"])

    @asynccontextmanager
    async def dispatcher(self, user: str = "admin") -> AsyncIterator[tuple[Dispatcher, Cluster]]:
        """A dispatcher, and the cluster for its calls, which are audited at the end."""
        ledger, client = Ledger(), self.api_client(user)
        client.user_agent = agent = f"proof/{next(_NUMBERS)}"
        async with Dispatcher(observers=[ledger]) as dispatcher:
            yield dispatcher, Cluster(client)
        await audit(ledger, self.items, [write for write in self.carried() if write.agent == agent])

    def pod(self, name: str = "web", **metadata: Any) -> Json:
        """A Pod to create."""
        body = pod(name)
        return {**body, "metadata": {**body["metadata"], "namespace": self.world.namespace, **metadata}}

    def config_map(self, name: str, **metadata: Any) -> Json:
        head = {"apiVersion": "v1", "kind": "ConfigMap"}
        return {**head, "metadata": {"name": name, "namespace": self.world.namespace, **metadata}}


Proof = Callable[[Stage], Awaitable[None]]
PROOFS: list[Proof] = []


def proof(play: Proof) -> Proof:
    """Register a proof, which runs on every server."""
    PROOFS.append(play)
    return play
