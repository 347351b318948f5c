"""Reading one's own writes: `observe` and `overlay` (law L18)."""

import asyncio
import copy
from dataclasses import dataclass, replace
from typing import Any

from asyncdispatch import APICall, Attempt, Effect, Expired, Failed, RetryPolicy, VerdictKind
from tests.shell import Script, after, call, for_ever, now, pod, pod_dict, raising, running, stubborn, turns


@dataclass(frozen=True, kw_only=True)
class Bind(APICall[Any]):
    """Sets `spec.nodeName`; answers with an object of the version that it is given."""

    call_type: str = "pod_binding"
    node: str = "n1"
    run: Any = None
    answer: int | None = None
    based_on: int = 0

    async def execute(self, attempt: Attempt) -> Any:
        if self.run is not None:
            return await self.run(attempt)
        return pod_dict(self.target.name, "u1", self.answer) if self.answer else None

    def apply(self, obj: Any) -> Any:
        changed = copy.deepcopy(obj)
        changed.setdefault("spec", {})["nodeName"] = self.node
        return changed

    def rebase_onto(self, observed: Any) -> Any:
        return replace(self, based_on=int(observed["metadata"]["resourceVersion"]))


@dataclass(frozen=True, kw_only=True)
class Create(APICall[Any]):
    call_type: str = "create"
    effect: Effect = Effect.CREATE
    obj: Any = None
    run: Any = None

    async def execute(self, attempt: Attempt) -> Any:
        return await self.run(attempt) if self.run is not None else self.obj

    def apply(self, obj: Any) -> Any:
        return self.obj if obj is None else obj


@dataclass(frozen=True, kw_only=True)
class Delete(APICall[Any]):
    call_type: str = "delete"
    deletes = True

    async def execute(self, attempt: Attempt) -> Any:
        return None

    def apply(self, obj: Any) -> Any:
        return None


def bound(obj: Any) -> str | None:
    found: str | None = obj.get("spec", {}).get("nodeName")
    return found


async def test_an_object_is_shown_with_a_write_that_waits_flies_or_is_done():
    async with running() as dispatcher:
        handle = dispatcher.submit(Bind(target=pod(), run=after(1.0), not_before=1.0))
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1"
        await asyncio.sleep(1.5)
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1"
        await handle
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1"
        assert dispatcher.statistics().unobserved == 1


async def test_what_was_handed_in_is_not_changed():
    async with running() as dispatcher:
        dispatcher.submit(Bind(target=pod()))
        given = pod_dict("p", "u1", 5)
        before = copy.deepcopy(given)
        assert bound(dispatcher.observe(given)) == "n1"
        assert given == before


async def test_an_object_without_own_writes_is_returned_as_it_is():
    async with running() as dispatcher:
        given = pod_dict("p", "u1", 5)
        assert dispatcher.observe(given) is given


async def test_a_write_is_shown_until_its_answers_version_is_seen():
    """By the resourceVersion of the answer; an older event changes nothing."""
    async with running() as dispatcher:
        await dispatcher.run(Bind(target=pod(), answer=7))
        assert bound(dispatcher.observe(pod_dict("p", "u1", 6))) == "n1"
        assert bound(dispatcher.observe(pod_dict("p", "u1", 7))) is None, "the server says otherwise since"
        assert dispatcher.statistics().unobserved == 0


async def test_a_write_is_shown_until_apply_changes_nothing():
    async with running() as dispatcher:
        await dispatcher.run(Bind(target=pod()))
        assert dispatcher.statistics().unobserved == 1
        dispatcher.observe(pod_dict("p", "u1", 9, spec={"nodeName": "n1"}))
        assert dispatcher.statistics().unobserved == 0


async def test_what_is_older_shows_a_write_by_chance_only():
    """An older version, or an older uid, changes nothing, also where it looks as if the write had been seen in it."""
    async with running() as dispatcher:
        dispatcher.observe(pod_dict("p", "u1", 10))
        await dispatcher.run(Bind(target=pod(), answer=11))
        for late in (pod_dict("p", "u1", 8, spec={"nodeName": "n1"}), pod_dict("p", "u0", 7, spec={"nodeName": "n1"})):
            assert bound(dispatcher.observe(late)) == "n1"
            assert bound(dispatcher.observe(pod_dict("p", "u1", 10))) == "n1"
            assert dispatcher.statistics().unobserved == 1


async def test_a_late_watch_does_not_bring_back_what_we_have_replaced():
    """Deleted and created anew by us, both unseen: what is shown is the new one, as the server has answered it."""
    old, new = pod_dict("p", "u1", 5), pod_dict("p", "u2", 8)
    async with running() as dispatcher:
        dispatcher.observe(old)
        await dispatcher.run(Delete(target=pod()))
        assert dispatcher.observe(old) is None
        await dispatcher.run(Create(target=pod(), obj=new))
        assert dispatcher.observe(old) == new
        assert dispatcher.overlay([old], api_version="v1", kind="Pod", namespace="ns") == [new]
        assert dispatcher.observe(new) == new
        assert dispatcher.statistics().unobserved == 0
        assert dispatcher.overlay([old], api_version="v1", kind="Pod", namespace="ns") == []


async def test_a_list_without_an_object_says_nothing_of_what_we_changed_in_it():
    """It may be older, or show a part: a bind that was done stays, and one that waits is not failed by its `apply`."""
    async with running() as dispatcher:
        await dispatcher.run(Bind(target=pod()))
        waiting = dispatcher.submit(Bind(target=pod("q"), not_before=1.0))
        await dispatcher.run(Delete(target=pod("r")))
        assert dispatcher.overlay([], api_version="v1", kind="Pod", namespace="ns") == []
        assert dispatcher.statistics().unobserved == 1, "the deletion is seen, the bind is not"
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1"
        assert bound(dispatcher.observe(pod_dict("q", "u1", 5))) == "n1"
        assert await waiting is None


async def test_a_fresh_read_settles_what_has_ended():
    """The caller's word that it began after every ended write; what still flies is shown nevertheless."""
    async with running() as dispatcher:
        await dispatcher.run(Bind(target=pod()))
        flying = dispatcher.submit(Bind(target=pod(), node="n2", run=after(3.0)))
        await turns()
        assert bound(dispatcher.observe(pod_dict("p", "u1", 9), fresh=True)) == "n2"
        await flying
        assert bound(dispatcher.observe(pod_dict("p", "u1", 9))) == "n2"
        assert bound(dispatcher.observe(pod_dict("p", "u1", 9), fresh=True)) is None


async def test_a_read_of_ours_begun_after_the_write_settles_it():
    async with running() as dispatcher:
        await dispatcher.run(Bind(target=pod()))
        read = call(Script(pod_dict("p", "u1", 9)), effect=Effect.READ)
        await dispatcher.run(read)
        assert dispatcher.statistics().unobserved == 0


async def test_a_write_in_doubt_is_shown_until_it_is_read():
    """Case G1: the bind took too long. Its Pod is kept on the node until the fresh read says what is true."""
    async with running() as dispatcher, dispatcher.completions() as stream:
        handle = dispatcher.submit(Bind(target=pod(), run=stubborn(35.0), timeout=30.0))
        outcome = await handle.outcome()
        assert isinstance(outcome, Expired)
        assert (outcome.where, outcome.late_success) == ("in_flight", None if now() < 35.0 else "late")
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1"
        lost = dispatcher.submit(Bind(target=pod("q"), run=raising(OSError("reset")), retry=RetryPolicy(stop=bool)))
        assert isinstance(await lost.outcome(), Failed)
        assert bound(dispatcher.observe(pod_dict("q", "u1", 5))) == "n1"
        seen = [await anext(stream), await anext(stream)]
        assert seen[-1].needs_read
        assert bound(dispatcher.observe(pod_dict("q", "u1", 6), fresh=True)) is None
        await asyncio.sleep(10.0)


async def test_a_cancelled_bind_that_was_never_sent_leaves_no_ghost():
    """Case G3."""
    async with running() as dispatcher:
        handle = dispatcher.submit(Bind(target=pod(), not_before=5.0))
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1"
        handle.cancel("node went")
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) is None


async def test_own_writes_do_not_expire_by_the_clock():
    """Case F5: six minutes of silence."""
    async with running() as dispatcher:
        await dispatcher.run(Bind(target=pod()))
        await asyncio.sleep(360.0)
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1"


async def test_a_waiting_call_is_rebased_onto_what_is_observed():
    """Only onto a newer object, and never in flight."""
    seen: list[int] = []

    @dataclass(frozen=True, kw_only=True)
    class Noting(Bind):
        async def execute(self, attempt: Attempt) -> Any:
            seen.append(self.based_on)

    async with running() as dispatcher:
        handle = dispatcher.submit(Noting(target=pod(), not_before=1.0))
        dispatcher.observe(pod_dict("p", "u1", 5))
        dispatcher.observe(pod_dict("p", "u1", 8))
        dispatcher.observe(pod_dict("p", "u1", 6))
        await handle
    assert seen == [8]


async def test_a_call_in_flight_is_not_rebased():
    """What is on the wire now was decided before."""
    async with running() as dispatcher:
        handle = dispatcher.submit(Bind(target=pod(), run=after(1.0)))
        await turns()
        dispatcher.observe(pod_dict("p", "u1", 5))
        assert isinstance(handle.call, Bind)
        assert handle.call.based_on == 0
        await handle


async def test_another_uid_ends_the_calls_for_the_old_one():
    """Law L2: Failed(GONE); the call for the new one goes on."""
    async with running() as dispatcher:
        dispatcher.observe(pod_dict("p", "u1", 30))
        old = dispatcher.submit(Bind(target=pod("p", "u1"), not_before=1.0))
        new = dispatcher.submit(call(target=pod("p", "u2"), version="50", not_before=1.0))
        dispatcher.observe(pod_dict("p", "u2", 50))
        assert isinstance(old.settled, Failed)
        assert old.settled.verdict.kind is VerdictKind.GONE
        assert await new == "done"
        late = dispatcher.submit(call(target=pod("p", "u1")))
        assert isinstance(late.settled, Failed)


async def test_writes_for_an_older_uid_are_not_shown_on_the_new_object():
    async with running() as dispatcher:
        dispatcher.observe(pod_dict("p", "u1", 30))
        await dispatcher.run(Bind(target=pod("p", "u1")))
        assert bound(dispatcher.observe(pod_dict("p", "u2", 50))) is None
        assert dispatcher.statistics().unobserved == 0


async def test_a_delete_of_ours_shows_nothing():
    async with running() as dispatcher:
        await dispatcher.run(Delete(target=pod()))
        assert dispatcher.observe(pod_dict("p", "u1", 5)) is None


# -- lists ------------------------------------------------------------------------------------------------------------


async def test_a_list_is_shown_with_our_creates_and_without_our_deletes():
    async with running() as dispatcher:
        waiting = dispatcher.submit(Create(target=pod("new"), obj=pod_dict("new", None), not_before=1.0))
        await dispatcher.run(Create(target=pod("made"), obj=pod_dict("made", "u9", 9)))
        await dispatcher.run(Delete(target=pod("gone")))
        dispatcher.submit(Bind(target=pod("a"), not_before=1.0))
        listed = [pod_dict("a", "u1", 5), pod_dict("b", "u2", 5), pod_dict("gone", "u3", 5)]
        shown = dispatcher.overlay(listed, api_version="v1", kind="Pod", namespace="ns")
        names = [obj["metadata"]["name"] for obj in shown]
        assert sorted(names) == ["a", "b", "made", "new"]
        assert names[:2] == ["a", "b"]
        assert bound(shown[0]) == "n1"
        await waiting


async def test_items_of_a_list_need_not_say_their_kind():
    async with running() as dispatcher:
        dispatcher.submit(Bind(target=pod("a"), not_before=1.0))
        bare = pod_dict("a", "u1", 5)
        del bare["kind"], bare["apiVersion"]
        (shown,) = dispatcher.overlay([bare], api_version="v1", kind="Pod", namespace="ns")
        assert bound(shown) == "n1"


async def test_a_list_of_one_namespace_kind_and_group_gets_nothing_of_another():
    async with running() as dispatcher:
        await dispatcher.run(Create(target=pod("mine"), obj=pod_dict("mine")))
        assert len(dispatcher.overlay([], api_version="v1", kind="Pod")) == 1
        assert len(dispatcher.overlay([], api_version="v1", kind="Pod", namespace="ns")) == 1
        assert dispatcher.overlay([], api_version="v1", kind="Pod", namespace="other") == []
        assert dispatcher.overlay([], api_version="v1", kind="Pod", namespace="n") == []
        assert dispatcher.overlay([], api_version="v1", kind="Po") == []
        assert dispatcher.overlay([], api_version="apps/v1", kind="Pod") == []


async def test_creates_are_counted_once_however_late_the_watch_is():
    """Case F7: ten wanted, a list that lags by two seconds, a look every 100 ms: exactly ten are created."""
    stored: list[tuple[float, dict[str, Any]]] = []

    def make(name: str) -> Any:
        async def execute(attempt: Attempt) -> Any:
            await asyncio.sleep(0.02)
            obj = pod_dict(name, f"u-{name}", len(stored) + 1)
            stored.append((now(), obj))
            return obj

        return execute

    async with running() as dispatcher:
        for _ in range(50):
            listed = [obj for at, obj in stored if now() - at >= 2.0]
            shown = dispatcher.overlay(listed, api_version="v1", kind="Pod", namespace="ns")
            for number in range(len(shown), 10):
                name = f"worker-{number}"
                create = Create(target=pod(name), obj=pod_dict(name, None), run=make(name), idempotency_key=name)
                dispatcher.submit(create)
            await asyncio.sleep(0.1)
    assert len(stored) == 10


async def test_what_is_observed_while_a_write_stops_is_still_shown():
    async with running() as dispatcher:
        handle = dispatcher.submit(Bind(target=pod(), run=for_ever))
        await turns()
        handle.cancel()
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1"
        await handle.outcome()
        assert bound(dispatcher.observe(pod_dict("p", "u1", 5))) == "n1", "it may have been applied"
