"""J: credentials, connections, clocks, the loop."""

import asyncio
import time
from email.utils import formatdate

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig, IdempotencyPolicy
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.outcomes import Expired, Succeeded
from asyncdispatch.testing import EmbeddedAPIServer, answers
from tests.cases.support import UNSCHEDULABLE, applied, config_map, new_pod, now, sent
from tests.kubernetes.test_kubeconfig import written


def config_of(server):
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    }


async def test_j1_projected_token_that_is_replaced(server, tmp_path):
    """A client stopped reading its token again: at one instant every call became 401 and stayed so.

    Right: the first 401 has it read, one probe goes out, all that was held follows; nothing fails or is doubled.
    """
    token = tmp_path / "token"
    token.write_text("t1")
    server.tokens = {"t1": "alice"}
    server.delay(0.2)
    async with Cluster.connect(written(tmp_path, config_of(server))) as cluster, Dispatcher() as dispatcher:
        pods = [server.create(new_pod(f"p{n}")) for n in range(100)]
        handles = []
        for n, pod in enumerate(pods):
            if n == 60:
                server.tokens = {"t2": "alice"}
                token.write_text("t2")
            handles.append(dispatcher.submit(cluster.create(config_map(f"c{n}"))))
            handles.append(dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE])))
            await asyncio.sleep(0.05)
        for handle in handles:
            assert isinstance(await handle.outcome(), Succeeded)
    assert 1 <= sum(record.status == 401 for record in server.audit) <= 20
    assert len(applied(server, "create")) == 100


async def test_j3_credentials_that_nothing_can_mend(server, tmp_path):
    """A service account was made anew; the Pod's token carried the old uid and was refused for ever.

    Right: held behind one probe each ten seconds, not failed at once and not sent a hundred times; each ends with its
    time and the 401 as the cause, and a readiness probe can tell.
    """
    (tmp_path / "token").write_text("t1")
    server.tokens = {}
    async with Cluster.connect(written(tmp_path, config_of(server))) as cluster, Dispatcher() as dispatcher:
        await asyncio.sleep(100)
        handles = [dispatcher.submit(cluster.create(config_map(f"c{n}"), timeout=60)) for n in range(100)]
        await asyncio.sleep(30)
        assert dispatcher.statistics().unauthenticated_since == pytest.approx(100, abs=0.1)
        outcomes = [await handle.outcome() for handle in handles]
        assert now() <= 161
    assert all(isinstance(outcome, Expired) for outcome in outcomes)
    assert all("401 Unauthorized" in str(outcome.cause) for outcome in outcomes)
    assert not any(outcome.ambiguous for outcome in outcomes)
    at_first = [record for record in server.audit if record.time < 100.2]
    assert len(server.audit) - len(at_first) <= 8


async def test_j5_clock_that_leaps(server, cluster, monkeypatch):
    """A clock leap made tokens "not yet valid", and what was kept in wall-clock time broke in both directions.

    Right: no deadline, backoff, delay or memory moves; an HTTP date is read against the answer's own.
    """
    true_time, leap = time.time, 0.0
    monkeypatch.setattr("time.time", lambda: true_time() + leap)
    config = DispatcherConfig(idempotency=IdempotencyPolicy(ttl=100))
    async with Dispatcher(config) as dispatcher:
        await dispatcher.run(cluster.create(config_map("known"), idempotency_key="k"))
        server.fail(status=429, times=None, path="*/namespaces/slow/*")
        expiring = dispatcher.submit(cluster.create(config_map("e", namespace="slow"), timeout=20))
        delayed = dispatcher.submit(cluster.create(config_map("d"), not_before=10))
        leap = 7_200.0
        date, until = formatdate(true_time() - 7_200, usegmt=True), formatdate(true_time() - 7_195, usegmt=True)
        server.fail(status=429, retry_after=until, headers={"Date": date}, path="*/namespaces/asks/*")
        asking = dispatcher.submit(cluster.create(config_map("a", namespace="asks")))
        server.fail(answers.unauthorized(), times=2, path="*/namespaces/held/*")
        held = dispatcher.submit(cluster.create(config_map("h", namespace="held"), scope="other"))
        await asyncio.sleep(1)
        leap = -7_200.0
        assert isinstance(await asking.outcome(), Succeeded)
        assert 5 <= now() <= 6
        assert isinstance(await delayed.outcome(), Succeeded)
        assert now() == pytest.approx(10, abs=0.5)
        assert isinstance(await held.outcome(), Succeeded)
        assert now() <= 12
        assert isinstance(await expiring.outcome(), Expired)
        assert now() <= 20.1
        before = len(server.audit)
        await dispatcher.run(cluster.create(config_map("known"), idempotency_key="k"))
        assert len(server.audit) == before


async def test_j7_connections_that_are_dead_without_a_reset(server, cluster):
    """After a load balancer change connections swallowed everything, and every request on them hung.

    Right: one attempt's time-out, then fresh connections only; creates are looked for first.
    """
    latency = server.delay(3)
    config = DispatcherConfig(attempt_timeout=5, max_in_flight=20)
    pods = [server.create(new_pod(f"p{n}")) for n in range(110)]
    async with Dispatcher(config) as dispatcher:
        handles = []
        for n, pod in enumerate(pods):
            handles.append(dispatcher.submit(cluster.create(config_map(f"c{n}"), idempotency_key=f"k{n}")))
            handles.append(dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE])))
        await asyncio.sleep(1)
        latency.remove()
        server.darken()
        began = now()
        for handle in handles:
            assert isinstance(await handle.outcome(), Succeeded)
        assert now() - began <= 2 * config.attempt_timeout + 1
    assert len(applied(server, "create")) == 110
    assert len(sent(server, "POST")) == 110
    assert {f"c{n}" for n in range(10)} <= {record.name for record in sent(server, "GET")}


async def test_j_certificates_that_are_replaced(tmp_path):
    """The kind: a new authority, of which the client learns later than the server, costs time and nothing else."""
    async with EmbeddedAPIServer(auto_namespaces=True, tls=True) as server:
        (tmp_path / "token").write_text("t1")
        server.tokens = {"t1": "alice"}
        config = config_of(server)
        config["clusters"][0]["cluster"]["certificate-authority"] = server.ca_file
        async with Cluster.connect(written(tmp_path, config)) as cluster, Dispatcher() as dispatcher:
            await dispatcher.run(cluster.create(config_map("before")))
            server.rotate_certificate(new_ca=True, publish=False)
            server.close_connections()
            asyncio.get_running_loop().call_later(30, server.publish_ca)
            handles = [dispatcher.submit(cluster.create(config_map(f"c{n}"), timeout=100)) for n in range(50)]
            for handle in handles:
                assert isinstance(await handle.outcome(), Succeeded)
            assert 30 <= now() <= 42
        assert len(applied(server, "create")) == 51
