"""A modelled cluster around the machine: a server, a wilful scheduler, watches that lag, a bad network.

Everything is drawn from one `random.Random`. The model keeps a truth of its own (who wrote which value, when) and
checks each write and each outcome against it; it asks the machine nothing that the machine could be wrong about.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict, deque
from datetime import UTC, datetime
from random import Random
from typing import Any

from asyncdispatch.calls import ObjectRef
from asyncdispatch.nomination.actions import Answer, Ask, Fate, Look, Write
from asyncdispatch.nomination.decisions import Decision, NominationPolicy
from asyncdispatch.nomination.invariants import check_invariants
from asyncdispatch.nomination.judging import ground_lost
from asyncdispatch.nomination.machine import Nominations
from asyncdispatch.nomination.states import NominationState as S
from asyncdispatch.testing.apiserver.patches import merge
from tests.nomination.objects import VICTIM, node, pod

Json = dict[str, Any]
START = 1_000.0
EPOCH = 1_800_000_000.0
SLACK = 40.0
"""Seconds beyond its TTL within which a hint is taken back, at the latest: the rounds of `unkept`, and one backoff."""

POLICY = NominationPolicy(
    max_ttl=30.0, hint_budget=100.0, writes_per_second=5.0, burst=5, writes_per_pod=6, max_live=6, max_conflicts=2,
    adoption_slack=5.0, forbidden_hold=10.0,
)  # fmt: skip


class Broken(AssertionError):
    """A law is broken."""


def require(good: object, law: str, what: object = "") -> None:
    if not good:
        raise Broken(f"{law}: {what}")


class Server:
    """Pods and nodes, with versions, the owner of the field as managedFields tell it, and two watches."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.version = 0
        self.uids = 0
        self.events: dict[str, deque[tuple[str, Json]]] = {"Pod": deque(), "Node": deque()}
        # truth
        self.owner: dict[str, str | None] = {}  # by uid: the decision whose value the field holds
        self.bound: dict[str, str] = {}
        self.over: set[str] = set()  # uids deleted, being deleted or finished
        self.sets: Counter[str] = Counter()
        self.clears: Counter[str] = Counter()
        self.hinted: dict[str, float] = defaultdict(float)
        self.hinted_since: dict[str, float] = {}

    def put(self, kind: str, obj: Json, event: str = "MODIFIED") -> Json:
        table = self.pods if kind == "Pod" else self.nodes
        self.version += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self.version)
        table[obj["metadata"]["name"]] = obj
        self._tell(kind, event, obj)
        return obj

    def add(self, kind: str, obj: Json) -> Json:
        self.uids += 1
        obj["metadata"]["uid"] = f"u{self.uids}"
        if obj["spec"].get("nodeName"):
            self.bound[obj["metadata"]["uid"]] = obj["spec"]["nodeName"]
        return self.put(kind, obj, "ADDED")

    def remove(self, kind: str, name: str, now: float) -> None:
        obj = (self.pods if kind == "Pod" else self.nodes).pop(name)
        uid = obj["metadata"]["uid"]
        self.over.add(uid)
        self._own(uid, None, now)
        self.version += 1
        gone = copy.deepcopy(obj)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell(kind, "DELETED", gone)

    def _tell(self, kind: str, event: str, obj: Json) -> None:
        seen = copy.deepcopy(obj)
        seen["metadata"].pop("managedFields", None)  # a reflector drops them
        self.events[kind].append((event, seen))

    def nominate(self, obj: Json, value: str | None, manager: str, decision: str | None, now: float) -> None:
        """Change the field of `obj` in place, as this writer."""
        if value == obj["status"].get("nominatedNodeName"):
            return
        uid = obj["metadata"]["uid"]
        if value is None:
            obj["status"].pop("nominatedNodeName", None)
            obj["metadata"].pop("managedFields", None)
        else:
            obj["status"]["nominatedNodeName"] = value
            field: Json = {"f:status": {"f:nominatedNodeName": {}}}
            obj["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": field}]
        self._own(uid, decision, now)

    def _own(self, uid: str, decision: str | None, now: float) -> None:
        if self.owner.get(uid) is not None:
            self.hinted[uid] += now - self.hinted_since.pop(uid)
        self.owner[uid] = decision
        if decision is not None:
            self.hinted_since[uid] = now

    def apply(self, write: Write, patch: Json, now: float) -> Answer:
        """PATCH pods/NAME/status with a merge patch; checks N1 to N4 and N6 on the way."""
        fence = patch["metadata"]
        require(fence.get("uid") and fence.get("resourceVersion"), "N1", "a write without its fence")
        old = self.pods.get(write.ref.name)
        if old is None:
            return Answer(Fate.GONE)
        if old["metadata"]["resourceVersion"] != fence["resourceVersion"]:
            return Answer(Fate.CONFLICT)
        if old["metadata"]["uid"] != fence["uid"]:
            return Answer(Fate.GONE)
        uid, value = old["metadata"]["uid"], old["status"].get("nominatedNodeName")
        require(not old["spec"].get("nodeName"), "N4", "a write to a bound Pod")
        require(uid not in self.over, "N4", "a write to a Pod that is deleting or finished")
        self._check_patch(patch, old)
        decision = write.decision.decision_id
        if write.node is not None:
            require(value is None, "N3", f"{value} was replaced")
            self.sets[decision] += 1
            require(self.sets[decision] == 1, "N6", "a second set of one decision")
        else:
            require(self.owner.get(uid) == decision, "N3", f"cleared a value of {self.owner.get(uid)}")
            self.clears[decision] += 1
            require(self.clears[decision] == 1, "N6", "a second clear of one decision")
        new = copy.deepcopy(old)
        new["metadata"]["annotations"] = merge(old["metadata"].get("annotations") or {}, fence["annotations"])
        self.nominate(new, write.node, self.prefix, decision if write.node else None, now)
        return Answer(Fate.APPLIED, copy.deepcopy(self.put("Pod", new)))

    def _check_patch(self, patch: Json, old: Json) -> None:
        require(set(patch) == {"metadata", "status"}, "N2", set(patch))
        require(set(patch["status"]) == {"nominatedNodeName"}, "N2", set(patch["status"]))
        require(set(patch["metadata"]) == {"uid", "resourceVersion", "annotations"}, "N2", set(patch["metadata"]))
        keys = patch["metadata"]["annotations"]
        require(all(key.startswith(f"{self.prefix}/") for key in keys), "N2", set(keys))


class World:
    """The server, the machine, and what is on its way between them."""

    def __init__(self, random: Random, policy: NominationPolicy = POLICY, *, recomputes: bool = False) -> None:
        self.random = random
        self.policy = policy
        self.recomputes = recomputes
        self.now, self.wall = START, EPOCH
        self.server = Server(policy.prefix)
        self.machine = self._fresh()
        self.looks: list[Look] = []
        self.asks: list[Ask] = []
        self.writes: list[Write] = []
        self.strays: list[tuple[Write, Json]] = []  # given up, but on the wire still
        self.done: list[tuple[int, Answer]] = []  # answered once: may be told again
        self.closed: set[str] = set()  # decisions that may not be written to any more (N5)
        self.adopted: set[str] = set()  # likewise, until a restart, which does not know that the adoption has ended
        self.settled: Counter[str] = Counter()
        self.outcomes: Counter[S] = Counter()
        self.decisions = 0
        self.looked_at: deque[float] = deque()
        self.calm = False

    def _fresh(self) -> Nominations:
        return Nominations(self.policy, recomputes=self.recomputes)

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take what the machine has to say, and check what can be seen of the laws."""
        machine = self.machine
        for action in machine.actions:
            if isinstance(action, Look):
                self.looks.append(action)
                self._check_rate()
            elif isinstance(action, Write):
                self._check_write(action)
                self.writes.append(action)
            elif isinstance(action, Ask):
                self.asks.append(action)
        machine.actions.clear()
        for life in machine.settled:
            self._check_outcome(life)
        machine.settled.clear()
        machine.notes.clear()
        machine.tick(self.now)
        check_invariants(machine, self.now)
        for life in machine.lives.values():
            if life.phase is S.NOMINATED:  # N14
                require(ground_lost(life, machine.room.nodes.get(life.node)) is None, "N14", life)
                require(machine.room.overfull(life.node) is None, "N14", f"no room for {life}")
        if machine.actions or machine.settled:
            self.step()

    def _check_rate(self) -> None:
        """N13: each write follows a look, and looks are bounded."""
        self.looked_at.append(self.now)
        while self.looked_at[0] < self.now - 10:
            self.looked_at.popleft()
        bound = self.policy.burst + 10 * self.policy.writes_per_second
        require(len(self.looked_at) <= bound + 1, "N13", f"{len(self.looked_at)} looks in 10 s")

    def _check_write(self, write: Write) -> None:
        life = self.machine.lives[write.decision.decision_id]
        require(write.decision.decision_id not in self.closed | self.adopted, "N5", write)
        require(life.phase is not S.ADOPTED, "N5", "a write while adopted")
        if write.node is None:
            return
        require(self.machine.off is None, "N10", "a set while it is switched off")
        room = self.machine.room
        taken: Counter[str] = Counter()
        for seen in room.pods.values():  # N11, by brute force over what was told
            if seen.node == write.node and not seen.finished:
                taken.update(seen.requests)
        for other in self.machine.lives.values():
            held = room.pods.get(("ns", other.decision.ref.name))
            there = held is not None and held.uid == other.uid and held.node
            if other.node == write.node and other.phase in (S.WRITING, S.NOMINATED) and not there:
                taken.update(other.requests)
        free = room.nodes[write.node].allocatable
        over = {name for name in life.requests if taken[name] > free.get(name, 0)}
        require(not over, "N11", f"{over} on {write.node}")

    def _check_outcome(self, life: Any) -> None:
        outcome = life.outcome
        key = outcome.decision.decision_id
        self.settled[key] += 1
        self.outcomes[outcome.state] += 1
        uid, server = life.uid, self.server
        if outcome.state in (S.OVERWRITTEN, S.FOREIGN):
            self.closed.add(key)
        if outcome.state is S.ADOPTION_ENDED:
            self.adopted.add(key)
        if outcome.state in (S.HIT, S.FALLBACK):
            require((server.bound.get(uid) == life.node) == (outcome.state is S.HIT), "N7", f"{outcome}")
            require(uid in server.bound, "N7", f"{outcome}")
        if outcome.state is S.GONE:
            require(uid in server.over, "N7", f"{outcome}")
        if outcome.state in (S.EXPIRED, S.STALE, S.WITHDRAWN, S.ROLLED_BACK, S.CLEARED, S.REJECTED, S.ABANDONED):
            require(life.doubt or server.owner.get(uid) != key, "N7", f"{outcome}, but it stands")

    # -- the network --------------------------------------------------------------------------------------------------

    def body(self, write: Write) -> Json:
        """The patch as the shell makes it."""
        notes: dict[str, Any] = {f"{self.policy.prefix}/{k}": v for k, v in (write.annotations or {}).items()}
        if write.node is not None:
            for key, at in (("nominated-at", self.wall), ("expires-at", self.wall + write.ttl)):
                notes[f"{self.policy.prefix}/{key}"] = datetime.fromtimestamp(at, UTC).isoformat()
        fence = {"uid": write.ref.uid, "resourceVersion": write.version}
        return {"metadata": {**fence, "annotations": notes}, "status": {"nominatedNodeName": write.node}}

    def answer_look(self, index: int, *, fails: bool = False) -> None:
        look = self.looks.pop(index)
        if fails:
            self.machine.looked_in_vain(look.number, "no answer", self.now)
            return
        found = copy.deepcopy(self.server.pods.get(look.decision.ref.name))
        if found is not None and found["metadata"]["uid"] != look.decision.ref.uid:
            found = None
        place = copy.deepcopy(self.server.nodes.get(look.decision.node))
        objection = "not now" if not self.calm and look.before_set and self.random.random() < 0.05 else None
        self.machine.looked(look.number, found, place, self.now, objection=objection)
        if not self.calm and self.random.random() < 0.1:
            self.machine.looked(look.number, found, place, self.now, objection=objection)

    def answer_write(self, index: int, how: str) -> None:
        write = self.writes.pop(index)
        body = self.body(write)
        if how == "served":
            answer = self.server.apply(write, body, self.now)
            held = self.server.pods.get(write.ref.name)
            if answer.fate is Fate.CONFLICT and held is not None and held["spec"].get("nodeName"):
                answer = Answer(self.random.choice([Fate.CONFLICT, Fate.BOUND]))
        elif how == "answer lost":
            self.server.apply(write, body, self.now)
            answer = Answer(Fate.UNKNOWN)
        elif how == "late":
            self.strays.append((write, body))
            answer = Answer(Fate.UNKNOWN)
        elif how == "lost":
            answer = Answer(Fate.UNKNOWN)
        else:
            answer = Answer(Fate(how), reason=how)
        self.machine.answered(write.number, answer, self.now)
        self.done.append((write.number, answer))

    def land(self, index: int) -> None:
        """A request that was given up arrives after all."""
        write, body = self.strays.pop(index)
        self.server.apply(write, body, self.now)

    def answer_ask(self, index: int) -> None:
        ask = self.asks.pop(index)
        where = self.random.choice([None, *self.server.nodes])
        decision = None if where is None or ask.pod is None else self.decision(ask.pod, where)
        self.machine.recomputed(ask.number, decision, self.now)

    # -- time and the watches -----------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Time passes, with every timer of the machine on its way."""
        until = self.now + seconds
        while (due := self.machine.wake_at()) < until and due > self.now:
            self.wall += due - self.now
            self.now = due
            self.step()
            if self.calm:
                self.serve()
        self.wall += until - self.now
        self.now = until
        self.step()

    def deliver(self, kind: str, count: int) -> None:
        queue = self.server.events[kind]
        for _ in range(min(count, len(queue))):
            event, obj = queue.popleft()
            if kind == "Pod" and event == "DELETED":
                self.machine.forget_pod(obj, self.now)
            elif kind == "Pod":
                self.machine.observe_pod(obj, self.now, self.wall)
            elif event == "DELETED":
                self.machine.forget_node(obj["metadata"]["name"], self.now)
            else:
                self.machine.observe_node(obj, self.now)
            self.step()

    def relist(self) -> None:
        """A watch was lost (410): the state as it is now, whatever was missed."""
        for queue in self.server.events.values():
            queue.clear()
        room = self.machine.room
        for name in [n for n in room.nodes if n not in self.server.nodes]:
            self.machine.forget_node(name, self.now)
        for obj in self.server.nodes.values():
            self.machine.observe_node(copy.deepcopy(obj), self.now)
        for seen in list(room.pods.values()):
            now_there = self.server.pods.get(seen.key[1])
            if now_there is None or now_there["metadata"]["uid"] != seen.uid:
                self.machine.forget_pod(seen.obj, self.now)
        for obj in self.server.pods.values():
            listed = copy.deepcopy(obj)
            listed["metadata"].pop("managedFields", None)
            self.machine.observe_pod(listed, self.now, self.wall)
        self.step()

    def restart(self) -> None:
        """Killed and started again: what was asked is lost, and may land all the same."""
        for write in self.writes:
            if self.random.random() < 0.5:
                self.strays.append((write, self.body(write)))
        self.looks, self.writes, self.asks, self.done = [], [], [], []
        self.machine = self._fresh()
        self.adopted.clear()
        self.looked_at.clear()
        self.relist()
        self.machine.unkept(self.now, self.wall)
        self.step()

    def serve(self) -> None:
        """Everything is answered, at once and well."""
        for kind in ("Node", "Pod"):
            self.deliver(kind, 1_000)
        while self.looks or self.writes or self.asks:
            while self.looks:
                self.answer_look(0)
                self.step()
            while self.writes:
                self.answer_write(0, "served")
                self.step()
            while self.asks:
                self.answer_ask(0)
                self.step()
            for kind in ("Node", "Pod"):
                self.deliver(kind, 1_000)

    def settle(self, seconds: float) -> None:
        """The world is calm for so long: what is late lands, then nothing fails any more."""
        self.calm = True
        while self.strays:
            self.land(0)
        self.serve()
        left = seconds
        while left > 0:
            self.advance(min(10.0, left))
            left -= 10.0
            self.machine.unkept(self.now, self.wall)
            self.step()
            self.serve()
        self.calm = False

    # -- deciding -----------------------------------------------------------------------------------------------------

    def decision(self, obj: Json, where: str, ttl: float | None = None) -> Decision:
        self.decisions += 1
        given: Any = copy.deepcopy(obj)
        if self.random.random() < 0.2:
            meta = obj["metadata"]
            given = ObjectRef("v1", "Pod", meta["namespace"], meta["name"], meta["uid"])
        return Decision(
            pod=given,
            node=where,
            algorithm_version="v1",
            reason="test",
            ttl=ttl if ttl is not None else self.random.choice([2.0, 10.0, 30.0]),
            decision_id=f"d{self.decisions}",
            order_version=self.random.choice([None, None, "o1", "o2"]),
        )

    def own_values(self) -> dict[str, str]:
        """By Pod, the decision whose hint it carries now."""
        found = {}
        for name, obj in self.server.pods.items():
            uid = obj["metadata"]["uid"]
            if (
                self.server.owner.get(uid) is not None
                and not obj["spec"].get("nodeName")
                and uid not in self.server.over
            ):
                found[name] = str(self.server.owner[uid])
        return found


def populate(world: World) -> None:
    for index in range(3):
        world.server.add("Node", node(f"n{index}", cpu=world.random.choice(["2", "4"])))
    for index in range(4):
        world.server.add("Pod", pod(f"p{index}", priority=world.random.choice([0, 10])))
    world.server.add("Pod", pod("v0", on="n0"))
    world.server.add("Pod", pod("v1", on="n1", priority=-5))
    world.serve()


# -- what may happen --------------------------------------------------------------------------------------------------


def unbound(world: World) -> list[str]:
    server = world.server
    return [
        name
        for name, obj in server.pods.items()
        if not obj["spec"].get("nodeName") and obj["metadata"]["uid"] not in server.over
    ]


def plan(world: World) -> None:
    server, machine = world.server, world.machine
    if machine.off is not None and world.random.random() < 0.5:
        machine.resume()
    free = [name for name in unbound(world) if not server.pods[name]["status"].get("nominatedNodeName")]
    names = free if free and world.random.random() < 0.9 else list(server.pods)
    where = world.random.choice(["n0", "n1", "n2"] * 5 + ["nowhere"])
    machine.plan(world.decision(server.pods[world.random.choice(names)], where), world.now)


def withdraw(world: World) -> None:
    if world.machine.lives:
        world.machine.withdraw(world.random.choice(list(world.machine.lives)), world.now)


def confirm(world: World) -> None:
    machine, server = world.machine, world.server
    if not machine.lives:
        return
    key = world.random.choice(list(machine.lives))
    life = machine.lives[key]
    found = copy.deepcopy(server.pods.get(life.decision.ref.name))
    if found is not None and found["metadata"]["uid"] != life.uid:
        found = None
    place = copy.deepcopy(server.nodes.get(life.node))
    why = machine.confirmed(key, found, place, world.now, agreed=world.random.random() < 0.9)
    if why is None:
        require(server.owner.get(life.uid) == key, "confirm", "it was confirmed, and does not stand")
        good = place is not None and not place["spec"].get("unschedulable")
        require(good or life.phase is S.ADOPTED, "confirm", "confirmed on a node that is of no use")


def schedule(world: World) -> None:
    """The scheduler overwrites, clears, nominates or binds."""
    server, random = world.server, world.random
    names = unbound(world)
    if not names:
        return
    obj = copy.deepcopy(server.pods[random.choice(names)])
    what = random.choice(["other", "anew", "rival", "clear", "bind", "bind there", "condition"])
    value = obj["status"].get("nominatedNodeName")
    if what == "other":
        server.nominate(obj, random.choice(["n0", "n1", "n2"]), "kube-scheduler", None, world.now)
    elif what == "anew" and value:  # the same node, but theirs: what we wrote was cleared in between
        server.nominate(obj, None, "kube-scheduler", None, world.now)
        if random.random() < 0.5:
            obj = server.put("Pod", obj)
        server.nominate(obj, value, "kube-scheduler", None, world.now)
    elif what == "rival":  # another nominator, which knows no rules
        server.nominate(obj, None, "rival", None, world.now)
        server.nominate(obj, value or "n0", "rival", None, world.now)
        meta = obj["metadata"]
        meta["annotations"] = {**meta.get("annotations", {}), f"{server.prefix}/decision-id": "rival"}
    elif what == "clear":
        server.nominate(obj, None, "kube-scheduler", None, world.now)
    elif what == "condition":
        obj["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": str(server.version)}]
    else:
        where = value if what == "bind there" and value else random.choice(["n0", "n1", "n2"])
        obj["spec"]["nodeName"] = where
        server.bound[obj["metadata"]["uid"]] = where
        if random.random() < 0.5:  # from 1.35 on
            server.nominate(obj, None, "kube-apiserver", None, world.now)
        else:
            server._own(obj["metadata"]["uid"], None, world.now)
    server.put("Pod", obj)


def preempt(world: World) -> None:
    """A victim begins to terminate; sometimes it was somebody else who deleted it."""
    server, random = world.server, world.random
    running = [
        n for n, o in server.pods.items() if o["spec"].get("nodeName") and o["metadata"]["uid"] not in server.over
    ]
    if not running:
        return
    obj = copy.deepcopy(server.pods[random.choice(running)])
    server.over.add(obj["metadata"]["uid"])
    obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=random.choice([1, 30]))
    if random.random() < 0.7:
        obj["status"]["conditions"] = [VICTIM]
    server.put("Pod", obj)


def end_pod(world: World) -> None:
    """A Pod is gone, finishes, or is made again under its name."""
    server, random = world.server, world.random
    name = random.choice(list(server.pods))
    obj = server.pods[name]
    what = random.choice(["gone", "gone", "finished", "deleting"])
    if what == "finished" and obj["spec"].get("nodeName"):
        server.over.add(obj["metadata"]["uid"])
        server.put("Pod", {**obj, "status": {**obj["status"], "phase": "Succeeded"}})
    elif what == "deleting" and not obj["spec"].get("nodeName"):
        server.over.add(obj["metadata"]["uid"])
        meta = {**obj["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        server.put("Pod", {**obj, "metadata": meta})
    else:
        server.remove("Pod", name, world.now)
        if name.startswith("p"):
            server.add("Pod", pod(name, priority=random.choice([0, 10])))


def arrive(world: World) -> None:
    server = world.server
    if len(server.pods) < 12:
        on = world.random.choice(["n0", "n1", "n2", None])
        name = f"{'v' if on else 'p'}{server.uids}"
        server.add("Pod", pod(name, on=on, priority=world.random.choice([-5, 0, 20])))


def change_pod(world: World) -> None:
    server = world.server
    names = unbound(world)
    if names:
        obj = copy.deepcopy(server.pods[world.random.choice(names)])
        key, value = world.random.choice([("nodeSelector", {"a": str(server.version)}), ("priority", 7), ("x", 1)])
        obj["spec"][key] = value
        server.put("Pod", obj)


def change_node(world: World) -> None:
    server, random = world.server, world.random
    name = random.choice(["n0", "n1", "n2"])
    old = server.nodes.get(name)
    if old is None:
        server.add("Node", node(name, cpu="4"))
        return
    what = random.choice(["gone", "cordon", "unready", "smaller", "label", "heartbeat", "well"])
    if what == "gone":
        server.remove("Node", name, world.now)
        return
    new = node(
        name,
        cpu="1" if what == "smaller" else "4",
        cordoned=what == "cordon",
        ready=what != "unready",
        **({"x": str(server.version)} if what == "label" else {}),
    )
    if what == "heartbeat":
        new = copy.deepcopy(old)
        new["metadata"].setdefault("annotations", {})["beat"] = str(server.version)
    new["metadata"]["uid"] = old["metadata"]["uid"]
    server.put("Node", new)


FATES = ("served",) * 8 + ("answer lost", "late", "lost", "refused", "forbidden", "not_sent", "conflict")


def network(world: World) -> None:
    """Something on the wire is answered, out of order, well or badly."""
    random = world.random
    if world.looks and random.random() < 0.6:
        world.answer_look(random.randrange(len(world.looks)), fails=random.random() < 0.1)
    elif world.writes:
        index = random.randrange(len(world.writes))
        how = random.choice(FATES)
        if how == "conflict":  # a proxy's: nothing was applied
            how = "conflict" if world.writes[index].node is not None else "served"
        world.answer_write(index, how)
    elif world.asks:
        world.answer_ask(random.randrange(len(world.asks)))
    elif world.strays:
        world.land(random.randrange(len(world.strays)))
    elif world.done:
        world.machine.answered(*random.choice(world.done), world.now)


def watch(world: World) -> None:
    world.deliver(world.random.choice(["Pod", "Pod", "Node"]), world.random.choice([1, 3, 20]))


def pause(world: World) -> None:
    world.advance(world.random.choice([0.0, 0.1, 1.0, 5.0, 20.0]))


def rare(world: World) -> None:
    """Restarts, lost watches, clock steps, switches."""
    what = world.random.choice(["restart", "relist", "clock", "rollback", "resume", "reorder", "unkept"])
    if what == "restart":
        world.restart()
    elif what == "relist":
        world.relist()
    elif what == "clock":
        world.wall += world.random.choice([-1e6, -20.0, 20.0, 1e6])
    elif what == "rollback":
        world.machine.rollback("drill", world.now)
    elif what == "resume":
        world.machine.resume()
    elif what == "unkept":
        world.machine.unkept(world.now, world.wall)
    else:
        world.machine.reorder(world.random.choice(["o1", "o2"]), world.now)


OPERATIONS = (
    *(network,) * 24,
    *(watch,) * 16,
    *(plan,) * 6,
    *(schedule,) * 3,
    *(pause,) * 4,
    *(preempt, end_pod, arrive) * 2,
    *(withdraw, confirm, change_pod, change_node, rare),
)
