"""The nominator over HTTP, on the embedded API server, in virtual time."""

import asyncio
import functools
import re

import pytest

from asyncdispatch import Dispatcher
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.nomination import NominationHandle, NominationPolicy, NominationState, Nominator
from asyncdispatch.testing import answers
from tests.nomination.conftest import nominating
from tests.nomination.objects import VICTIM, node, pod
from tests.nomination.support import checked_wire, decide, nominated, notes, passes, patches

S = NominationState


def state_of(handle: NominationHandle) -> S:
    return handle.state


async def test_a_hint_is_written_and_honoured(server, nominator):
    """One patch: the field and who says so; an Event for people; a bind to the node is a hit."""
    decision = decide(server.create(pod("p")))
    handle = await nominator.nominate(decision)
    assert await handle.written()
    assert nominated(server) == "n1"
    said = notes(server)
    assert {key: said[key] for key in ("decision-id", "algorithm-version", "reason", "node")} == {
        "decision-id": decision.decision_id,
        "algorithm-version": "v3",
        "reason": "best fit",
        "node": "n1",
    }
    assert said["nominated-at"].endswith("Z")
    assert said["expires-at"] > said["nominated-at"]
    await passes(5)
    server.bind({"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}, "n1")
    outcome = await handle.outcome()
    assert (outcome.state, outcome.bound_to, outcome.written, outcome.raced) == (S.HIT, "n1", True, False)
    assert outcome.hinted_seconds == pytest.approx(5, abs=0.1)
    assert len(patches(server)) == 1
    await passes(1)
    events = server.objects.of("Event.events.k8s.io")
    assert {event["reason"] for event in events} == {"Nominated", "NominationEnded"}
    assert checked_wire(server) == 1


async def test_a_hint_expires(server, nominator):
    """After its TTL the field is empty again, and of our annotations only the budget's is left (N8, N12)."""
    before = server.create(pod("p"))
    handle = await nominator.nominate(decide(before, ttl=10))
    outcome = await handle.outcome()
    assert outcome.state is S.EXPIRED
    assert asyncio.get_running_loop().time() < 11
    assert nominated(server) is None
    assert set(notes(server)) == {"hinted-seconds"}
    after = server.get(before)
    for obj in (before, after):
        del obj["metadata"]["resourceVersion"]
        obj["metadata"].pop("annotations", None)
    assert after == before
    assert checked_wire(server) == 2


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("which", ["set", "clear"])
async def test_a_lost_answer_is_looked_for(server, cluster, which, applied):
    """The write landed or it did not: the Pod says. One set and one clear in all (N6, N7)."""
    loses = {"times": 1, "applied": applied, "method": "PATCH"}
    if which == "set":
        server.drop(**loses)
    async with nominating(cluster) as nominator:
        handle = await nominator.nominate(decide(server.create(pod("p"))))
        assert await handle.written()
        if which == "clear":
            server.drop(**loses)
        outcome = await nominator.withdraw(handle.decision_id)
        assert outcome.state is S.WITHDRAWN
        assert nominated(server) is None
        assert len([record for record in patches(server) if record.applied]) == 2
    checked_wire(server)


async def test_the_scheduler_writes_as_well(server, nominator):
    """Overwritten, cleared, bound elsewhere: it is told and never written to again (N5)."""
    handles = {}
    for name in ("over", "clear", "bound"):
        handles[name] = await nominator.nominate(decide(server.create(pod(name))))
        assert await handles[name].written()
    await passes(3)
    server.patch_object("Pod", {"status": {"nominatedNodeName": "n2"}}, "over", namespace="ns")
    server.patch_object("Pod", {"status": {"nominatedNodeName": None}}, "clear", namespace="ns")
    server.bind({"kind": "Pod", "metadata": {"name": "bound", "namespace": "ns"}}, "n2")
    found = {name: (await handle.outcome()).state for name, handle in handles.items()}
    assert found == {"over": S.OVERWRITTEN, "clear": S.CLEARED, "bound": S.FALLBACK}
    await passes(400)
    assert nominated(server, "over") == "n2"
    assert checked_wire(server) == 3


async def test_a_foreign_value_stays(server, nominator):
    """Only empty becomes ours (N3)."""
    server.create(pod("p"))
    theirs = server.patch_object("Pod", {"status": {"nominatedNodeName": "n2"}}, "p", namespace="ns")
    outcome = await (await nominator.nominate(decide(theirs))).outcome()
    assert outcome.state is S.REJECTED
    assert "nominated to n2" in outcome.reason
    assert checked_wire(server) == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s.delete("Node", "n1"), "there is no node n1"),
        (lambda s: s.put(node("n1", ready=False)), "is not ready"),
        (lambda s: s.put(node("n1", cordoned=True)), "is cordoned"),
        (lambda s: s.put(node("n1", cpu="500m")), "not enough cpu"),
        (lambda s: s.put(pod("big", cpu="4", on="n1")), "not enough cpu"),
        (lambda s: s.bind({"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}, "n2"), "bound to n2"),
        (lambda s: s.patch_object("Pod", {"spec": {"schedulerName": "x"}}, "p", namespace="ns"), "has changed"),
    ],
)
async def test_guards(server, cluster, change, why):
    """What speaks against a hint is seen before it is written; nothing is."""
    decision = decide(server.create(pod("p")))
    async with nominating(cluster) as nominator:
        change(server)
        outcome = await (await nominator.nominate(decision)).outcome()
        assert outcome.state in (S.REJECTED, S.ABANDONED)
        assert why in outcome.reason
    assert checked_wire(server) == 0


async def test_unknown_node_and_no_pod(server, nominator):
    """Neither is there: a clear outcome, nothing written."""
    found = server.create(pod("p"))
    outcome = await (await nominator.nominate(decide(found, "nowhere"))).outcome()
    assert (outcome.state, outcome.reason) == (S.REJECTED, "there is no node nowhere")
    server.delete("Pod", "p", namespace="ns", grace_period=0)
    outcome = await (await nominator.nominate(decide(found))).outcome()
    assert outcome.state is S.GONE
    assert checked_wire(server) == 0


async def test_two_hints_for_one_place(server, nominator):
    """Own decisions count from the start: the second is refused, and goes when the first has gone (N11)."""
    first = await nominator.nominate(decide(server.create(pod("a", cpu="3"))))
    second = await nominator.nominate(decide(server.create(pod("b", cpu="3"))))
    assert await first.written()
    assert (await second.outcome()).state is S.REJECTED
    await nominator.withdraw(first.decision_id)
    third = await nominator.nominate(decide(server.get("Pod", "b", namespace="ns")))
    assert await third.written()


async def test_conflict_asks_for_a_fresh_decision(server, cluster):
    """Others wrote in between: the guards run again, and the owner is asked; its decision has an id of its own."""
    asked = []

    def recompute(found):
        asked.append(found["metadata"]["resourceVersion"])
        return decide(found, "n2")

    def rival(record):
        server.patch_object("Pod", {"metadata": {"labels": {"x": "1"}}}, "p", namespace="ns")

    first = decide(server.create(pod("p")))
    server.hook(rival, times=1, method="PATCH")
    async with nominating(cluster, recompute=recompute) as nominator:
        handle = await nominator.nominate(first)
        assert await handle.written()
        assert nominated(server) == "n2"
        assert len(asked) == 1
        assert handle.decision_id != first.decision_id
        assert not await nominator.confirm(first.decision_id)
        assert await nominator.confirm(handle.decision_id)
    checked_wire(server)


async def test_conflicts_without_end_are_abandoned(server, nominator):
    """So often, and no more (N13)."""
    found = server.create(pod("p"))
    numbers = iter(range(100))

    def rival(record):
        server.patch_object("Pod", {"metadata": {"labels": {"x": str(next(numbers))}}}, "p", namespace="ns")

    server.hook(rival, method="PATCH")
    outcome = await (await nominator.nominate(decide(found))).outcome()
    assert outcome.state is S.ABANDONED
    assert len(patches(server)) <= 5
    assert nominated(server) is None


@pytest.mark.parametrize(("where", "ends"), [("n1", S.HIT), ("n2", S.FALLBACK)])
async def test_bound_while_it_was_written(server, nominator, where, ends):
    """By the scheduler, between our read and our write: the fence refuses that. Read again, and say what it is."""
    found = server.create(pod("p"))

    def rival(record):
        server.bind(found, where)

    server.hook(rival, times=1, method="PATCH")
    outcome = await (await nominator.nominate(decide(found))).outcome()
    assert (outcome.state, outcome.bound_to, outcome.raced, outcome.written) == (ends, where, True, False)
    assert nominated(server) is None
    assert len(patches(server)) == 1


async def test_bound_before_it_was_tried(server, nominator):
    """No write of ours was under way: rejected, and not raced."""
    found = server.create(pod("p"))

    def rival(record):
        server.bind(found, "n1")

    server.hook(rival, times=1, method="GET", path="*/pods/p")
    outcome = await (await nominator.nominate(decide(found))).outcome()
    assert (outcome.state, outcome.raced) == (S.REJECTED, False)
    assert patches(server) == []


async def test_denied_and_forbidden(server, nominator):
    """A policy's denial ends one decision; no right at all ends those that follow, too, for a while."""
    server.fail(answers.policy_denied("p", resource="pods", name="p"), times=1, method="PATCH")
    outcome = await (await nominator.nominate(decide(server.create(pod("p"))))).outcome()
    assert outcome.state is S.REJECTED
    assert "denied request" in outcome.reason
    fault = server.fail(status=403, times=None, method="PATCH")
    states = []
    for name in ("q", "r"):
        states.append((await (await nominator.nominate(decide(server.create(pod(name))))).outcome()).reason)
    assert "403" in states[0]
    assert "does not let us" in states[1]
    assert len(patches(server)) == 2
    fault.remove()
    await passes(61)
    assert await (await nominator.nominate(decide(server.get("Pod", "q", namespace="ns")))).written()


async def test_overloaded_server(server, nominator):
    """429 is waited out, by the dispatcher."""
    server.fail(answers.throttled(), times=3, method="PATCH")
    handle = await nominator.nominate(decide(server.create(pod("p"))))
    assert await handle.written()
    assert asyncio.get_running_loop().time() >= 1


@pytest.mark.parametrize(
    ("change", "stale"),
    [
        ({"spec": {"nodeSelector": {"disk": "ssd"}}}, True),
        ({"spec": {"schedulingGates": None}}, False),
        ({"metadata": {"labels": {"x": "1"}}}, False),
    ],
)
async def test_the_pod_changes(server, nominator, change, stale):
    """What decides where it may go makes the decision stale; lifting the gate is what it waited for (N14)."""
    handle = await nominator.nominate(decide(server.create(pod("p", gates=("g",)))))
    assert await handle.written()
    server.patch_object("Pod", change, "p", namespace="ns")
    await passes(1)
    assert (handle.state is S.STALE) == stale
    assert (nominated(server) is None) == stale


async def test_the_node_changes(server, nominator):
    """Labels, taints, allocatable, room: released within one observed change (N14). A heartbeat is none."""
    handles = [await nominator.nominate(decide(server.create(pod(name)))) for name in ("a", "b")]
    assert all([await handle.written() for handle in handles])
    server.patch_object("Node", {"metadata": {"annotations": {"beat": "1"}}}, "n1")
    await passes(1)
    assert not any(handle.done() for handle in handles)
    server.put(pod("x", cpu="3", on="n1"))  # one of the two fits beside it
    await passes(1)
    assert [handle.state for handle in handles] == [S.NOMINATED, S.STALE]
    server.patch_object("Node", {"metadata": {"labels": {"zone": "b"}}}, "n1")
    assert (await handles[0].outcome()).state is S.STALE


async def test_the_order_changes(server, nominator):
    """A decision of another order of the caller's queue is stale."""
    old = await nominator.nominate(decide(server.create(pod("a")), order_version="1"))
    new = await nominator.nominate(decide(server.create(pod("b")), order_version="2"))
    assert await old.written()
    assert await new.written()
    nominator.reorder("2")
    assert (await old.outcome()).state is S.STALE
    assert new.state is S.NOMINATED


async def test_confirm_waits_for_the_write(server, nominator):
    """Asked right after `nominate`: it says what is true once the hint is written, or refused."""
    handle = await nominator.nominate(decide(server.create(pod("p", gates=("g",)))))
    assert await nominator.confirm(handle.decision_id)
    assert nominated(server) == "n1"
    refused = await nominator.nominate(decide(server.create(pod("q", cpu="9"))))
    assert await nominator.why_not(refused.decision_id) == "it has ended: rejected, n1 has not enough cpu free"


async def test_confirm_does_not_wait_for_ever(server, nominator):
    """The write hangs: after `call_timeout` it is not written yet. What is written later can be confirmed."""
    server.black_hole(times=1, method="PATCH")
    handle = await nominator.nominate(decide(server.create(pod("p"))))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await nominator.confirm(handle.decision_id)  # cancelled: it leaves the decision
    assert await nominator.why_not(handle.decision_id) == "it is not written yet"
    assert asyncio.get_running_loop().time() == pytest.approx(11, abs=0.5)
    assert await handle.written()
    assert await nominator.confirm(handle.decision_id)


@pytest.mark.parametrize("how", ["withdraw", "rollback"])
async def test_taking_back_without_the_api_server(server, nominator, how):
    """It returns after `drain_timeout` and says that the hint stands; and goes on trying."""
    handle = await nominator.nominate(decide(server.create(pod("p")), ttl=200))
    assert await handle.written()
    fault = server.fail(status=503, times=None)
    if how == "withdraw":
        outcome = await nominator.withdraw(handle.decision_id)
    else:
        [outcome] = await nominator.rollback("an alarm")
    assert asyncio.get_running_loop().time() == pytest.approx(60, abs=1)
    assert (outcome.state, outcome.written, handle.settled) == (S.RELEASING, True, None)
    assert outcome.hinted_seconds == pytest.approx(60, abs=1)
    fault.remove()
    assert (await handle.outcome()).state is (S.WITHDRAWN if how == "withdraw" else S.ROLLED_BACK)
    assert nominated(server) is None


@pytest.mark.parametrize("how", ["withdraw", "rollback"])
async def test_taking_back_what_is_adopted(server, nominator, how):
    """It stands until the scheduler is done with it, and is reported as that."""
    server.put(pod("low", cpu="1", on="n1", priority=-5))
    handle = await nominator.nominate(decide(server.put(pod("p", priority=10))))
    assert await handle.written()
    dying = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 300}}
    server.patch_object("Pod", {**dying, "status": {"conditions": [VICTIM]}}, "low", namespace="ns")
    await passes(1)
    if how == "withdraw":
        outcome = await nominator.withdraw(handle.decision_id)
    else:
        [outcome] = await nominator.rollback("an alarm")
    assert (outcome.state, nominated(server)) == (S.ADOPTED, "n1")
    server.finish("Pod", "low", namespace="ns")
    assert (await handle.outcome()).state is (S.WITHDRAWN if how == "withdraw" else S.ROLLED_BACK)
    assert nominated(server) is None


async def test_kill_switch(server, nominator):
    """No new hint at once, own ones go, others stay (N10); and on again."""
    names = [f"p{index}" for index in range(8)]
    handles = [await nominator.nominate(decide(server.create(pod(name, cpu="100m")))) for name in names]
    for handle in handles:
        assert await handle.written()
    server.create(pod("theirs"))
    server.patch_object("Pod", {"status": {"nominatedNodeName": "n2"}}, "theirs", namespace="ns")
    outcomes = await nominator.rollback("an alarm")
    assert [outcome.state for outcome in outcomes] == [S.ROLLED_BACK] * 8
    assert not any(nominated(server, name) for name in names)
    assert nominated(server, "theirs") == "n2"
    refused = await (await nominator.nominate(decide(server.get("Pod", "p0", namespace="ns")))).outcome()
    assert (refused.state, refused.reason) == (S.REJECTED, "nominations are switched off: an alarm")
    nominator.resume("it was a false one")
    assert await (await nominator.nominate(decide(server.get("Pod", "p0", namespace="ns")))).written()


async def test_adoption(server, nominator):
    """Victims of a preemption for our Pod: hands off, the TTL sleeps (N5); gone again, it goes on."""
    server.put(pod("low", cpu="1", on="n1", priority=-5))
    handle = await nominator.nominate(decide(server.put(pod("p", priority=10)), ttl=20))
    assert await handle.written()
    await passes(15)
    dying = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}}
    server.patch_object("Pod", {**dying, "status": {"conditions": [VICTIM]}}, "low", namespace="ns")
    await passes(25)
    assert state_of(handle) is S.ADOPTED
    assert nominated(server) == "n1"
    server.finish("Pod", "low", namespace="ns")
    await passes(1)
    assert state_of(handle) is S.NOMINATED
    assert (await handle.outcome()).state is S.EXPIRED
    assert asyncio.get_running_loop().time() == pytest.approx(15 + 25 + 5, abs=1)


async def test_restart(server, cluster):
    """State comes from the annotations: the same id, what is left of its TTL, and then it is taken back (N7, N8)."""
    loop = asyncio.get_running_loop()
    fault = None
    async with nominating(cluster, policy=NominationPolicy(drain_timeout=1.0)) as first:
        decision = decide(server.create(pod("p")), ttl=60)
        handle = await first.nominate(decision)
        assert await handle.written()
        fault = server.fail(status=503, times=None, method="PATCH")  # nothing can be taken back
    assert (await handle.outcome()).state is S.LEFT
    fault.remove()
    assert nominated(server) == "n1"
    await passes(30 - loop.time())
    async with nominating(cluster) as second:
        found = second.handle(decision.decision_id)
        assert found is not None
        assert (found.state, found.decision.reason) == (S.NOMINATED, "best fit")
        assert (await found.outcome()).state is S.EXPIRED
        assert 59 < loop.time() < 63
    assert nominated(server) is None


@pytest.mark.parametrize("step", [-1e7, 1e7])
async def test_clock_step_over_a_restart(server, cluster, step):
    """Whatever the wall clock says, it lives at most one more TTL."""
    loop = asyncio.get_running_loop()
    fault = server.fail(
        status=503,
        times=None,
        method="PATCH",
        when=lambda record: record.body["status"]["nominatedNodeName"] is None,
    )
    async with nominating(cluster, policy=NominationPolicy(drain_timeout=1.0)) as first:
        handle = await first.nominate(decide(server.create(pod("p")), ttl=60))
        assert await handle.written()
    fault.remove()
    begun = loop.time()
    async with nominating(cluster, wall=lambda: 1_800_000_000 + loop.time() + step) as second:
        [found] = second.live
        outcome = await asyncio.wait_for(found.outcome(), 100)
        assert outcome.state is S.EXPIRED
        assert loop.time() - begun <= 62


async def test_hint_budget(server, cluster):
    """Renewals do not silence an autoscaler: all the time hinted is bounded, over restarts too (N16)."""
    policy = NominationPolicy(max_ttl=30, hint_budget=50)
    server.create(pod("p"))
    states = []
    for _ in range(2):
        async with nominating(cluster, policy=policy) as nominator:
            for _ in range(2):
                handle = await nominator.nominate(decide(server.get("Pod", "p", namespace="ns"), ttl=20))
                outcome = await handle.outcome()
                states.append((outcome.state, round(outcome.hinted_seconds)))
    assert states[:2] == [(S.EXPIRED, 20), (S.EXPIRED, 20)]
    assert states[2][0] is S.EXPIRED
    assert states[2][1] <= 10
    assert states[3] == (S.REJECTED, 0)


async def test_precheck(server, cluster):
    """The caller's fast look has the last word; one that raises says no."""
    async with nominating(cluster, precheck=lambda found, place: place["metadata"]["name"] == "n2") as nominator:
        no = await nominator.nominate(decide(server.create(pod("a")), "n1"))
        yes = await nominator.nominate(decide(server.create(pod("b")), "n2"))
        assert (await no.outcome()).reason == "precheck says no"
        assert await yes.written()
    async with nominating(cluster, precheck=lambda found, place: found["no such field"]) as nominator:
        broken = await nominator.nominate(decide(server.create(pod("c"))))
        assert (await broken.outcome()).reason == "precheck raised KeyError"


async def test_ids(server, nominator):
    """An id names one decision: the same again is the same, another is an error, and nothing is written."""
    decision = decide(server.create(pod("p")), decision_id="x")
    first, second = await nominator.nominate(decision), await nominator.nominate(decision)
    assert first is second
    with pytest.raises(ConfigurationError, match="decision_id='x'"):
        await nominator.nominate(decide(server.get("Pod", "p", namespace="ns"), "n2", decision_id="x"))
    with pytest.raises(ConfigurationError, match=r"ttl=301.*must not be above"):
        await nominator.nominate(decide(decision.pod, ttl=301))
    with pytest.raises(ConfigurationError, match="is not known"):
        await nominator.confirm("y")
    with pytest.raises(ConfigurationError, match="must be a Decision"):
        await nominator.nominate("x")
    other = await nominator.nominate(decide(decision.pod, "n2"))
    assert "is live: withdraw it first" in (await other.outcome()).reason


async def test_use(server, cluster):
    """It is entered once, and not used outside."""
    async with Dispatcher() as dispatcher:
        idle = Nominator(dispatcher, cluster)
        with pytest.raises(ConfigurationError, match="not entered yet"):
            await idle.nominate(decide(server.create(pod("p"))))
        async with idle:
            assert "on, 0 live" in repr(idle)
        with pytest.raises(ConfigurationError, match="closed"):
            await idle.rollback("x")
        with pytest.raises(ConfigurationError, match="entered once"):
            await idle.__aenter__()
        for options in ({"policy": 1}, {"precheck": 1}, {"shards": 1}, {"dispatcher": 1}, {"cluster": None}):
            with pytest.raises(ConfigurationError, match=next(iter(options))):
                Nominator(**{"dispatcher": dispatcher, "cluster": cluster, **options})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flow", ""),
        ("flow", None),
        ("name", ""),
        ("name", "x" * 300),
        ("name", "A B"),
        ("name", 5),
        ("cluster_name", ""),
        ("cluster_name", 5),
        ("registry", 5),
        ("rule", 5),
        ("wall", 0.0),
    ],
)
async def test_options_that_cannot_be_meant(cluster, field, value):
    """One error, which names field and value."""
    async with Dispatcher() as dispatcher:
        with pytest.raises(ConfigurationError, match=f"^{field}={re.escape(repr(value))}: "):
            Nominator(dispatcher, cluster, **{field: value})
        Nominator(dispatcher, cluster, name="example.com/planner_1")


@pytest.mark.parametrize("words", [None, 5, b"why"])
async def test_reasons_that_are_none(server, nominator, words):
    """Nothing is taken back, or switched."""
    handle = await nominator.nominate(decide(server.create(pod("p"))))
    assert await handle.written()
    for what in (nominator.rollback, functools.partial(nominator.withdraw, handle.decision_id)):
        with pytest.raises(ConfigurationError, match="reason="):
            await what(words)
    with pytest.raises(ConfigurationError, match="reason="):
        nominator.resume(words)
    with pytest.raises(ConfigurationError, match="order_version="):
        nominator.reorder(None)
    assert (handle.state, nominator.off, nominated(server)) == (S.NOMINATED, None, "n1")


@pytest.mark.parametrize(("words", "said"), [("", ""), ("\ud800!", "?!")])
async def test_any_words_will_do_to_take_back(server, nominator, words, said):
    """The kill switch does not fail for want of good ones."""
    handle = await nominator.nominate(decide(server.create(pod("p"))))
    assert await handle.written()
    assert [outcome.state for outcome in await nominator.rollback(words)] == [S.ROLLED_BACK]
    assert nominator.off == said
    assert f"off: {said}" in repr(nominator)
    await passes(1)
    notes_of = [event["note"] for event in server.objects.of("Event.events.k8s.io")]
    assert any(note.endswith(f"rolled_back: {said}") for note in notes_of)


async def test_leaving_takes_back(server, cluster):
    """Nothing is left behind (N12)."""
    async with nominating(cluster) as nominator:
        handle = await nominator.nominate(decide(server.create(pod("p"))))
        assert await handle.written()
    assert (await handle.outcome()).state is S.WITHDRAWN
    assert nominated(server) is None


async def test_a_stale_view_writes_nothing(server, cluster):
    """What is known of the cluster is too old to say that there is room."""
    async with nominating(cluster, policy=NominationPolicy(max_staleness=20.0)) as nominator:
        server.silence_watches()
        server.silence(after=0, times=None)
        await passes(30)
        outcome = await (await nominator.nominate(decide(server.create(pod("p"))))).outcome()
        assert outcome.state is S.REJECTED
        assert "the view of the cluster is 30 s old" in outcome.reason
    assert checked_wire(server) == 0
