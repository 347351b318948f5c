"""The machine step by step: what random histories seldom come to, and what must be exact."""

import copy
import math
from random import Random

import pytest

from asyncdispatch.calls import ObjectRef
from asyncdispatch.nomination.actions import Answer, Fate
from asyncdispatch.nomination.decisions import Decision, NominationPolicy
from asyncdispatch.nomination.machine import Nominations
from asyncdispatch.nomination.states import LIVE, TERMINAL, TRANSITIONS, Life, NominationError
from asyncdispatch.nomination.states import NominationState as S
from tests.nomination.objects import VICTIM, node, pod
from tests.nomination.world import World

POLICY = NominationPolicy(writes_per_second=5.0, burst=2, max_ttl=60.0, hint_budget=100.0, adoption_slack=5.0)
DYING = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}


def small(policy: NominationPolicy = POLICY, pods: int = 1, *, recomputes: bool = False) -> World:
    """A node with room, and Pods that wait."""
    world = World(Random(1), policy, recomputes=recomputes)
    world.calm = True
    world.server.add("Node", node("n0"))
    for index in range(pods):
        world.server.add("Pod", pod(f"p{index}", cpu="100m", priority=10))
    world.serve()
    return world


def phase(life: Life) -> S:
    return life.phase


def decide(world: World, name: str = "p0", ttl: float = 30.0) -> Life:
    world.decisions += 1
    found = world.server.pods[name]
    decision = Decision(
        pod=found, node="n0", algorithm_version="v", reason="r", ttl=ttl, decision_id=f"d{world.decisions}"
    )
    life = world.machine.plan(decision, world.now)
    world.step()
    return life


def stands(world: World, name: str = "p0", ttl: float = 30.0) -> Life:
    life = decide(world, name, ttl)
    world.serve()
    assert phase(life) is S.NOMINATED
    return life


def victim(world: World, name: str, *, preempted: bool = True, priority: int = 0, grace: float = 30) -> None:
    world.server.add("Pod", pod(name, cpu="100m", on="n0", priority=priority))
    world.serve()
    obj = world.server.pods[name]
    world.server.over.add(obj["metadata"]["uid"])
    status = {**obj["status"], "conditions": [VICTIM] if preempted else []}
    meta = {**obj["metadata"], **DYING, "deletionGracePeriodSeconds": grace}
    world.server.put("Pod", {**obj, "metadata": meta, "status": status})
    world.serve()


def test_the_table_is_complete() -> None:
    """Every state has a row; outcomes are ends (N9); every other state has a way to an end."""
    assert set(TRANSITIONS) == set(S) == {*LIVE, *TERMINAL}
    for state, following in TRANSITIONS.items():
        assert (following == ()) == (state in TERMINAL)
        assert state in TERMINAL or any(after in TERMINAL for after in following)
    into = {state for state, following in TRANSITIONS.items() if S.WRITING in following}
    assert into == {S.PLANNED}


def test_no_other_transition_is_possible() -> None:
    life = decide(small())
    for state in S:
        if state not in TRANSITIONS[S.PLANNED]:
            with pytest.raises(NominationError, match="can't go"):
                life.move(state)
    assert phase(life) is S.PLANNED


def test_writes_are_bounded() -> None:
    """N13: no more looks, each of which leads to one write at most, than the bucket has tokens."""
    world = small(pods=8)
    for index in range(8):
        decide(world, f"p{index}")
    assert len(world.looks) == POLICY.burst
    begun = world.now
    while world.looks or world.writes or math.isfinite(world.machine.wake_at()):
        while world.looks:
            world.answer_look(0)
            world.step()
        while world.writes:
            world.answer_write(0, "served")
            world.step()
        if all(life.phase is S.NOMINATED for life in world.machine.lives.values()):
            break
        world.advance(world.machine.wake_at() - world.now)
    assert world.now - begun == pytest.approx(6 / POLICY.writes_per_second)


def test_what_is_taken_back_goes_first() -> None:
    """A new hint never holds up the end of an old one."""
    world = small(pods=4)
    old = stands(world, "p0")
    for index in (1, 2, 3):
        decide(world, f"p{index}")
    world.machine.withdraw(old.decision_id, world.now)
    world.calm = False
    world.looks.clear()
    world.advance(0.21)
    assert [look.decision.decision_id for look in world.looks] == [old.decision_id]


def test_writes_to_one_pod_are_bounded() -> None:
    """N13 for each Pod, over all its decisions."""
    world = small(NominationPolicy(writes_per_pod=2))
    for _ in range(2):
        life = stands(world)
        world.machine.withdraw(life.decision_id, world.now)
        world.step()
        world.serve()
        assert phase(life) is S.WITHDRAWN
    life = decide(world)
    world.serve()
    assert life.outcome is not None
    assert (life.outcome.state, life.outcome.reason) == (S.REJECTED, "2 writes to this Pod: no more")


def test_a_late_landing_is_taken_back() -> None:
    """N7, N8: given up, ended, and then the write lands: it is found and taken back."""
    world = small()
    life = decide(world)
    world.answer_look(0)
    world.step()
    world.answer_write(0, "late")
    world.step()
    world.machine.withdraw(life.decision_id, world.now)
    world.serve()
    assert phase(life) is S.WITHDRAWN
    assert life.doubt
    world.land(0)
    assert world.own_values() == {"p0": "d1"}
    world.serve()
    world.advance(1)
    assert world.own_values() == {}
    assert world.machine.counts == {S.WITHDRAWN: 2}
    assert (world.machine.accepted, world.machine.rebuilt) == (1, 1)


def test_what_the_watch_told_before_the_answer_came_counts() -> None:
    """N5: written, overwritten, seen, and only then answered: it is over at once, and not written to again."""
    world = small()
    world.server.add("Node", node("n1"))
    life = decide(world)
    world.answer_look(0)
    world.step()
    write = world.writes.pop()
    answer = world.server.apply(write, world.body(write), world.now)
    obj = copy.deepcopy(world.server.pods["p0"])
    world.server.nominate(obj, "n1", "kube-scheduler", None, world.now)
    world.server.put("Pod", obj)
    world.deliver("Pod", 100)
    assert phase(life) is S.WRITING
    world.machine.answered(write.number, answer, world.now)
    assert phase(life) is S.OVERWRITTEN
    world.step()


def test_an_old_view_brings_nothing_back() -> None:
    """What is over stays over, whatever a watch that lags tells."""
    world = small()
    life = stands(world)
    before = world.server.pods["p0"]
    world.machine.withdraw(life.decision_id, world.now)
    world.step()
    world.serve()
    world.machine.room.pods.clear()
    world.machine.room._nominated.clear()
    world.machine.observe_pod(before, world.now, world.wall)
    assert world.machine.lives == {}


def test_what_changes_on_a_node_sets_no_timers() -> None:
    """However much happens around a hint, it has one time to wake up for."""
    world = small(pods=2)
    stands(world)
    for _ in range(3):
        victim(world, "other", preempted=False)
        world.server.remove("Pod", "other", world.now)
        world.serve()
    assert world.server.pods.keys() == {"p0", "p1"}
    assert len(world.machine._timers) <= 1


def test_adopted_and_back() -> None:
    """N5, N15: victims for our Pod stop the TTL and our hands; when they have gone it goes on where it stood."""
    world = small()
    life = stands(world)
    world.advance(20)
    victim(world, "v")
    assert phase(life) is S.ADOPTED
    world.advance(34)
    world.serve()
    assert phase(life) is S.ADOPTED
    world.server.remove("Pod", "v", world.now)
    world.serve()
    assert phase(life) is S.NOMINATED
    world.advance(9.9)
    assert phase(life) is S.NOMINATED
    world.advance(0.2)
    world.serve()
    assert phase(life) is S.EXPIRED
    assert life.outcome is not None
    assert life.outcome.hinted_seconds == pytest.approx(30, abs=0.2)


def test_an_adoption_ends_by_itself() -> None:
    """N15: the grace period and a little; then an outcome of its own, and no write."""
    world = small()
    life = stands(world)
    victim(world, "v", grace=30)
    world.machine.withdraw(life.decision_id, world.now)
    world.step()
    assert phase(life) is S.ADOPTED
    world.advance(35.1)
    assert phase(life) is S.ADOPTION_ENDED
    world.advance(600)
    assert world.own_values() == {"p0": "d1"}
    assert world.writes == []


def test_withdrawn_while_adopted() -> None:
    """The wish is kept until the scheduler is done."""
    world = small()
    life = stands(world)
    victim(world, "v")
    world.machine.withdraw(life.decision_id, world.now)
    world.step()
    world.server.remove("Pod", "v", world.now)
    world.serve()
    assert phase(life) is S.WITHDRAWN
    assert world.own_values() == {}


@pytest.mark.parametrize(
    ("preempted", "priority", "rival", "adopted"),
    [(True, 0, False, True), (False, 0, False, False), (True, 10, False, False), (True, 0, True, False)],
)
def test_evidence(preempted: bool, priority: int, rival: bool, adopted: bool) -> None:
    """A victim of the scheduler, of lower priority, that no other nomination to the node explains."""
    world = small()
    if rival:
        obj = world.server.add("Pod", pod("r", cpu="100m", priority=20))
        world.server.nominate(obj, "n0", "kube-scheduler", None, world.now)
        world.server.put("Pod", obj)
    life = stands(world)
    victim(world, "v", preempted=preempted, priority=priority)
    assert (life.phase is S.ADOPTED) == adopted


def test_terminating_victims_bar_a_new_hint() -> None:
    """A hint there would suppress preemption elsewhere."""
    world = small()
    victim(world, "v", priority=-1)
    life = decide(world)
    world.serve()
    assert life.outcome is not None
    assert "a victim of a preemption is terminating on n0: ns/v" in life.outcome.reason
    other = small()
    victim(other, "v", preempted=False)  # somebody else's deletion takes room, and there is enough
    assert stands(other).phase is S.NOMINATED


def test_no_room_beside_a_foreign_nomination() -> None:
    """It holds room for the scheduler as well: two hints on one place would block each other."""
    world = small()
    obj = world.server.add("Pod", pod("big", cpu="4"))
    world.server.nominate(obj, "n0", "kube-scheduler", None, world.now)
    world.server.put("Pod", obj)
    world.serve()
    life = decide(world)
    world.serve()
    assert life.outcome is not None
    assert life.outcome.reason == "n0 has not enough cpu free"


def test_a_ref_and_its_version() -> None:
    """Of a ref, any change of the Pod since then is one of the grounds."""
    for version, state in ((None, S.NOMINATED), ("2", S.ABANDONED)):
        world = small()
        ref = ObjectRef("v1", "Pod", "ns", "p0", world.server.pods["p0"]["metadata"]["uid"])
        world.server.put("Pod", world.server.pods["p0"])
        world.serve()
        decision = Decision(pod=ref, node="n0", algorithm_version="v", reason="r", ttl=9, observed_version=version)
        life = world.machine.plan(decision, world.now)
        world.step()
        world.serve()
        assert phase(life) is state


def test_forbidden_opens_the_breaker() -> None:
    """One decision finds out, for all that follow."""
    world = small(pods=2)
    life = decide(world)
    world.answer_look(0)
    world.step()
    world.answer_write(0, "forbidden")
    assert [note.alert for note in world.machine.notes] == [True]
    world.step()
    assert phase(life) is S.REJECTED
    assert decide(world, "p1").phase is S.REJECTED
    world.advance(POLICY.forbidden_hold)
    assert decide(world, "p1").phase is S.PLANNED


def test_a_clear_that_is_refused_is_told_once_and_tried_for_ever() -> None:
    """N8 needs the API server; until then somebody should look."""
    world = small()
    life = stands(world)
    world.machine.withdraw(life.decision_id, world.now)
    told, tries = 0, 0
    for _ in range(400):
        world.machine.tick(world.now)
        told += sum(note.alert for note in world.machine.notes)
        world.step()
        while world.looks:
            world.answer_look(0)
        world.step()
        while world.writes:
            tries += 1
            number = world.writes.pop(0).number
            world.machine.answered(number, Answer(Fate.REFUSED, reason="no"), world.now)
        world.now += 1
    assert told == 1
    assert 10 < tries < 30
    world.serve()
    world.advance(31)
    world.serve()
    assert phase(life) is S.WITHDRAWN


def test_a_decision_is_planned_once() -> None:
    world = small()
    life = decide(world)
    with pytest.raises(NominationError, match="planned before"):
        world.machine.plan(life.decision, world.now)


def test_budget_after_a_restart() -> None:
    """N16: what a Pod's own annotation says counts."""
    world = small(NominationPolicy(max_ttl=60, hint_budget=100))
    life = stands(world, ttl=60)
    world.advance(60)
    world.serve()
    assert phase(life) is S.EXPIRED
    world.restart()
    life = stands(world, ttl=60)
    assert life.expires_at - world.now == pytest.approx(40, abs=1.1)
    world.advance(60)
    world.serve()
    assert decide(world, ttl=60).phase is S.PLANNED
    world.serve()
    assert world.outcomes == {S.EXPIRED: 2, S.REJECTED: 1}


def test_sharded() -> None:
    """A hint of a Pod that is another replica's is not taken up."""
    world = small()
    stands(world)
    other = Nominations(POLICY, owns=lambda obj: False)
    other.observe_node(world.server.nodes["n0"], world.now)
    other.observe_pod(world.server.pods["p0"], world.now, world.wall)
    other.unkept(world.now, world.wall)
    assert other.rebuilt == 0
