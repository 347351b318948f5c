"""What is asked of the API server: lives of Pods and ConfigMaps, of a dozen calls each, of all kinds.

Each write asks for something of its own, so that the audit can tell whether it is there. What lives in the namespace
`KEPT` stays as evidence; what lives in `PASSING` is removed in the end, so that a reflector there stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from asyncdispatch import APICall, CallHandle, Dispatcher, ObjectRef
from asyncdispatch.errors import AsyncDisabled
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.kubernetes.creation import Create
from asyncdispatch.kubernetes.events import Event
from asyncdispatch.kubernetes.removal import Delete, Evict
from asyncdispatch.outcomes import Cancelled, Failed, Overwritten, Skipped, Succeeded

KEPT, PASSING = "soak-kept", "soak-passing"
LED = "led"
"""The label of what was written under the lease."""

Json = dict[str, Any]


def expected(call: Any, outcome: Any) -> bool:
    """Whether it may end so. Whatever goes wrong, a call is done in the end, but for these."""
    if isinstance(outcome, Succeeded):
        return True
    if isinstance(outcome, (Overwritten, Skipped)):
        return call.call_type in ("patch", "pod_status_patch", "delete", "event")
    if isinstance(call, Event):  # best effort, tried twice
        return True
    if isinstance(outcome, Failed):  # its name is the server's to choose: nobody can look whether it is there
        return outcome.ambiguous and isinstance(call, Create) and call.target.generated
    if isinstance(outcome, Cancelled):  # the lease was lost, or the object was gone before it was sent
        removes = isinstance(call, (Delete, Evict)) and outcome.reason == "deleted" and not outcome.ambiguous
        return LED in call.target.name or removes
    return False


@dataclass(frozen=True)
class Mark:
    """Decides to set one annotation: asked again after a conflict, it asks for the same state."""

    name: str
    value: str

    def __call__(self, obj: Json) -> Json | None:
        if (obj["metadata"].get("annotations") or {}).get(self.name) == self.value:
            return None
        return {"metadata": {"annotations": {self.name: self.value}}}


class Load:
    """Lives, one after another or beside each other, through one dispatcher. `name` begins all names that it gives."""

    def __init__(self, dispatcher: Dispatcher, cluster: Cluster, name: str, random: Random) -> None:
        self.dispatcher = dispatcher
        self.cluster = cluster
        self.name = name
        self.random = random
        self._count = 0

    async def live(self) -> None:
        """One whole life. Raises `DispatcherClosed`, and what refuses calls that were not to be refused."""
        self._count += 1
        name = f"{self.name}-{self._count}"
        namespace = self.random.choice((KEPT, PASSING))
        await self.random.choice((self._pod, self._pod, self._config_map))(name, namespace)

    async def ask(self, call: APICall[Any]) -> CallHandle[Any]:
        """By one of the ways in which the mode lets it in."""
        if self.random.random() < 0.7:
            try:
                return self.dispatcher.submit(call)
            except AsyncDisabled:
                pass
        return await self.dispatcher.dispatch(call)

    async def _done(self, call: APICall[Any]) -> Any:
        """The value, or None if it did not succeed; what may be expected is for the ledger to say."""
        outcome = await (await self.ask(call)).outcome()
        return outcome.value if isinstance(outcome, Succeeded) else None

    async def _pod(self, name: str, namespace: str) -> None:
        cluster, dispatcher = self.cluster, self.dispatcher
        pod = await self._done(cluster.create(_pod(name, namespace), idempotency_key=name))
        if pod is None:
            return
        context = dispatcher.contexts.begin(pod, requires=("volume",))
        volume = _config_map(f"{name}-volume", namespace)
        calls: list[APICall[Any]] = [
            cluster.patch_status(pod, conditions=[_condition("one")], context=context),
            cluster.patch_status(pod, conditions=[_condition("two")], context=context),
            cluster.create(volume, idempotency_key=f"{name}-volume", context=context, prerequisite="volume"),
            cluster.bind(pod, f"node-{name}", context=context),
            cluster.patch(pod, {"metadata": {"annotations": {"a": name}}}),
            cluster.patch(pod, {"metadata": {"annotations": {"b": name}}}),
            cluster.patch(pod, Mark("c", name)),
            cluster.event(pod, reason="Soaked", message="once"),
            cluster.event(pod, reason="Soaked", message="twice"),
            cluster.read(pod),
        ]
        handles = [await self.ask(call) for call in calls]
        ends = [await handle.outcome() for handle in handles]
        context.end("this life is over")
        if namespace == PASSING:
            removal = self.random.choice((cluster.delete, cluster.evict))
            await self._done(removal(pod, grace_period=0))
            if isinstance(ends[2], Succeeded):
                await self._delete_twice(ends[2].value)
        else:
            await self._look(pod)
        self._leave(ObjectRef.of(pod), ObjectRef.of(volume))

    async def _config_map(self, name: str, namespace: str) -> None:
        cluster = self.cluster
        new = _config_map(name, namespace)
        if self.random.random() < 0.5:
            new["metadata"] = {"generateName": f"{name}-", "namespace": namespace}
        made = await self._done(cluster.create(new, idempotency_key=name))
        if made is not None:
            handles = [await self.ask(cluster.patch(made, {"data": {key: name}})) for key in "abcde"]
            handles.append(await self.ask(cluster.patch(made, Mark("mark", name))))
            handles.append(await self.ask(cluster.read(made)))
            for handle in handles:
                await handle.outcome()
            if namespace == PASSING:
                await self._delete_twice(made)
            else:
                await self._look(made)
            self._leave(ObjectRef.of(made))
        self._leave(ObjectRef.of(new))

    async def _delete_twice(self, obj: Json) -> None:
        for handle in [await self.ask(self.cluster.delete(obj)) for _ in range(2)]:
            await handle.outcome()

    async def _look(self, obj: Json) -> None:
        """See our own writes done: nothing of them is to be shown by hand any more."""
        found = await self._done(self.cluster.read(obj))
        if found is not None:
            self.dispatcher.observe(found, fresh=True)

    def _leave(self, *refs: ObjectRef) -> None:
        """Nobody here looks after it any more."""
        for ref in refs:
            self.dispatcher.forget(ref, "its life is over")


def _pod(name: str, namespace: str) -> Json:
    spec = {"schedulerName": "soak", "containers": [{"name": "c", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _config_map(name: str, namespace: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


def _condition(name: str) -> Json:
    return {"type": f"soak.example/{name}", "status": "True", "reason": "Soaked", "message": "for the soak"}


def led(name: str, number: int, identity: str, epoch: int) -> Json:
    """What a leader writes: who it was, and in which term."""
    obj = _config_map(f"{name}-{LED}-{epoch}-{number}", KEPT)
    obj["metadata"]["labels"] = {LED: "yes"}
    return {**obj, "data": {"term": f"{identity}/{epoch}"}}
