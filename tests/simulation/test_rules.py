"""Each rule, on histories made by hand: a good one passes, and one thing wrong in it is found under the rule's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncdispatch.calls import ObjectRef
from asyncdispatch.simulation import (
    RULES,
    CallRecord,
    ContextRecord,
    History,
    RequestRecord,
    Scenario,
    Term,
    Violation,
    check,
)
from asyncdispatch.simulation.calls import Bind, Get, Make, Note, SimulatedCall, Status

SECOND = 1_000_000_000
NOTE = ObjectRef("v1", "Event", "ns", "n")
POD = ObjectRef("v1", "Pod", "ns", "p", "u1")
CLAIM = ObjectRef("v1", "PersistentVolumeClaim", "ns", "c")


class World(History):
    """Writes a history by hand: a step is a second, and a server carries out what is sent, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.version = 10
        self.objects: dict[str, Any] = {}

    def later(self, seconds: float = 1.0) -> int:
        self.now += int(seconds * SECOND)
        self.ended = self.now
        return self.now

    def pod(self) -> None:
        """A Pod without a node, which somebody has created."""
        request = RequestRecord(SimulatedCall(call_type="birth", target=POD), None, self.now, self.now)
        request.call.__dict__["verb"] = "create"
        request.landed = request.ended = self.now
        request.error = ""
        self.version += 1
        request.after = self.objects[POD.lane] = ("u1", self.version, {})
        self.audit.append(request)

    def call(self, call: SimulatedCall, *, replica: int = 1, **more: Any) -> CallRecord:
        record = CallRecord(replica, len(self.calls) + 1, call, self.later(), self.now + 60 * SECOND)
        for name, value in more.items():
            setattr(record, name, value)
        self.calls.append(record)
        return record

    def send(
        self, record: CallRecord, *, lands: bool = True, error: str = "", look: bool = False, call: Any = None
    ) -> RequestRecord:
        """One request: sent, carried out if it `lands`, and answered, a second each."""
        sent = call or (Get(target=record.call.target) if look else record.call)
        request = RequestRecord(sent, record, self.later(), self.now + 5 * SECOND)
        request.look = look
        record.requests.append(request)
        self.requests.append(request)
        if lands:
            request.landed = self.later()
            self._carry_out(request, sent)
        request.ended = self.later()
        request.error = error
        return request

    def _carry_out(self, request: RequestRecord, call: SimulatedCall) -> None:
        lane = call.target.lane
        before = request.before = self.objects.get(lane)
        request.after = before
        if call.verb != "get":
            self.version += 1
            content = {**(before[2] if before else {}), **call.fields}
            request.after = self.objects[lane] = (before[0] if before else "n1", self.version, content)
        self.audit.append(request)

    def tell(self, record: CallRecord, how: str = "succeeded", **more: Any) -> CallRecord:
        record.how = how
        record.told = self.later(0.0)
        record.tellings += 1
        for name, value in more.items():
            setattr(record, name, value)
        return record

    def done(self, call: SimulatedCall, **more: Any) -> CallRecord:
        """A call that goes well."""
        record = self.call(call, **more)
        self.send(record)
        return self.tell(record)


def note(number: int = 1) -> Note:
    return Note(number, target=NOTE)


def bind(node: str = "a", **fields: Any) -> Bind:
    return Bind(node, target=POD, **fields)


def status(*names: str) -> Status:
    return Status(dict.fromkeys(names, 1), target=POD)


def make() -> Make:
    return Make("k", target=CLAIM)


def found(world: World) -> list[Violation]:
    return check(world, Scenario()).violations


def rules(world: World) -> set[str]:
    return {violation.rule for violation in found(world)}


# -- good ones --------------------------------------------------------------------------------------------------------


def good() -> World:
    """Some of everything, as it should be."""
    world = World()
    world.pod()
    context = ContextRecord(1, world.now, parent=ContextRecord(2, world.now))
    world.done(note(1))
    world.done(note(2))
    lost = world.call(make())
    world.send(lost, error="reset")
    world.send(lost, look=True)
    world.tell(lost)
    merged = world.call(status("a"))
    heir = world.call(status("b"))
    world.tell(merged, "overwritten", by=heir.ticket)
    world.send(heir, call=status("a", "b"))
    world.tell(heir)
    world.done(bind(), context=context)
    context.ended = world.later()
    waits = world.call(note(3))
    world.tell(waits, "cancelled")
    unknown = world.call(note(4))
    world.send(unknown, error="reset")
    world.tell(unknown, "expired", ambiguous=True)
    late = world.call(note(5))
    world.send(late)
    world.tell(late, "cancelled", late=True)
    world.decisions.append((1, "u1", 0))
    world.terms += [Term(1, 0, 5), Term(2, 5, 9)]
    return world


def test_a_good_history_passes_and_every_rule_is_looked_at() -> None:
    checked = check(good(), Scenario())
    assert checked.violations == []
    assert set(checked.checks) == set(RULES)
    assert {rule for rule, count in checked.checks.items() if not count} == {"joined"}


def test_calls_of_a_replica_that_has_crashed_are_told_nothing() -> None:
    world = World()
    record = world.call(note())
    world.send(record)
    world.crashed[1] = world.now
    assert found(world) == []


# -- one thing wrong --------------------------------------------------------------------------------------------------


def never_told(world: World) -> None:
    world.call(note())


def told_twice(world: World) -> None:
    world.tell(world.done(note()))


def told_late(world: World) -> None:
    record = world.call(note())
    world.later(100.0)
    world.tell(record, "expired")


def success_without_a_request(world: World) -> None:
    world.tell(world.call(note()))


def success_of_a_lost_request(world: World) -> None:
    record = world.call(note())
    world.send(record, error="reset")
    world.tell(record)


def success_that_a_look_has_not_seen(world: World) -> None:
    record = world.call(bind())
    world.send(record, lands=False, error="reset")
    world.send(record, look=True)
    world.tell(record)


def carried_out_but_cancelled(world: World) -> None:
    record = world.call(note())
    world.send(record, error="stopped")
    world.tell(record, "cancelled")


def carried_out_and_seen_but_refused(world: World) -> None:
    record = world.call(bind())
    world.send(record, error="reset")
    world.send(record, look=True)
    world.tell(record, "failed")


def sent_again_after_a_success(world: World) -> None:
    record = world.call(note())
    world.send(record)
    world.send(record)
    world.tell(record)


def created_twice(world: World) -> None:
    world.done(make())
    record = world.call(make())
    world.send(record)
    world.tell(record)


def bound_twice(world: World) -> None:
    world.done(bind("a"))
    world.done(bind("b"))


def created_again_without_a_look(world: World) -> None:
    record = world.call(make())
    world.send(record, lands=False, error="reset")
    world.send(record)
    world.tell(record)


def two_in_flight(world: World) -> None:
    one, other = world.call(note(1)), world.call(note(2))
    first = world.send(one)
    world.tell(one)
    world.send(other)
    world.tell(other)
    first.ended = world.now + SECOND
    one.told = world.now + SECOND


def the_younger_first(world: World) -> None:
    one, other = world.call(note(1)), world.call(note(2))
    for record in (other, one):
        world.send(record)
        world.tell(record)


def sent_after_its_contexts_end(world: World) -> None:
    context = ContextRecord(1, world.now)
    record = world.call(bind(), context=context)
    context.ended = world.later()
    world.send(record, lands=False, error="reset")
    world.tell(record, "failed", ambiguous=True)


def sent_after_its_leases_end(world: World) -> None:
    """The context above it was over by itself."""
    above = ContextRecord(1, world.now, until=world.now + 2 * SECOND)
    record = world.call(bind(), context=ContextRecord(2, world.now, parent=above))
    world.later(3.0)
    world.send(record, lands=False, error="reset")
    world.tell(record, "failed", ambiguous=True)


def a_success_after_its_contexts_end(world: World) -> None:
    context = ContextRecord(1, world.now)
    record = world.call(bind(), context=context)
    world.send(record)
    context.ended = world.now - 1
    world.tell(record)


def sent_after_its_deadline(world: World) -> None:
    record = world.call(note(), deadline=world.now + SECOND)
    world.later(2.0)
    world.send(record)
    world.tell(record)
    record.told = record.deadline


def sent_for_nobody(world: World) -> None:
    """Two share it, and the time of both is over."""
    record, joiner = world.call(note()), world.call(note())
    joiner.lead = record
    world.later(70.0)
    world.send(record)
    for each in (record, joiner):
        world.tell(each)
        each.told = each.deadline + SECOND


def an_heir_of_another_object(world: World) -> None:
    heir = world.done(bind())
    world.tell(world.call(note()), "overwritten", by=heir.ticket)


def an_heir_that_was_there_before(world: World) -> None:
    before = world.done(status("a"))
    world.tell(world.call(status("a")), "overwritten", by=before.ticket)


def superseded_by_a_failure(world: World) -> None:
    patch = world.call(status("a"))
    heir = world.tell(world.call(bind()), "failed")
    world.tell(patch, "overwritten", by=heir.ticket)


def a_condition_is_forgotten(world: World) -> None:
    merged = world.call(status("a"))
    heir = world.call(status("b"))
    world.tell(merged, "overwritten", by=heir.ticket)
    world.send(heir)
    world.tell(heir)


def another_value_for_who_joined(world: World) -> None:
    lead = world.done(note())
    world.tell(world.call(note(), lead=lead), value="another")


def a_read_of_the_past(world: World) -> None:
    world.done(note(1))
    older = world.objects[NOTE.lane]
    world.done(note(2))
    world.objects[NOTE.lane] = older
    world.done(Get(target=NOTE))


def a_write_that_leaves_something_else(world: World) -> None:
    world.done(note(1))
    after = world.audit[-1].after
    assert after is not None
    world.audit[-1].after = (after[0], after[1], {"note": 7})


def a_version_that_was_given_before(world: World) -> None:
    world.done(note(1))
    world.version -= 1
    world.done(make())


def answered_before_an_earlier_one_was_sent(world: World) -> None:
    one, other = world.call(note(1)), world.call(note(2), replica=2)
    for record in (one, other):
        world.send(record)
        world.tell(record)
    one.requests[0].sent = other.requests[0].ended + SECOND
    one.requests[0].ended = one.requests[0].sent + SECOND
    one.told = one.requests[0].ended


def a_bind_of_another_uid(world: World) -> None:
    world.done(Bind("a", target=ObjectRef("v1", "Pod", "ns", "p", "u2")))


def a_bind_decided_on_another_version(world: World) -> None:
    world.done(bind(version="7"))


def placed_again(world: World) -> None:
    world.done(bind())
    world.decisions.append((1, "u1", world.later()))


def a_bind_of_an_earlier_leader(world: World) -> None:
    """It was sent in time, decided on a version, and lands when the later leader has written."""
    terms = [ContextRecord(number, number) for number in (1, 2)]
    early = world.call(bind(version="11"), context=ContextRecord(3, 1, parent=terms[0]))
    late = world.call(status("a"), replica=2, context=ContextRecord(4, 2, parent=terms[1]))
    for record in (late, early):
        world.send(record)
        world.tell(record)


def two_leaders(world: World) -> None:
    world.terms += [Term(1, 0, 5), Term(2, 4, 9)]


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (never_told, "one outcome"),
        (told_twice, "one outcome"),
        (told_late, "one outcome"),
        (success_without_a_request, "success has its effect"),
        (success_of_a_lost_request, "success has its effect"),
        (success_that_a_look_has_not_seen, "success has its effect"),
        (carried_out_but_cancelled, "no success, no effect"),
        (carried_out_and_seen_but_refused, "no success, no effect"),
        (sent_again_after_a_success, "once"),
        (created_twice, "once"),
        (bound_twice, "once"),
        (created_again_without_a_look, "looks before it repeats"),
        (two_in_flight, "one in flight"),
        (the_younger_first, "in line"),
        (sent_after_its_contexts_end, "nothing of an ended context"),
        (sent_after_its_leases_end, "nothing of an ended context"),
        (a_success_after_its_contexts_end, "nothing of an ended context"),
        (sent_after_its_deadline, "nothing too late"),
        (sent_for_nobody, "nothing too late"),
        (an_heir_of_another_object, "superseded"),
        (an_heir_that_was_there_before, "superseded"),
        (superseded_by_a_failure, "superseded"),
        (a_condition_is_forgotten, "merged"),
        (another_value_for_who_joined, "joined"),
        (a_read_of_the_past, "legal"),
        (a_write_that_leaves_something_else, "legal"),
        (a_version_that_was_given_before, "legal"),
        (answered_before_an_earlier_one_was_sent, "real time"),
        (a_bind_of_another_uid, "fenced"),
        (a_bind_decided_on_another_version, "fenced"),
        (placed_again, "own writes are seen"),
        (a_bind_of_an_earlier_leader, "no dead hand"),
        (two_leaders, "one leader"),
    ],
)
def test_one_thing_wrong_is_found(wrong: Callable[[World], None], rule: str) -> None:
    world = World()
    world.pod()
    wrong(world)
    assert rule in rules(world)


def test_no_rule_is_without_a_test() -> None:
    marks = [mark for mark in test_one_thing_wrong_is_found.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    assert {rule for mark in marks for _, rule in mark.args[1]} == set(RULES)
