"""Faults: which requests they meet, what the client gets, and what the audit list says about it."""

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from asyncdispatch import ConfigurationError
from asyncdispatch.testing import AuditRecord, EmbeddedAPIServer
from asyncdispatch.testing.apiserver.faults import Seconds
from tests.testing.apiserver.support import POD, PODS, Http, binding, pod

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_fail_meets_what_matches(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod())
    fault = server.fail(times=2, status=429, retry_after=1, method="patch", path="*/status")
    assert (await http.patch(POD, {})).status == 200
    for left in (1, 0):
        reply = await http.patch(f"{POD}/status", {"status": {"message": "m"}})
        assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
        assert reply.json["reason"] == "TooManyRequests"
        assert reply.json["details"] == {"retryAfterSeconds": 1}
        assert fault.remaining == left
    assert (await http.patch(f"{POD}/status", {"status": {"message": "m"}})).status == 200
    assert fault.hits == 2
    assert server.faults == ()
    assert [record.applied for record in server.audit] == [False, False, False, True]
    assert [record.fault for record in server.audit] == [None, "fail 429", "fail 429", None]


async def test_a_failure_says_what_it_is_told_to(server: EmbeddedAPIServer, http: Http) -> None:
    server.fail(status=500, message="etcdserver: request timed out", reason="")
    reply = await http.get(PODS)
    assert (reply.json["message"], reply.json["code"]) == ("etcdserver: request timed out", 500)
    assert "reason" not in reply.json
    server.fail(status=409, details={"kind": "resourcequotas", "name": "q"})
    reply = await http.get(PODS)
    assert (reply.json["reason"], reply.json["details"]) == ("Conflict", {"kind": "resourcequotas", "name": "q"})


async def test_a_failure_with_a_body_of_its_own(server: EmbeddedAPIServer, http: Http) -> None:
    server.fail(status=429, body="Too many requests, please try again later.", headers={"X-Extra": "1"})
    reply = await http.get(PODS)
    assert (reply.text, reply.headers["X-Extra"]) == ("Too many requests, please try again later.", "1")
    assert reply.headers["Content-Type"].startswith("text/plain")
    server.fail(status=503, body={"any": "thing"}, content_type="application/x-thing", retry_after="Sun, 06 Nov 1994")
    reply = await http.get(PODS)
    assert (reply.json, reply.headers["Content-Type"]) == ({"any": "thing"}, "application/x-thing")
    assert reply.headers["Retry-After"] == "Sun, 06 Nov 1994"


async def test_a_failure_after_the_write_landed(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod())
    server.fail(status=500, reason="", message="etcdserver: request timed out", applied=True, verb="bind")
    assert (await http.bind(binding())).status == 500
    assert server.get("Pod", "web")["spec"]["nodeName"] == "n1"
    (record,) = server.audit
    assert (record.applied, record.status, record.resource_version) == (True, 500, server.resource_version)


async def test_a_failure_after_a_write_that_was_refused(server: EmbeddedAPIServer, http: Http) -> None:
    """What was refused did not land, whatever the client is told."""
    server.fail(status=500, applied=True)
    assert (await http.bind(binding())).status == 500
    assert not server.audit[0].applied


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("how", ["drop", "reset"])
async def test_lost_answers(how: str, applied: bool, server: EmbeddedAPIServer, http: Http) -> None:
    """The connection is closed, or reset, before or after the write."""
    server.put(pod())
    error = aiohttp.ServerDisconnectedError if how == "drop" else aiohttp.ClientOSError
    getattr(server, how)(times=1, applied=applied, method="POST", path="*/binding")
    with pytest.raises(error):
        await http.bind(binding())
    assert ("nodeName" in server.get("Pod", "web")["spec"]) is applied
    (record,) = server.audit
    assert (record.status, record.answered, record.applied, record.fault) == (None, False, applied, how)
    assert record.finished is not None
    assert (await http.bind(binding())).status == (409 if applied else 201)


async def test_a_body_that_is_too_large_is_a_request_like_others(server: EmbeddedAPIServer, http: Http) -> None:
    """It is in the audit list, without its body, takes its time, and meets faults; other refusals come first."""
    huge = "x" * (4 << 20)
    server.latency = 2
    server.fail(status=503)
    replies = [await http("POST", PODS, huge, headers={"Audit-ID": str(number)}) for number in range(2)]
    assert [reply.status for reply in replies] == [503, 413]
    assert [reply.headers["Audit-ID"] for reply in replies] == ["0", "1"]
    assert [(one.status, one.fault, one.verb, one.body) for one in server.audit] == [
        (503, "fail 503", "create", None),
        (413, None, "create", None),
    ]
    assert server.audit[1].finished == pytest.approx(server.audit[1].time + 2, abs=0.1)
    server.put(pod())
    assert (await http("DELETE", POD, huge)).status == 413
    assert (await http("POST", f"{PODS}s", huge)).status == 404
    server.tokens = {}
    assert (await http("POST", PODS, huge)).status == 403


async def test_latency_is_there_and_back(server: EmbeddedAPIServer, http: Http) -> None:
    server.latency = 2
    begun = now()
    await http.post(PODS, pod())
    assert now() - begun == pytest.approx(2, abs=0.1)
    record = server.audit[0]
    assert record.applied_at is not None
    assert record.finished is not None
    assert record.applied_at - record.time == pytest.approx(1, abs=0.1)
    assert record.finished - record.time == pytest.approx(2, abs=0.1)


async def test_requests_wait_side_by_side(server: EmbeddedAPIServer, http: Http) -> None:
    """A hundred at once take as long as one."""
    server.latency = 0.05
    begun = now()
    replies = await asyncio.gather(*(http.post(PODS, pod(f"p{number}")) for number in range(100)))
    assert {reply.status for reply in replies} == {201}
    assert now() - begun == pytest.approx(0.05, abs=0.01)


def drawn(source: random.Random) -> float:
    return source.uniform(1, 3)


@pytest.mark.parametrize("drawn", [drawn, (1, 3)])
async def test_latency_may_be_drawn(drawn: Seconds) -> None:
    """By a function or evenly from a range, from random numbers with the server's seed: the same in every run."""

    async def times() -> list[float]:
        async with EmbeddedAPIServer(latency=drawn, seed=7) as one, aiohttp.ClientSession() as session:
            for _ in range(3):
                await Http(one, session).get(PODS)
            return [round((record.finished or 0) - record.time, 1) for record in one.audit]

    first = await times()
    assert first == await times()
    assert len(set(first)) > 1
    assert all(1 <= seconds <= 3 for seconds in first)


async def test_latency_may_be_said_by_a_function(server: EmbeddedAPIServer, http: Http) -> None:
    """One that needs no argument is given none, also where it could take one; so too for a delay."""
    turns = iter([1.0, 3.0])

    def said(more: Any = 0.5) -> float:
        return float(next(turns) + more)

    server.latency = said
    assert [(await http.get(PODS)).status for _ in range(2)] == [200, 200]
    assert [round((one.finished or 0) - one.time, 1) for one in server.audit] == [1.5, 3.5]
    server.latency = 0
    server.delay(iter([4.0]).__next__, times=1)
    assert (await http.get(PODS)).status == 200
    assert round((server.audit[-1].finished or 0) - server.audit[-1].time, 1) == 4


@pytest.mark.parametrize(
    "seconds",
    [-1, True, None, float("inf"), "slow", (1,), (1, 2, 3), (2, 1), (-1, 1), (0, "1"), [1, 2], lambda one, two: 1.0],
)
async def test_a_latency_that_is_no_time(seconds: Any, server: EmbeddedAPIServer) -> None:
    """Is refused at once, and what was set stays."""
    server.latency = 1
    with pytest.raises(ConfigurationError) as caught:
        server.latency = seconds
    assert (caught.value.field, server.latency) == ("latency", 1)
    assert "a pair (least, most)" in caught.value.remedy
    with pytest.raises(ConfigurationError):
        EmbeddedAPIServer(latency=seconds)
    with pytest.raises(ConfigurationError):
        server.delay(seconds)
    assert server.faults == ()


@pytest.mark.parametrize("applied", [False, True])
async def test_delays_are_before_or_after_the_write(applied: bool, server: EmbeddedAPIServer, http: Http) -> None:
    """A client that gives up does not stop a write that is late."""
    fault = server.delay(10, times=1, applied=applied, verb="create")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(http.post(PODS, pod()), 3)
    assert (server.find("Pod", "web") is not None) is applied
    assert server.audit[0].applied is applied
    await asyncio.sleep(10)
    assert server.audit[0].applied
    assert not server.audit[0].answered
    assert fault.hits == 1


async def test_delays_may_be_drawn_and_add_up(server: EmbeddedAPIServer, http: Http) -> None:
    server.delay(lambda source: 1.0, name="a")
    server.delay(2, name="b", times=1)
    begun = now()
    await http.get(PODS)
    assert now() - begun == pytest.approx(3, abs=0.1)
    assert server.audit[0].fault == "a"


async def test_the_first_ending_wins_and_the_others_wait(server: EmbeddedAPIServer, http: Http) -> None:
    first = server.fail(status=503)
    second = server.fail(status=429)
    assert [(await http.get(PODS)).status for _ in range(3)] == [503, 429, 200]
    assert (first.hits, second.hits) == (1, 1)


async def test_until_removed(server: EmbeddedAPIServer, http: Http) -> None:
    fault = server.fail(times=None, status=500)
    assert [(await http.get(PODS)).status for _ in range(3)] == [500] * 3
    assert (fault.remaining, fault.hits) == (None, 3)
    assert repr(fault) == "<Fault 'fail 500': 3 hits, until removed>"
    fault.remove()
    fault.remove()
    assert (await http.get(PODS)).status == 200


async def test_predicates_see_the_audit_record(server: EmbeddedAPIServer, http: Http) -> None:
    seen: list[AuditRecord] = []

    def when(record: AuditRecord) -> bool:
        seen.append(record)
        return record.name == "b" and record.verb == "create"

    server.fail(status=503, when=when)
    assert [(await http.post(PODS, pod(name))).status for name in "abc"] == [201, 503, 201]
    assert seen[0].body["metadata"]["name"] == "a"


async def test_hooks_run_right_before_the_write(server: EmbeddedAPIServer, http: Http) -> None:
    """Another writer comes between read and write; a rival binds first."""
    stored = server.create(pod())

    def other_writer(record: AuditRecord) -> None:
        server.patch_object("Pod", {"metadata": {"labels": {"n": str(record.number)}}}, record.name)

    hook = server.hook(other_writer, times=1, method="PATCH")
    fenced: Any = {"metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]}, "status": {"message": "m"}}
    assert (await http.patch(f"{POD}/status", fenced)).status == 409
    assert hook.hits == 1

    async def rival(record: AuditRecord) -> None:
        await asyncio.sleep(1)
        server.bind(record.name, "n9")

    server.hook(rival, path="*/binding")
    assert (await http.bind(binding())).status == 409
    assert server.get("Pod", "web")["spec"]["nodeName"] == "n9"


async def test_what_a_hook_returns_means_nothing(server: EmbeddedAPIServer, http: Http) -> None:
    """Unless it can be awaited: `bind` returns the Pod, and a coroutine may come from a plain function."""
    server.create(pod())
    waited: list[AuditRecord] = []

    async def wait(record: AuditRecord) -> None:
        waited.append(record)

    server.hook(lambda record: server.bind("web", "n1"), times=1, method="GET")
    server.hook(lambda record: wait(record), method="GET")
    reply = await http.get(POD)
    assert (reply.status, reply.json["spec"]["nodeName"]) == (200, "n1")
    assert len(waited) == 1


async def test_rate_limit(server: EmbeddedAPIServer, http: Http) -> None:
    """What is too much gets a plain-text 429 with Retry-After: 1, as from Priority and Fairness."""
    fault = server.rate_limit(qps=2, burst=3)
    replies = [await http.get(PODS) for _ in range(5)]
    assert [reply.status for reply in replies] == [200, 200, 200, 429, 429]
    refused = replies[-1]
    assert refused.headers["Retry-After"] == "1"
    assert refused.headers["Content-Type"].startswith("text/plain")
    assert refused.text.strip() == "Too many requests, please try again later."
    await asyncio.sleep(1)
    assert [(await http.get(PODS)).status for _ in range(3)] == [200, 200, 429]
    assert (fault.hits, server.audit[-1].fault) == (3, "rate limit")


async def test_a_watch_can_fail_too(server: EmbeddedAPIServer, http: Http) -> None:
    server.fail(status=503, body="", verb="watch")
    assert (await http.get(PODS)).status == 200
    assert (await http.get(PODS, watch="1")).status == 503


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.fail(times=0), "times: 0 "),
        (lambda s: s.fail(times=True), "times: True "),
        (lambda s: s.fail(status=99), "status: 99 "),
        (lambda s: s.fail(status="500"), "status: '500' "),
        (lambda s: s.fail(retry_after=-1), "retry_after: -1 "),
        (lambda s: s.fail(body=[]), "body: a list "),
        (lambda s: s.fail(method="FETCH"), "method: 'FETCH' "),
        (lambda s: s.drop(path="pods"), "path: 'pods' "),
        (lambda s: s.reset(when="always"), "when: 'always' "),
        (lambda s: s.delay(-1), "seconds=-1: "),
        (lambda s: s.delay(float("nan")), "seconds=nan: "),
        (lambda s: s.hook(None), "fn: None "),
        (lambda s: s.rate_limit(0), "qps: 0 "),
        (lambda s: s.rate_limit(5, burst=0), "burst: 0 "),
        (lambda s: setattr(s, "latency", "slow"), "latency='slow': "),
        (lambda s: setattr(s, "watch_lag", -1), "watch_lag=-1: "),
        (lambda s: EmbeddedAPIServer(watch_gone="maybe"), "watch_gone: 'maybe' "),
        (lambda s: EmbeddedAPIServer(watch_window=-1), "watch_window: -1 "),
        (lambda s: EmbeddedAPIServer(bookmark_interval=0), "bookmark_interval: 0 "),
        (lambda s: s.register("v", "Thing", "things"), "api_version: 'v' "),
        (lambda s: s.register("a.io/v1", "thing", "things"), "kind: 'thing' "),
        (lambda s: s.register("a.io/v1", "Thing", "Things"), "plural: 'Things' "),
        (lambda s: s.register("example.com/v1", "Widget", "widgets"), "plural: 'widgets' "),
    ],
)
async def test_bad_arguments_are_named(call: Any, said: str, server: EmbeddedAPIServer) -> None:
    """The error names the field and the value, says what to give, and nothing is set up."""
    with pytest.raises(ValueError, match="; ") as caught:
        call(server)
    assert str(caught.value).startswith(said)
    assert server.faults == ()
