"""Leases over HTTP: who leads, what a term is worth, and how it ends."""

import asyncio
import logging
import socket
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from asyncdispatch import Dispatcher, DispatcherClosed, ObjectRef, StaleContext
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster, Lease, LeaseState
from asyncdispatch.kubernetes._election import Kind, Request
from asyncdispatch.kubernetes._elector import body_of
from asyncdispatch.kubernetes._record import HOLDER, Record
from asyncdispatch.outcomes import Cancelled, Expired, Succeeded
from asyncdispatch.testing import EmbeddedAPIServer
from tests.cases.support import config_map, hold_loop, now, sent

PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/leader"


def lease_of(cluster: Cluster, name: str = "me", **timing: float) -> Lease:
    return cluster.lease("leader", "ns", name, **timing)


def holder(server) -> str:
    return server.get("Lease", "leader", namespace="ns")["spec"].get("holderIdentity", "")


def named(record) -> str | None:
    """Whom a request names as the holder."""
    return record.body["spec"].get("holderIdentity") if isinstance(record.body, dict) else None


@asynccontextmanager
async def led(cluster, name="me"):
    """Lease, dispatcher and context of one that leads."""
    async with lease_of(cluster, name) as lease, Dispatcher() as dispatcher, lease.leadership(dispatcher) as leading:
        yield lease, dispatcher, leading


async def test_to_lead_and_to_leave(server, cluster):
    """The Lease is made, held and renewed, and given back at the end."""
    async with lease_of(cluster) as lease, Dispatcher() as dispatcher:
        assert (lease.state, lease.is_leader, lease.holder) == (LeaseState.IDLE, False, "")
        assert not server.audit
        async with lease.leadership(dispatcher) as leading:
            assert lease.is_leader
            assert lease.holder == lease.identity == holder(server)
            assert leading.valid_until == pytest.approx(10, abs=0.2)
            spec = server.get("Lease", "leader", namespace="ns")["spec"]
            assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (15, 0)
            assert spec["acquireTime"] == spec["renewTime"]
            await asyncio.sleep(60)
            assert leading.ended is None
            await dispatcher.run(cluster.create(config_map(), context=leading))
        assert lease.is_leader
    assert holder(server) == ""
    assert lease.state is LeaseState.IDLE
    renewals = sent(server, "PUT", path="/leader")
    assert 25 <= len(renewals) <= 32
    assert [record.kind for record in server.audit if record.method == "POST"] == ["Lease", "ConfigMap"]


async def test_the_next_one_leads_at_once(server, cluster):
    """One that leaves in peace is followed within a candidate's pause; the Lease tells the story."""
    order = []

    async def replica(name, begins, stays):
        await asyncio.sleep(begins)
        async with led(Cluster(server.api_client()), name):
            order.append((name, now()))
            await asyncio.sleep(stays)

    await asyncio.gather(replica("a", 0, 20), replica("b", 1, 20))
    (first, _), (second, when) = order
    assert (first, second) == ("a", "b")
    assert 20 <= when <= 20 + 4.5
    assert server.get("Lease", "leader", namespace="ns")["spec"]["leaseTransitions"] == 1


async def test_a_crashed_one_is_waited_out(server, cluster):
    """Its Lease is taken when nothing has changed for its duration, and not a moment sooner."""
    server.create(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "leader", "namespace": "ns", "labels": {"theirs": "kept"}},
            "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"},
        }
    )
    async with led(cluster) as (lease, _, _):
        assert 15 <= now() <= 15.5
        assert lease.statistics().terms == 1
    assert server.get("Lease", "leader", namespace="ns")["metadata"]["labels"] == {"theirs": "kept"}


async def test_what_is_lost_ends_before_another_may_hold_it(server, cluster):
    """No renewal gets through: the context ends, the block is cancelled and left in silence, and then a rival leads."""
    rival_leads = []

    async def rival():
        await asyncio.sleep(5)
        async with led(Cluster(server.api_client()), "rival"):
            rival_leads.append(now())

    async with lease_of(cluster) as lease, Dispatcher() as dispatcher:
        task = asyncio.create_task(rival())
        async with lease.leadership(dispatcher) as leading:
            await asyncio.sleep(20)
            fault = server.fail(status=503, times=None, method="PUT", when=lambda r: named(r) == lease.identity)
            await asyncio.sleep(1)
            server.fail(status=503, times=None, path="*/configmaps")
            handle = dispatcher.submit(cluster.create(config_map(), context=leading))
            await asyncio.sleep(600)
        assert 20 + 8 <= now() <= 20 + 10.1
        assert leading.ended is not None
        assert isinstance(handle.settled, (Cancelled, Expired))
        with pytest.raises(StaleContext):
            dispatcher.submit(cluster.create(config_map(), context=leading))
        assert (lease.state, lease.is_leader) == (LeaseState.IDLE, False)
        ended = now()
        await task
        assert rival_leads[0] > ended + 3
        fault.remove()
        async with lease.leadership(dispatcher) as again:
            assert again.epoch > leading.epoch
        assert lease.statistics().terms == 2


async def test_a_pods_context_has_the_term_as_its_parent(server, cluster):
    """Whatever is decided under the term ends with it."""
    async with lease_of(cluster) as lease, Dispatcher() as dispatcher:
        async with lease.leadership(dispatcher) as leading:
            pod = dispatcher.contexts.begin(config_map(), parent=leading)
            server.patch_object("Lease", {"spec": {"holderIdentity": "thief"}}, "leader", namespace="ns")
            await asyncio.sleep(60)
        assert now() < 3
        assert pod.ended == leading.ended
        assert "thief" in str(pod.ended)


async def test_one_term_in_two_dispatchers(server, cluster):
    """Each has a context of its own; the same term entered again gives the same context."""
    async with lease_of(cluster) as lease, Dispatcher() as one, Dispatcher() as two:
        async with lease.leadership(one) as first, lease.leadership(two) as second, lease.leadership(one) as again:
            assert first is again
            assert first is not second
            server.patch_object("Lease", {"spec": {"holderIdentity": "thief"}}, "leader", namespace="ns")
            await asyncio.sleep(60)
        assert first.ended
        assert second.ended


async def test_an_error_of_the_block_is_its_own(server, cluster):
    """Nothing is swallowed but the cancellation of a lost term; the lease itself goes on."""
    async with lease_of(cluster) as lease, Dispatcher() as dispatcher:
        with pytest.raises(TimeoutError, match="mine"):
            async with lease.leadership(dispatcher):
                raise TimeoutError("mine")
        with pytest.raises(KeyError):
            async with lease.leadership(dispatcher):
                raise KeyError("mine")
        await asyncio.sleep(30)
        assert lease.is_leader


async def test_waiting_can_be_cancelled(server, cluster):
    """A candidate whose waiter is gone is none any more, and never holds what nobody works under."""
    async with led(Cluster(server.api_client()), "other"), lease_of(cluster) as lease, Dispatcher() as dispatcher:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), lease.leadership(dispatcher):
                raise AssertionError("not reached")
        assert lease.state is LeaseState.IDLE
        looks = len(server.audit)
    await asyncio.sleep(60)
    ours = [record for record in server.audit[looks:] if named(record) == lease.identity]
    assert not ours


async def test_nobody_there_when_it_comes(server, cluster):
    """Acquired for a dispatcher that has closed meanwhile, it is given back at once."""
    async with lease_of(cluster) as lease:
        async with Dispatcher() as dispatcher:
            pass
        with pytest.raises(DispatcherClosed):
            async with lease.leadership(dispatcher):
                pass
        await asyncio.sleep(1)
        assert lease.state is LeaseState.IDLE
        assert holder(server) == ""


async def test_over_tls():
    """Its own connections trust what the client trusts."""
    async with EmbeddedAPIServer(auto_namespaces=True, tls=True) as server, led(Cluster(server.api_client())) as parts:
        assert parts[0].is_leader


async def test_a_context_ended_by_hand_ends_the_term(server, cluster):
    """Whoever ends the leadership's context wants no more of it; others wait it out, since writes may be under way."""
    async with lease_of(cluster) as lease, Dispatcher() as dispatcher:
        async with lease.leadership(dispatcher) as leading:
            leading.end("stepping down")
            await asyncio.sleep(60)
        assert now() < 3
        assert lease.state is LeaseState.IDLE
        assert holder(server) == lease.identity


async def test_wrong_nesting_is_safe(server, cluster, caplog):
    """Left with the dispatcher still at work, the lease is not given back but runs out, and says what is wrong."""
    server.delay(5, method="POST", path="*/configmaps")
    async with Dispatcher() as dispatcher:
        async with lease_of(cluster) as lease, lease.leadership(dispatcher) as leading:
            handle = dispatcher.submit(cluster.create(config_map(), context=leading))
            waiting = dispatcher.submit(cluster.create(config_map("later"), context=leading, not_before=2))
            await asyncio.sleep(1)
        assert leading.ended
        assert isinstance(waiting.settled, Cancelled)
        assert holder(server) == lease.identity
    assert not isinstance(handle.settled, Succeeded)
    assert any("enter the lease before" in record.message for record in caplog.records)


async def test_wrong_nesting_with_nothing_under_way(server, cluster):
    """Then there is nothing to wait for, and the lease is given back."""
    async with Dispatcher() as dispatcher, lease_of(cluster) as lease, lease.leadership(dispatcher) as leading:
        await dispatcher.run(cluster.create(config_map(), context=leading))
    assert holder(server) == ""


@pytest.mark.parametrize("in_flight", [True, False])
async def test_left_by_an_error(server, cluster, in_flight):
    """The dispatcher closes at once: the lease is given back unless a write was cut off that may yet land."""
    server.delay(5, method="POST", path="*/configmaps")

    async def program():
        async with led(cluster) as (_, dispatcher, leading):
            if in_flight:
                dispatcher.submit(cluster.create(config_map(), context=leading))
            await asyncio.sleep(1)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await program()
    assert (holder(server) == "") is not in_flight


async def test_renewals_have_connections_of_their_own(server):
    """The client's pool is full and the dispatcher's seats are taken: renewals go on (rule R8)."""
    client = server.api_client()
    client.rest_client.pool_manager.connector._limit = 1
    cluster = Cluster(client)
    server.delay(30, path="*/configmaps")
    async with led(cluster) as (lease, dispatcher, leading):
        handles = [dispatcher.submit(cluster.create(config_map(f"c{n}"), context=leading)) for n in range(3)]
        await asyncio.sleep(40)
        assert lease.is_leader
        assert leading.ended is None
        dispatcher.forget(handles[0].call.target, "enough")
        for handle in handles:
            handle.cancel("enough")


async def test_a_black_hole_is_left_behind(server, cluster):
    """A renewal that nobody answers has a third of the deadline; the next one takes another connection."""
    async with led(cluster) as (lease, _, leading):
        await asyncio.sleep(5)
        fault = server.delay(3600, method="PUT", path="*/leases/*", times=1)
        await asyncio.sleep(20)
        assert fault.hits == 1
        assert leading.ended is None
        assert lease.statistics().failures == 1


@pytest.mark.parametrize("fault", ["401", "403", "429", "500", "503", "text 404", "reset", "garbage"])
async def test_trouble_shorter_than_the_deadline(server, cluster, fault):
    """Whatever is answered, it is tried again until the deadline, and one success is enough."""
    async with led(cluster) as (lease, _, leading):
        await asyncio.sleep(3)
        match = {"path": "*/leases/*", "times": None}
        if fault == "reset":
            made = server.reset(**match)
        elif fault == "garbage":
            made = server.fail(status=200, body="not JSON", **match)
        elif fault == "text 404":
            made = server.fail(status=404, body="404 page not found", **match)
        else:
            made = server.fail(status=int(fault), retry_after=3600, **match)
        await asyncio.sleep(7)
        made.remove()
        await asyncio.sleep(30)
        assert leading.ended is None
        statistics = lease.statistics()
        assert 2 <= statistics.failures <= 5
        assert statistics.last_error
        assert statistics.valid_for is not None


async def test_a_deleted_lease_is_lost_and_made_again(server, cluster):
    """The term ends with the next renewal; the next one begins when whoever else had it must have noticed."""
    async with lease_of(cluster) as lease, Dispatcher() as dispatcher:
        async with lease.leadership(dispatcher):
            server.delete("Lease", "leader", namespace="ns")
            await asyncio.sleep(60)
        lost = now()
        assert lost < 3
        async with lease.leadership(dispatcher):
            assert lost + 15 <= now() <= lost + 16
    assert [r.status for r in sent(server, "POST")] == [201, 201]


async def test_a_stall_is_reported(server, cluster, caplog):
    """The loop was held for longer than the term: lost by the clock, nothing renewed in the name of the past."""
    caplog.set_level(logging.WARNING)
    async with lease_of(cluster) as lease, Dispatcher() as dispatcher:
        async with lease.leadership(dispatcher) as leading:
            await asyncio.sleep(1)
            hold_loop(19)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not lease.is_leader
            await asyncio.sleep(60)
        assert leading.ended
        assert now() < 20.1
        assert lease.state is LeaseState.IDLE
    assert any("event loop was held" in record.message for record in caplog.records)


async def test_nothing_is_left_behind(server, cluster):
    """No task, no connection, whatever the end: also one that is cancelled while the server does not answer."""

    async def program():
        async with led(cluster):
            await asyncio.sleep(5)
            server.delay(3600, path="*/leases/*")
            await asyncio.sleep(3600)

    before = asyncio.all_tasks()
    task = asyncio.create_task(program())
    await asyncio.sleep(6)
    task.cancel()
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() <= 7.1
    assert not {other for other in asyncio.all_tasks() - before if "asyncdispatch" in other.get_name()}


async def test_entered_once(server, cluster):
    """A lease that was left is left; one that was not entered can't lead."""
    lease = lease_of(cluster)
    async with Dispatcher() as dispatcher:
        with pytest.raises(ConfigurationError, match="not entered"):
            async with lease.leadership(dispatcher):
                pass
        async with lease:
            with pytest.raises(ConfigurationError, match="dispatcher"):
                async with lease.leadership(None):  # type: ignore[arg-type]
                    pass
        with pytest.raises(StaleContext, match="was left"):
            async with lease.leadership(dispatcher):
                pass
        with pytest.raises(ConfigurationError, match="once"):
            async with lease:
                pass


def test_each_renewal_is_a_change():
    """Also if the wall clock stands still or has jumped back: who waits would not see what changes nothing."""
    wall = datetime(2026, 1, 2, tzinfo=UTC)
    base = Record(
        {
            "metadata": {"uid": "u", "annotations": {HOLDER: "me_1", "a": "b"}},
            "spec": {"holderIdentity": "me", "renewTime": "2026-01-02T00:00:00.000000Z"},
        }
    )
    ref = ObjectRef("coordination.k8s.io/v1", "Lease", "ns", "leader")
    body = body_of(Request(Kind.RENEW, 0, 1, base), ref, "me_1", 15, wall)
    assert body["spec"]["renewTime"] == "2026-01-02T00:00:00.000001Z"
    assert "acquireTime" not in body["spec"]
    assert body["metadata"]["annotations"] == {HOLDER: "me_1", "a": "b"}


@pytest.mark.parametrize(
    ("named", "told", "holder"),
    [
        ("me", "me_1", "me_1"),
        ("me", None, "me"),
        ("me", 7, "me"),
        ("me", "other_1", "me"),  # of a holder before, whose annotation another client has kept
        ("a", "a_b_1", "a"),
        (None, "me_1", ""),
        (None, "_1", ""),
    ],
)
def test_a_holder_is_the_participant_behind_the_identity(named, told, holder):
    """By the annotation, if it is of whom the Lease names; other clients write none, and keep what is there."""
    record = Record({"metadata": {"annotations": {HOLDER: told}}, "spec": {"holderIdentity": named}})
    assert record.holder == holder
    assert Record({"metadata": None, "spec": {"holderIdentity": "me"}}).holder == "me"


async def test_the_identity_is_the_one_that_was_given(server, cluster):
    """In the Lease as well, as with client-go."""
    async with led(cluster, "id-a") as (lease, _, _):
        assert lease.identity == lease.holder == holder(server) == lease.statistics().identity == "id-a"
        assert "'id-a'" in str(server.get("Lease", "leader", namespace="ns")["spec"])


async def test_two_of_one_identity_are_rivals_all_the_same(server, cluster):
    """A mistake, but nobody is taken for another: only the one that has acquired the Lease leads."""
    async with led(cluster, "same") as (first, _, _), lease_of(cluster, "same") as second, Dispatcher() as dispatcher:
        assert first.identity == second.identity == "same"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60), second.leadership(dispatcher):
                pass
        assert second.holder == first.identity
        assert first.is_leader


async def test_one_that_is_started_again_under_its_identity_waits(server, cluster):
    """R7: its former life may have writes on the way until its term is over; its renewals count as any other's."""
    server.fail(status=503, times=None, method="PUT", when=lambda r: named(r) is None)  # it can't give the Lease back
    async with led(cluster) as (_, _, leading):
        pass
    assert holder(server) == "me"
    over = leading.valid_until
    async with led(cluster) as (lease, _, _):
        assert now() >= over + 4.5
        assert lease.statistics().terms == 1
        lease_now = server.get("Lease", "leader", namespace="ns")["spec"]
        assert lease_now["leaseTransitions"] == 1


async def test_one_whose_claim_was_answered_by_nobody_knows_its_own(server, cluster):
    """H5: the claim was applied, and its answer lost. A read shows that we hold it; there is nobody to wait for."""
    server.drop(applied=True, method="POST")
    async with led(cluster) as (lease, _, _):
        assert now() < 6
        assert lease.is_leader


async def test_the_default_identity(cluster):
    """The host's name says which Pod it is; what follows is each one's own."""
    first, second = cluster.lease("leader", "ns").identity, cluster.lease("leader", "ns").identity
    assert first != second
    assert first.startswith(f"{socket.gethostname()}_")
    assert "leader" in repr(cluster.lease("leader", "ns"))
    assert cluster.lease("leader", "ns").statistics().requests == 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("Leader", "ns"), "name"),
        (("", "ns"), "name"),
        (("a/b", "ns"), "name"),
        (("leader", ""), "namespace"),
        (("leader", None), "namespace"),
        (("leader", "ns", ""), "identity"),
        (("leader", "ns", "a\nb"), "identity"),
        (("leader", "ns", 3), "identity"),
    ],
)
async def test_names_that_can_not_be_meant(cluster, arguments, field):
    """Refused at once, before anything is sent."""
    with pytest.raises(ConfigurationError) as caught:
        cluster.lease(*arguments)
    assert caught.value.field == field


async def test_options_that_there_are_not(cluster):
    """A misspelt option is named, with those that there are."""
    with pytest.raises(ConfigurationError, match="renew_deadline"):
        cluster.lease("leader", "ns", renew_dead_line=3)
    with pytest.raises(ConfigurationError, match="lease_duration"):
        cluster.lease("leader", "ns", lease_duration=5)
