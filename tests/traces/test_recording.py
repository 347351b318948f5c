"""What a trace holds and what it never does; what is wrong with its file harms no call."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import looptime
import pytest

from asyncdispatch import (
    Again,
    APICall,
    Applied,
    Attempt,
    ConfigurationError,
    Dispatcher,
    DispatcherConfig,
    Effect,
    Expired,
    FunctionCall,
    MergeFailed,
    Refused,
    RetryPolicy,
    Succeeded,
    Unknown,
)
from asyncdispatch.traces import TraceError, TraceRecorder, read_trace, recording, replay
from asyncdispatch.traces import tape as tapes
from asyncdispatch.traces.format import LINES
from tests.shell import START, Script, StatusError, after, call, for_ever, pod, pod_dict, turns
from tests.traces.worlds import Kept, check_same

SECRET = "hunter2-is-secret"

pytestmark = pytest.mark.looptime(start=START)


class Everything(APICall[Any]):
    """Has all hooks; what they say is told by its `script`."""

    call_type = "everything"
    target = pod()
    script: Any

    def __init__(self, script: Script, **fields: Any) -> None:
        self.__dict__.update(fields, script=script)

    async def execute(self, attempt: Attempt) -> Any:
        return await self.script(attempt)

    def merge(self, pending: Any) -> Any:
        if self.script.steps == ["merge raises"]:
            raise ValueError(SECRET)
        return self

    def is_noop(self) -> bool:
        return bool(self.script.steps == ["noop"])

    def rebase_onto(self, observed: Any) -> Any:
        return Everything(self.script, **{k: v for k, v in self.__dict__.items() if k != "script"} | {"version": "9"})

    def apply(self, obj: Any) -> Any:
        if self.script.steps == ["apply raises"]:
            raise ValueError(SECRET)
        return obj

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:
        answer = self.script.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def everything(*steps: Any, answers: tuple[Any, ...] = (), **fields: Any) -> Everything:
    script = Script(*steps)
    script.answers = list(answers)  # type: ignore[attr-defined]
    return Everything(script, **fields)


async def play_everything(dispatcher: Dispatcher) -> None:
    """Every kind of step that there is."""
    conflict = StatusError(409)
    create: dict[str, Any] = {"effect": Effect.CREATE}
    dispatcher.submit(everything("ok"))
    dispatcher.submit(everything("ok"))  # merges, or is behind it
    with pytest.raises(MergeFailed):
        dispatcher.submit(everything("merge raises"))
    await turns()
    dispatcher.submit(everything("noop", target=pod("noop")))
    for number, answer in enumerate(
        (
            Applied(pod_dict("r0")),
            Refused(StatusError(404)),
            Unknown(True),
            Again(everything("ok", target=pod("r3"), **create)),
        )
    ):
        steps = (conflict, "ok") if number < 3 else (StatusError(500), "ok")
        dispatcher.submit(everything(*steps, answers=(OSError("reset"), answer), target=pod(f"r{number}"), **create))
    await asyncio.sleep(5)
    dispatcher.observe(pod_dict())  # shows what was written
    dispatcher.submit(call(for_ever, "w"))
    await turns()
    dispatcher.submit(everything("ok", target=pod("w", "u1"), not_before=1.0))
    dispatcher.observe(pod_dict("w", "u1", 3))  # rebases what waits
    dispatcher.submit(everything("apply raises", target=pod("broken"), not_before=1.0))
    dispatcher.observe(pod_dict("broken"))
    context = dispatcher.contexts.begin(pod("c"), requires=("r", "s"))
    child = dispatcher.contexts.begin(pod("d"), parent=context)
    context.extend(asyncio.get_running_loop().time() + 50.0)
    dispatcher.submit(call(target=pod("c"), context=context, prerequisite="r", idempotency_key=SECRET))
    dispatcher.submit(call(target=pod("c"), context=context, prerequisite="r", idempotency_key=SECRET))
    dispatcher.submit(call(target=pod("c"), context=context, awaits_prerequisites=True))
    context.fail("s", ValueError(SECRET))
    child.end("over")
    dispatcher.submit(call(target=pod("f"), flow="f", not_before=9.0, depends_on=(pod("g"),)))
    dispatcher.submit(call(target=pod("h"), flow="f", not_before=9.0))
    dispatcher.forget(pod("g"), SECRET)
    dispatcher.cancel_flow("f", SECRET)
    handle = dispatcher.submit(call(for_ever, "x"))
    await turns()
    handle.cancel(SECRET)
    dispatcher.submit(call(Script(StatusError(401), OSError(SECRET), SECRET), "auth", scope=SECRET))
    await asyncio.sleep(2)
    dispatcher.overlay([], api_version="v1", kind="Pod")
    dispatcher.submit(call(Deaf(20.0), "deaf", timeout=1.0))
    for number in range(10):
        dispatcher.submit(call(after(0.1, {"payload": SECRET}), f"n{number}"))
    await asyncio.sleep(30)
    dispatcher.submit(call(Deaf(100.0), "deaf"))
    await turns()


class Deaf:
    """It swallows being asked to stop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __call__(self, attempt: Attempt) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        while loop.time() < until - 1e-3:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                pass


CONFIG = DispatcherConfig(max_in_flight=4, give_up=2.0, drain_timeout=4.0, retry=RetryPolicy(wait=lambda state: 0.1))


async def record_everything(path: Path) -> None:
    kept = Kept()
    with TraceRecorder(path) as recorder:
        async with Dispatcher(CONFIG, observers=(recorder, kept)) as dispatcher:
            await play_everything(dispatcher)
    assert recorder.ended is None
    check_same(path, kept)
    await asyncio.sleep(200)  # the deaf one


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of everything."""
    path = tmp_path_factory.mktemp("everything") / "trace"
    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=START, noop_cycles=1)) as runner:
        runner.run(record_everything(path))
    return path


def test_every_kind_of_step_is_recorded_and_replayed(path: Path) -> None:
    steps = read_trace(path).steps
    assert {step.name for step in steps} | {"turn"} == set(LINES)  # an observer of attempts leaves no turns
    assert {key for step in steps for key in step.more} == {"told", "merged", "joined", "noop"}


def test_no_secret_is_in_it(path: Path) -> None:
    """Neither payloads, values and messages nor keys, scopes and reasons."""
    assert SECRET not in path.read_text()


def test_configuration_and_times(path: Path) -> None:
    """The header has the dispatcher's own, but for its strategies, which are code."""
    trace = read_trace(path)
    assert trace.config == replace(CONFIG, retry=RetryPolicy())
    assert trace.began == 1_000_000_000_000
    assert trace.library != "unknown"
    assert repr(trace).startswith(f"<Trace {path} of 20")


# -- the file ---------------------------------------------------------------------------------------------------------


async def record_some(path: Path, count: int = 5, **options: Any) -> TraceRecorder:
    with TraceRecorder(path, **options) as recorder:
        async with Dispatcher(observers=(recorder,)) as dispatcher:
            handles = [dispatcher.submit(call(name=f"p{number}")) for number in range(count)]
            assert [type(await handle.outcome()) for handle in handles] == [Succeeded] * count
    return recorder


async def test_a_compressed_one_is_the_same(tmp_path: Path) -> None:
    await record_some(tmp_path / "trace.gz")
    packed = tmp_path / "trace.gz"
    (tmp_path / "trace").write_bytes(gzip.decompress(packed.read_bytes()))
    assert replay(read_trace(packed)) == replay(read_trace(tmp_path / "trace"))


async def test_an_error_in_writing_ends_the_trace_and_no_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With one line in the log: here the disk is full."""
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    recorder = await record_some(full)
    assert recorder.ended is not None
    assert "No space left" in recorder.ended
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 1
    assert "has ended" in told[0].getMessage()


async def test_it_ends_at_its_greatest_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is there before is whole lines, and replays: also where all of them come at once."""
    recorder = await record_some(tmp_path / "trace", 30, max_bytes=10_000_000)
    assert recorder.ended is None
    whole = (tmp_path / "trace").read_bytes()
    for number, max_bytes in enumerate((3_000, len(whole) - 1), start=1):
        recorder = await record_some(tmp_path / "short", 30, max_bytes=max_bytes)
        assert recorder.ended == "it is as long as max_bytes lets it be"
        assert len(caplog.records) == number
        written = (tmp_path / "short").read_bytes()
        assert max_bytes - 200 < len(written) <= max_bytes  # no line of these is longer
        trace = read_trace(tmp_path / "short")
        assert trace.note is None
        replay(trace)
    await record_some(tmp_path / "trace", 30, max_bytes=len(whole))
    assert len(caplog.records) == 2


async def test_not_even_its_header_has_room(tmp_path: Path) -> None:
    recorder = await record_some(tmp_path / "short", max_bytes=100)
    assert recorder.ended == "it is as long as max_bytes lets it be"
    assert (tmp_path / "short").read_bytes() == b""


async def test_a_slow_file_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that wait to be written are bounded."""
    monkeypatch.setattr(tapes, "BACKLOG", 3)
    monkeypatch.setattr(tapes, "EVERY", 3600.0)
    recorder = await record_some(tmp_path / "trace")
    assert recorder.ended == "its file is too slow: 3 lines wait to be written"


@pytest.mark.parametrize("part", ["call_text", "identity_text", "failure_fields"])
async def test_a_step_that_cannot_be_written_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Whatever is wrong with it: the call goes on."""

    def broken(value: Any) -> str:
        raise ValueError("odd")

    monkeypatch.setattr(recording, part, broken)
    with TraceRecorder(tmp_path / "trace") as recorder:
        async with Dispatcher(observers=(recorder,)) as dispatcher:
            handle = dispatcher.submit(call(Script(OSError("reset"), "value")))
            assert isinstance(await handle.outcome(), Succeeded)
    assert recorder.ended == "a step could not be written down: ValueError('odd')"


async def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    await record_some(tmp_path / "trace")
    assert threading.active_count() == before


async def test_bad_arguments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match="path"):
        TraceRecorder("")
    with pytest.raises(ConfigurationError, match="max_bytes"):
        TraceRecorder(tmp_path / "trace", max_bytes=0)
    with pytest.raises(FileNotFoundError), TraceRecorder(tmp_path / "none" / "trace"):
        pass
    async with Dispatcher(observers=(TraceRecorder(tmp_path / "trace"),)):
        assert "open it first" in caplog.text
    with TraceRecorder(tmp_path / "trace") as recorder:
        with pytest.raises(ConfigurationError, match="one recorder for each"):
            recorder.__enter__()
        async with Dispatcher(observers=(recorder,)), Dispatcher(observers=(recorder,)):
            assert "record one only" in caplog.text


# -- reading what is broken -------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    """Of a good trace."""
    asyncio.run(record_some(tmp_path / "good"))
    return (tmp_path / "good").read_text().splitlines()


def read_lines(tmp_path: Path, lines: list[str], end: str = "\n") -> Any:
    (tmp_path / "bad").write_text("\n".join(lines) + end)
    return read_trace(tmp_path / "bad")


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path, lines: list[str]) -> None:
    """As a process that was killed leaves it: the rest replays, and a note says so."""
    whole = read_lines(tmp_path, lines)
    assert whole.note is None
    for cut in (1, 10, len(lines[-1]) - 1):
        trace = read_lines(tmp_path, [*lines[:-1], lines[-1][:cut]], end="")
        assert trace.note == f"line {len(lines)} was cut off and is left out: the recording process ended there"
        assert trace.steps == whole.steps[:-1]
        replay(trace)


async def test_a_compressed_file_that_was_cut_off(tmp_path: Path) -> None:
    await record_some(tmp_path / "good.gz", 2_000)
    data = (tmp_path / "good.gz").read_bytes()
    (tmp_path / "bad.gz").write_bytes(data[: len(data) // 2])
    trace = read_trace(tmp_path / "bad.gz")
    assert trace.note is not None
    assert len(trace.steps) > 100
    replay(trace)


@pytest.mark.parametrize(
    ("line", "text", "problem"),
    [
        (1, "", "line 1: there is no header"),
        (1, "hello", "line 1: there is no header"),
        (1, '{"format":"asyncdispatch-trace","version":2,"library":"9.0"}', "version is 2, written by 9.0.*a newer"),
        (1, '{"format":"asyncdispatch-trace","version":"x"}', "version is 'x'.*reads version 1 only"),
        (1, '{"format":"asyncdispatch-trace","version":1}', 'line 1: "began" must be'),
        (1, '{"format":"asyncdispatch-trace","version":1,"began":1,"config":{}}', 'line 1: "config" can.t be meant'),
        (3, '["submit",', "line 3: it is no JSON"),
        (3, "{}", "line 3: it is not a list"),
        (3, '["jump",1]', "line 3: there is no step 'jump'"),
        (3, '["tick",-1]', "line 3: its time -1 must be"),
        (3, '["tick",1.5]', "line 3: its time 1.5 must be"),
        (4, '["tick",0]', "line 4: its time is before that of the line above"),
        (3, '["tick",null,2]', "line 3: tick must be followed by nothing"),
        (3, '["start",null,"x"]', "line 3: 'x' is no ticket"),
        (3, '["submit",null,2,{}]', "line 3: {} is no call"),
        (3, '["cancel",null,77]', "line 3: cancel is not possible here: KeyError"),
        (
            3,
            '["submit",null,2,{"type":"t","object":["v1","Pod",null,"p","u"],"effect":"odd"}]',
            "line 3: submit is not",
        ),
        (3, '["submit",null,99,{"type":"t","object":["v1","Pod",null,"p"]}]', "line 3: it is call 2, recorded was 99"),
        (3, '["start",null,7]', "line 3: it starts 1, recorded was 7.*another version"),
    ],
)
def test_a_broken_trace_names_line_and_remedy(
    tmp_path: Path, lines: list[str], line: int, text: str, problem: str
) -> None:
    with pytest.raises(TraceError, match=problem) as caught:
        replay(read_lines(tmp_path, [*lines[: line - 1], text, *lines[line:]]))
    assert caught.value.line == line
    assert caught.value.remedy


def test_outcomes_are_compared(tmp_path: Path, path: Path) -> None:
    """A step that settles others than it did is found."""
    lines = path.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if '"told":' in line)
    items = json.loads(lines[number])
    items[-1]["told"][0][1] = "shed"
    with pytest.raises(TraceError, match=f"line {number + 1}: settled are"):
        replay(read_lines(tmp_path, [*lines[:number], json.dumps(items), *lines[number + 1 :]]))


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(TraceError, match="line 1: the file is empty"):
        read_trace(tmp_path / "empty")
    with pytest.raises(ConfigurationError, match="path"):
        read_trace(3)  # type: ignore[arg-type]


async def test_plain_functions(tmp_path: Path) -> None:
    """The commonest calls take the short ways: turns are in the trace, and what they cost is a line each."""
    await record_some(tmp_path / "trace", 200)
    names = [step.name for step in read_trace(tmp_path / "trace").steps]
    assert names.count("turn") > 150
    assert FunctionCall(after(1.0), call_type="t", target=pod())._common


async def test_a_call_that_is_cancelled_before_it_is_entered(tmp_path: Path) -> None:
    """By an observer, between its start and its first step: an attempt that was none."""

    class Cancelling(Kept):
        victim: Any = None

        def settled(self, handle: Any, outcome: Any) -> None:
            if isinstance(outcome, Expired):
                self.victim.cancel("by the observer")

    kept = Cancelling()
    with TraceRecorder(tmp_path / "trace") as recorder:
        async with Dispatcher(DispatcherConfig(max_in_flight=1), observers=(recorder, kept)) as dispatcher:
            dispatcher.submit(call(after(1.001), "first"))
            await turns()
            dispatcher.submit(call(name="expires", timeout=1.0))
            kept.victim = dispatcher.submit(call(name="victim"))
            await asyncio.sleep(5)
    assert kept.victim.settled.attempts == 0
    stops = [step.items for step in read_trace(tmp_path / "trace").steps if step.name == "stopped"]
    assert stops == [(3, 0, 0)]
    check_same(tmp_path / "trace", kept)
