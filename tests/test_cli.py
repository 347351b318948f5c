"""The command line and its demo: a small one in virtual time, its counting with planted faults, what it prints."""

import asyncio
import dataclasses
import io
import random
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

import asyncdispatch
from asyncdispatch import (
    Cancelled,
    Failed,
    ObjectRef,
    Overwritten,
    Skipped,
    Succeeded,
    Verdict,
    VerdictKind,
    cli,
)
from asyncdispatch._demo import acts
from asyncdispatch._demo.acts import ACTS, play
from asyncdispatch._demo.ledger import Told, count
from asyncdispatch._demo.scheduler import Pace, Scheduler, Slots
from asyncdispatch._demo.screen import ROWS, PlainScreen, RichScreen, make_screen, summary
from asyncdispatch._demo.world import Settings, SlowSpell
from asyncdispatch.kubernetes import PodBinding, PodStatusPatch
from asyncdispatch.kubernetes.calls import Read
from asyncdispatch.testing import AuditRecord

SMALL = Settings(pods=60, pods_in_cycle=15, nodes=6, capacity=40)


def ignore(placed, of):
    pass


async def played(number, settings=SMALL):
    return await play(ACTS[number - 1], settings, ignore)


# ---- the acts, over HTTP in virtual time -----------------------------------------------------------------------------


async def test_act_one_waits_for_each_call() -> None:
    """The API's latency is in every cycle, so 15 Pods take at least 15 times as long."""
    result = await played(1)
    assert (result.placed, result.count.lost, result.count.doubled) == (15, (), ())
    assert result.placed_after >= 15 * SMALL.latency - SMALL.latency / 2
    assert result.statistics.mode is asyncdispatch.Mode.SYNC


async def test_act_two_does_not() -> None:
    """Sixty Pods are placed in fewer than five latencies, retries of the scheduling aside."""
    result = await played(2)
    assert (result.placed, result.count.lost, result.count.doubled) == (60, (), ())
    assert result.placed_after < 60 * SMALL.latency / 2
    assert result.count.requests >= 60


@pytest.mark.parametrize("seed", range(3))
async def test_act_three_loses_and_doubles_nothing(seed, monkeypatch) -> None:
    """Under every kind of fault all Pods are placed, none of them twice, and no node is overfull."""
    fullest = []

    def look(calls, audit, pods, expected):
        fullest.append(max(Counter(pod["spec"]["nodeName"] for pod in pods).values()))
        return count(calls, audit, pods, expected)

    monkeypatch.setattr(acts, "count", look)
    result = await played(3, dataclasses.replace(SMALL, seed=seed))
    assert (result.placed, result.count.lost, result.count.doubled) == (60, (), ())
    assert result.refused_answers >= 5
    assert result.lost_answers
    assert result.recreated >= 3
    assert result.count.retried
    assert fullest[0] <= 11
    # What the dispatcher counts is what its observer and the server's audit list tell.
    assert (result.count.merged, result.count.joined) == (
        result.statistics.merged_total,
        result.statistics.joined_total,
    )


async def test_act_four_rolls_back_and_comes_back() -> None:
    """The guard notices the slow server, the loop goes on synchronously, half-open brings it back."""
    result = await played(4, Settings())
    assert (result.pods, result.placed, result.count.lost, result.count.doubled) == (600, 600, (), ())
    assert [decision.reason for decision in result.rollbacks] == ["api_latency_p99"]
    assert result.back_again == 1
    assert result.synchronous is not None
    assert 1.5 <= result.synchronous < 4
    assert result.statistics.mode is asyncdispatch.Mode.ASYNC
    (said,) = [line for line in summary([result]) if "guard" in line]
    assert re.search(r"rolled back: api_latency_p99 .* samples\). The same loop went on synchronously for \d", said)


async def test_act_four_without_a_slow_server(monkeypatch) -> None:
    """A guard that sees nothing does nothing, and the demo says so."""
    monkeypatch.setattr(SlowSpell, "SLOWER", 1)
    result = await played(4, SMALL)
    assert (result.placed, result.count.lost, result.count.doubled) == (36, (), ())
    assert (result.rollbacks, result.back_again, result.synchronous) == ((), 0, 0.0)
    assert "The guard saw no reason to roll back." in summary([result])


@pytest.mark.parametrize(("pods", "nodes"), [(1, 1), (2, 3)])
async def test_the_smallest(pods, nodes) -> None:
    """One Pod on one node, through all of it."""
    result = await played(3, Settings(pods=pods, nodes=nodes))
    assert (result.placed, result.count.lost, result.count.doubled) == (pods, (), ())


async def test_an_act_that_hangs_ends_and_says_what_is_not_placed() -> None:
    """With room for fewer Pods than there are, the limit ends the act and the rest is lost."""
    settings = dataclasses.replace(SMALL, limit=1.5)
    stuck = dataclasses.replace(ACTS[2], title="no time for it")
    result = await play(stuck, settings, ignore)
    assert result.placed < 60
    assert any("is on no node" in case for case in result.count.lost)


class Recorder(PlainScreen):
    """Plain lines, and the results that the table was made of."""

    def table(self, results):
        self.results = results
        super().table(results)


async def test_the_whole_demo() -> None:
    """Exit code 0, a heading for each act, each row of the table, and what was shown; on a rich terminal as well."""
    plain, rich = io.StringIO(), io.StringIO()
    recorder = Recorder(plain)
    assert await cli.demo(SMALL, recorder) == 0
    screen = RichScreen(file=rich, width=100)
    with screen.act(1, ACTS[0], 15) as watch:
        watch(15, 15)
    assert cli.conclude(recorder.results, screen) == 0
    assert [act.title for act in ACTS if act.title not in plain.getvalue()] == []
    assert "60 of 60 placed" in plain.getvalue()
    assert "15/15" in rich.getvalue()
    for text in (plain.getvalue(), rich.getvalue()):
        assert [name for name, _ in ROWS if name not in text] == []
        said = " ".join(text.split())
        assert "times as many cycles per second" in said
        assert re.search(r"gave \d+ answers of 429 and lost [1-9]\d* answers", said)
        assert "nothing was lost and nothing was done twice" in said
    assert max(map(len, rich.getvalue().splitlines())) <= 100


async def test_the_demo_fails_when_the_audit_does_not_have_a_write(capsys, monkeypatch) -> None:
    """One binding is struck from the server's records: exit code 1, and which call it was."""

    def tampered(calls, audit, pods, expected):
        first = next(record for record in audit if record.verb == "bind" and record.applied)
        records = [dataclasses.replace(r, applied=False) if r is first else r for r in audit]
        return count(calls, records, pods, expected)

    monkeypatch.setattr(acts, "count", tampered)
    monkeypatch.setattr(acts, "ACTS", ACTS[1:2])
    assert await cli.demo(SMALL, PlainScreen(sys.stdout)) == 1
    out = capsys.readouterr().out
    assert "1 lost and 0 doubled" in out
    assert "succeeded, but the server has no such write" in out


async def test_the_demo_fails_when_a_write_was_applied_twice(capsys, monkeypatch) -> None:
    """One binding stands in the server's records twice: exit code 1."""

    def tampered(calls, audit, pods, expected):
        first = next(record for record in audit if record.verb == "bind" and record.applied)
        return count(calls, [*audit, first], pods, expected)

    monkeypatch.setattr(acts, "count", tampered)
    monkeypatch.setattr(acts, "ACTS", ACTS[1:2])
    assert await cli.demo(SMALL, PlainScreen(sys.stdout)) == 1
    assert "was applied 2 times" in capsys.readouterr().out


# ---- the counting ----------------------------------------------------------------------------------------------------

POD = ObjectRef("v1", "Pod", "demo", "p", "u1")
READY: Any = [{"type": "Ready", "status": "True"}]
NOWHERE: Any = None


def bind(node="n1", pod=POD):
    return PodBinding(target=pod, node=node, transport=NOWHERE)


def patch():
    return PodStatusPatch(target=POD, conditions=READY, transport=NOWHERE)


def record(audit_id, verb="bind", *, applied=True, status=200, uid="u1", node="n1"):
    return AuditRecord(
        number=1, method="GET" if verb == "get" else "POST", path="/", query={}, audit_id=audit_id, user_agent="",
        content_type="", body={"target": {"name": node}} if verb == "bind" else {}, verb=verb, api_version="v1",
        kind="Pod", namespace="demo", name="p", subresource="", dry_run=False, time=0.0, status=status,
        applied=applied, uid=uid,
    )  # fmt: skip


def on(node="n1", name="p"):
    return {"metadata": {"name": name}, "spec": {"nodeName": node} if node else {}}


def told(call, outcome, times=1):
    return Told(call, outcome, times)


def counted(calls, audit, pods=None, expected=1):
    return count(calls, audit, [on()] if pods is None else pods, expected)


def succeeded(value="n1", attempts=1):
    return Succeeded(value, attempts=attempts)


def test_a_bind_that_landed_is_neither_lost_nor_doubled() -> None:
    """The plain case."""
    found = counted({1: told(bind(), succeeded())}, [record("1-1")])
    assert (found.lost, found.doubled, found.requests, found.retried) == ((), (), 1, 0)


def test_requests_of_others_do_not_count() -> None:
    """Those without an Audit-ID of a call, as lists are."""
    found = counted({}, [record(None), record("kubectl-7")])
    assert (found.requests, found.lost, found.doubled) == (0, (), ())


def test_a_bind_whose_answer_was_lost() -> None:
    """Applied by the first try, found by the read beside it: one write, proven."""
    audit = [record("1-1", status=None), record("1-1", "get", applied=False)]
    found = counted({1: told(bind(), succeeded())}, audit)
    assert (found.lost, found.doubled, found.requests, found.retried) == ((), (), 2, 0)


@pytest.mark.parametrize(
    ("outcome", "audit", "what"),
    [
        (None, [record("1-1")], "has no outcome"),
        (succeeded(), [], "the server has no such write"),
        (succeeded(), [record("1-1", applied=False, status=409)], "the server has no such write"),
        (succeeded(), [record("1-1", node="n2")], "the server has no such write"),
        (succeeded(), [record("1-1", uid="u2")], "the server has no such write"),
        (Cancelled("preempted"), [record("1-1")], "ended as Cancelled, but the server has its write"),
        (
            Failed(OSError(), Verdict(VerdictKind.PERMANENT)),
            [record("1-1")],
            "ended as Failed, but the server has its write",
        ),
        (Overwritten(9), [], "gave way to call 9, which was never accepted"),
        (Skipped(9), [], "gave way to call 9, which was never accepted"),
    ],
)
def test_a_lost_bind(outcome, audit, what) -> None:
    """Its caller was told nothing, or something that the server's records don't bear out."""
    (case,) = counted({1: told(bind(), outcome)}, audit).lost
    assert case.startswith("call 1 (<PodBinding")
    assert what in case


@pytest.mark.parametrize(
    "outcome",
    [
        Cancelled("preempted", ambiguous=True),
        Cancelled("preempted", late_success="n1"),
        Failed(OSError(), Verdict(VerdictKind.PERMANENT), ambiguous=True),
        Failed(OSError(), Verdict(VerdictKind.GONE)),
    ],
)
def test_a_write_that_its_caller_was_warned_of(outcome) -> None:
    """It may be there, and is; or its object is not there any more."""
    assert counted({1: told(bind(), outcome)}, [record("1-1")]).lost == ()


def test_a_write_that_was_undone_before_its_caller_looked() -> None:
    """It landed, its answer was lost, a later write undid it, and a read told its caller so."""
    outcome: Failed[Any] = Failed(OSError(), Verdict(VerdictKind.PERMANENT))
    landed = record("1-1", status=None)
    look = dataclasses.replace(record("1-2", "get", applied=False), number=2)
    assert counted({1: told(bind(), outcome)}, [landed, look]).lost == ()
    early = dataclasses.replace(landed, number=3)
    assert len(counted({1: told(bind(), outcome)}, [early, look]).lost) == 1


def test_a_patch_that_changed_nothing() -> None:
    """Answered 200, or not sent because all was as it should be: neither is lost. An error is."""
    unchanged = record("1-2", "patch", applied=False)
    assert counted({1: told(patch(), succeeded({}))}, [unchanged]).lost == ()
    assert counted({1: told(patch(), succeeded(None, attempts=0))}, []).lost == ()
    assert len(counted({1: told(patch(), succeeded({}))}, [dataclasses.replace(unchanged, status=429)]).lost) == 1
    assert len(counted({1: told(patch(), succeeded({}))}, []).lost) == 1


def test_lost_pods() -> None:
    """A Pod on no node, and one that is not there."""
    assert counted({}, [], [on(), on(None, "q")], 3).lost == ("Pod q is on no node", "a Pod is gone")


def test_doubled_writes() -> None:
    """Two applied writes of one call; two bindings of one Pod, by whichever calls; two outcomes."""
    twice = [record("1-1", "patch"), record("1-2", "patch")]
    assert counted({1: told(patch(), succeeded({}))}, twice).doubled == ("call 1 was applied 2 times",)
    bound = {1: told(bind(), succeeded()), 2: told(bind("n2"), succeeded("n2"))}
    found = counted(bound, [record("1-1"), record("2-1", node="n2")])
    assert found.doubled == ("the Pod with uid u1 was bound 2 times",)
    assert counted({1: told(bind(), succeeded(), 2)}, [record("1-1")]).doubled == ("call 1 was told 2 outcomes",)


def test_a_recreated_pod_is_bound_again() -> None:
    """Another uid, another Pod."""
    other = dataclasses.replace(POD, uid="u2")
    calls = {1: told(bind(), succeeded()), 2: told(bind("n2", other), succeeded("n2"))}
    found = counted(calls, [record("1-1"), record("2-1", uid="u2", node="n2")])
    assert (found.lost, found.doubled) == ((), ())


def test_merged_joined_superseded_retried_and_stale() -> None:
    """Each is told by what the caller was told and what was sent."""
    read = Read(target=POD, transport=NOWHERE)
    calls = {
        1: told(patch(), Overwritten(2)),
        2: told(patch(), Overwritten(3)),
        3: told(bind(), succeeded(attempts=2)),
        4: told(read, succeeded({})),
        5: told(read, succeeded({})),
        6: told(bind("n3"), Cancelled("preempted", ambiguous=True)),
    }
    refused = record("3-1", applied=False, status=429)
    beside = record("3-2", "get", applied=False)
    late = record("6-1", "patch")  # not a binding: this one is about being late
    found = counted(calls, [refused, record("3-2"), beside, record("4-1", "get", applied=False), late])
    assert (found.merged, found.superseded, found.joined, found.retried, found.stale) == (1, 1, 1, 1, 1)
    assert (found.lost, found.doubled) == ((), ())


# ---- what is shown ---------------------------------------------------------------------------------------------------


async def test_a_loss_is_not_glossed_over() -> None:
    """The summary counts it, what was lost is named, and the exit code is 1."""
    result = await played(1)
    bad = dataclasses.replace(result, count=dataclasses.replace(result.count, lost=("a Pod is gone",)))
    assert "1 lost and 0 doubled" in summary([bad])[-1]
    out = io.StringIO()
    assert cli.conclude([bad], PlainScreen(out)) == 1
    assert "  - a Pod is gone" in out.getvalue()


def test_no_bars_where_nobody_sees_them_move(monkeypatch) -> None:
    """A pipe gets plain lines, and so does a terminal without rich."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(make_screen(io.StringIO()), PlainScreen)
    assert isinstance(make_screen(Terminal()), RichScreen)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(make_screen(Terminal()), PlainScreen)


# ---- parts of the loop -----------------------------------------------------------------------------------------------


def node(name, room, ready=True):
    status = {"allocatable": {"pods": str(room)}, "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": {"name": name}, "status": status}


def test_slots() -> None:
    """A node takes as many as it has room for; who is released makes room; a move is no second hold."""
    slots = Slots(random.Random(1), sample=3)
    slots.update([node("a", 2), node("b", 1), node("c", 5, ready=False)])
    assert slots.choose(None)[0] in ("a", "b")
    slots.hold("u1", "a")
    assert slots.choose(None)[0] == "a"  # the fullest with room
    assert slots.choose("b")[0] == "b"  # but a nominated one first
    slots.hold("u1", "b")
    slots.hold("u1", "b")
    assert slots.choose("b")[0] == "a"
    slots.hold("u2", "a")
    slots.hold("u3", "a")
    chosen, looked_at = slots.choose(None)
    assert chosen is None
    assert slots.verdict(looked_at) == "0/3 nodes are available: 2 too many pods, 1 node(s) were not ready."
    slots.release("u1")
    slots.release("u1")
    assert slots.choose(None)[0] == "b"


def test_pace() -> None:
    """Rates leave idle time out, and are 0 where there was nothing."""
    assert (Pace().per_second, Pace().p99) == (0.0, 0.0)
    pace = Pace(cycles=[0.01] * 99 + [0.5], began=10.0, ended=13.0, idle=1.0)
    assert (pace.per_second, pace.p99) == (50.0, 0.5)


# ---- the command line ------------------------------------------------------------------------------------------------


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "asyncdispatch", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_as_a_program() -> None:
    """`python -m asyncdispatch --help` names the commands."""
    result = run("--help")
    assert result.returncode == 0
    assert "demo" in result.stdout


def test_version(capsys) -> None:
    """The installed one."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert not exit_.value.code
    assert capsys.readouterr().out.startswith("asyncdispatch 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["nonsense"], "invalid choice"),
        (["demo", "--pods", "0"], "'0' is no number of at least 1"),
        (["demo", "--nodes", "many"], "'many' is no number of at least 1"),
        (["demo", "--latency", "-1"], "'-1' is no time from 0 to 10000 ms"),
        (["demo", "--latency", "nan"], "'nan' is no time from 0 to 10000 ms"),
        (["demo", "--latency", "long"], "'long' is no time from 0 to 10000 ms"),
    ],
)
def test_wrong_use(arguments, said, capsys) -> None:
    """Exit code 2, and what is wrong."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_options_and_exit_code(code, monkeypatch) -> None:
    """The options are the demo's settings; its code is the program's."""
    given = []

    async def demo(settings, screen):
        given.append(settings)
        return code

    monkeypatch.setattr(cli, "demo", demo)
    assert cli.main(["demo", "--pods", "100", "--nodes", "4", "--latency", "20", "--seed", "7"]) == code
    assert given == [Settings(pods=100, pods_in_cycle=20, nodes=4, latency=0.02, seed=7)]


def test_interrupted(monkeypatch) -> None:
    """As shells expect it."""

    async def demo(settings, screen):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "demo", demo)
    assert cli.main(["demo"]) == 130


def test_without_the_extras(monkeypatch, capsys) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "asyncdispatch._demo.screen", None)
    assert cli.main(["demo"]) == 2
    assert "pip install 'asyncdispatch[kubernetes,testing,cli]'" in capsys.readouterr().err


async def test_a_loop_that_breaks_is_not_waited_for(monkeypatch) -> None:
    """An error in the scheduler ends the act with it, at once."""

    async def broken(self, name):
        raise LookupError("no such Pod")

    monkeypatch.setattr(Scheduler, "cycle", broken)
    before = asyncio.get_running_loop().time()
    with pytest.raises(BaseExceptionGroup, match="TaskGroup") as raised:
        await played(2)
    assert raised.group_contains(LookupError)
    assert asyncio.get_running_loop().time() - before < 5
