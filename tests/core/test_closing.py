"""Laws L11, L15 and L19: cancelling, forgetting, draining, closing; nothing is left behind."""

import pytest

from asyncdispatch.calls import Effect
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import DispatcherClosed
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Succeeded
from tests.core.driver import Driver
from tests.core.words import CREATE, HOLD, LATER, PERMANENT, READ, RETRY, WRITE, Call, node, pod


def crowd(driver: Driver) -> None:
    """A call in every waiting state, and two in flight."""
    context = driver.begin(pod("ctx"), requires=("r",))
    driver.submit(target=pod("delayed"), not_before=5.0)
    driver.submit(target=pod("requires"), context=context, awaits_prerequisites=True)
    for name, kind in (("backoff", RETRY), ("later", LATER), ("held", HOLD)):
        entry = driver.submit(target=pod(name))
        assert driver.start() is entry
        driver.fail(entry, kind, delay=5.0, scope=name)
    flying = [driver.submit(target=pod("flying")), driver.submit(target=pod("keyed"), idempotency_key="k")]
    assert driver.start_all() == flying
    driver.submit(target=pod("flying"))
    driver.submit(target=pod("keyed"), idempotency_key="k")
    driver.submit(target=pod("queued"), call_type="full")


CONFIG = DispatcherConfig(max_in_flight=2)


def test_close_resolves_every_handle() -> None:
    """L15: at once, but for those in flight, which are told when their attempts have ended."""
    driver = Driver(CONFIG)
    crowd(driver)
    driver.close("shutting down")
    waiting = set(driver.handles) - set(driver.outcomes)
    assert {driver.handles[ticket].lead.call.target.name for ticket in waiting} == {"flying", "keyed"}
    assert len(driver.stopping) == 2
    assert all(isinstance(outcome, Cancelled) for outcome in driver.outcomes.values())
    for entry in list(driver.flying.values()):
        driver.stop(entry)
    assert set(driver.handles) == set(driver.outcomes)
    driver.finish()


def test_after_close_nothing_is_accepted_or_started() -> None:
    """L15, upstream's close: it says so, instead of taking calls that nobody will make."""
    driver = Driver(CONFIG)
    crowd(driver)
    driver.close("bye")
    for entry in list(driver.flying.values()):
        driver.fail(entry, RETRY)
    with pytest.raises(DispatcherClosed, match="bye"):
        driver.submit()
    with pytest.raises(DispatcherClosed):
        driver.begin()
    driver.advance(60.0)
    assert driver.start() is None
    driver.finish()


def test_an_attempt_that_does_not_end_does_not_hold_up_close() -> None:
    """L15, L19, case D9: five seconds after it was asked, its caller is told; its lane and seat stay its own."""
    driver = Driver()
    entry = driver.submit()
    driver.start()
    driver.close()
    driver.advance(5.1)
    assert driver.outcome(entry, Cancelled).ambiguous
    assert driver.core.seats.taken == 1
    driver.succeed(entry)
    assert driver.core.seats.taken == 0
    driver.finish()


def test_closing_after_a_stall_tells_each_handle_once() -> None:
    """L1, L15: one handle's end may end another that is due as well."""
    driver = Driver()
    context = driver.begin(requires=("r",))
    driver.submit(target=pod("a"), context=context, prerequisite="r", timeout=1.0)
    driver.submit(target=pod("b"))
    bind = driver.submit(target=pod("c"), context=context, awaits_prerequisites=True, timeout=1.0)
    driver.stall(2.0)
    driver.close()
    driver.outcome(bind, Failed)
    driver.finish()


def test_drain_finishes_what_is_there() -> None:
    """L15: nothing new is accepted; the rest goes on, retries included."""
    driver = Driver()
    flying, waiting = driver.submit(), driver.submit()
    driver.start()
    driver.drain(10.0)
    with pytest.raises(DispatcherClosed):
        driver.submit()
    driver.fail(flying, RETRY, delay=1.0)
    driver.advance(1.1)
    assert driver.start() is flying
    driver.succeed(flying)
    assert driver.start() is waiting
    driver.succeed(waiting)
    driver.outcome(waiting, Succeeded)
    driver.finish()


def test_what_a_drain_does_not_finish_expires() -> None:
    """L15: within its timeout; a nearer deadline stays."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    driver.submit(target=pod("blocker"))
    driver.start()
    long, short = driver.submit(timeout=60.0), driver.submit(timeout=1.0)
    driver.drain(3.0)
    driver.advance(1.1)
    assert driver.outcome(short, Expired).where == "line"
    assert not long.done()
    driver.advance(2.0)
    assert driver.outcome(long, Expired).where in ("line", "queued")
    driver.finish()


# -- cancelling (law L11) ---------------------------------------------------------------------------------------------


def test_cancel_tells_whether_it_took() -> None:
    """Once told, or once leaving, a handle can't be cancelled again."""
    driver = Driver()
    waiting, flying = driver.submit(), driver.submit(target=pod("q"))
    assert driver.cancel(waiting, "why")
    assert driver.outcome(waiting, Cancelled).reason == "why"
    assert not driver.cancel(waiting)
    assert driver.start() is flying
    assert driver.cancel(flying, "first")
    assert not driver.cancel(flying, "second")
    driver.succeed(flying, 1)
    outcome = driver.outcome(flying, Cancelled)
    assert (outcome.reason, outcome.late_success) == ("first", 1)
    driver.finish()


def test_a_stopped_call_is_not_started_again() -> None:
    """L5: nothing starts after its cancellation."""
    driver = Driver()
    entry = driver.submit()
    driver.start()
    driver.cancel(entry)
    driver.fail(entry, RETRY, delay=0.0)
    driver.outcome(entry, Cancelled)
    assert driver.start() is None
    driver.finish()


def test_cancel_flow_takes_its_calls_only() -> None:
    """By the flow that a caller has named, joiners included."""
    driver = Driver()
    mine = [driver.submit(flow="a"), driver.submit(flow="a", target=pod("q"))]
    other = driver.submit(flow="b", target=pod("r"), idempotency_key="k")
    joiner = driver.submit(flow="a", target=pod("r"), idempotency_key="k")
    assert driver.cancel_flow("a") == 3
    assert all(handle.done() for handle in (*mine, joiner))
    assert not other.done()
    driver.finish()


# -- forgetting (rules R13, R18) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [READ, WRITE, CREATE])
def test_forget_cancels_what_waits_or_flies(effect: Effect) -> None:
    """Without a uid the name itself is meant, creates included; its context ends too."""
    driver = Driver()
    context = driver.begin()
    first = driver.submit(effect=effect, version="1")
    driver.start()
    second = driver.submit(effect=effect, version="2", context=context)
    assert driver.forget(reason="deleted") == 2
    assert first.ticket in driver.stopping
    assert driver.outcome(second, Cancelled).reason == "deleted"
    assert context.ended == "deleted"
    driver.finish()


def test_forget_leaves_a_deletion_in_flight_to_its_answer() -> None:
    """A watch may be quicker than the answer to what it tells of; one that waits has nothing to do any more."""

    class Delete(Call):
        deletes = True

    driver = Driver()
    flying, waiting = driver.submit(Delete()), driver.submit(Delete())
    assert driver.start() is flying
    assert driver.forget(reason="deleted") == 1
    driver.outcome(waiting, Cancelled)
    driver.succeed(flying)
    driver.outcome(flying, Succeeded)
    driver.finish()


def test_forget_leaves_a_deletion_in_doubt_to_a_read() -> None:
    """It may have been applied, and now it most likely was; one that was refused is cancelled."""

    class Delete(Call):
        deletes = True

    driver = Driver()
    doubtful, refused = driver.submit(Delete()), driver.submit(Delete(target=pod("other")))
    assert driver.start_all() == [doubtful, refused]
    driver.fail(doubtful, RETRY, maybe=True, delay=1.0)
    driver.fail(refused, RETRY, delay=1.0)
    assert driver.forget(reason="deleted") == 0
    assert driver.forget(pod("other"), reason="deleted") == 1
    driver.advance(1.0)
    assert driver.start() is doubtful
    driver.succeed(doubtful)
    driver.outcome(doubtful, Succeeded)
    driver.finish()


def test_forgetting_a_late_event_of_an_older_uid_changes_nothing() -> None:
    """R13, case F1: the bind for uid 2 goes on, and so does its context."""
    driver = Driver()
    driver.observe(pod("p", "u2"), 7)
    context = driver.begin(pod("p", "u2"), version=7)
    bind = driver.submit(target=pod("p", "u2"), context=context)
    nameless = driver.submit()
    driver.observe(pod("p", "u1"), 5)
    assert driver.forget(pod("p", "u1")) == 0
    assert not bind.done()
    assert not nameless.done()
    assert context.ended is None
    assert driver.core.objects.uid_of(pod().lane) == "u2"
    driver.finish()


def test_forgetting_a_uid_spares_the_create_of_the_next() -> None:
    """A create makes another object of that name."""
    driver = Driver()
    create = driver.submit(effect=CREATE)
    write = driver.submit(target=pod("p", "u1"))
    assert driver.forget(pod("p", "u1")) == 1
    driver.outcome(write, Cancelled)
    assert not create.done()
    driver.finish()


def test_forget_cancels_what_depends_on_the_object() -> None:
    """R18, case G3: a bind makes no sense without its node; another uid of the node is not meant."""
    driver = Driver()
    bind = driver.submit(depends_on=(node("n1", "u1"),))
    other = driver.submit(target=pod("q"), depends_on=(node("n2"), node("n1", "u2")))
    loose = driver.submit(target=pod("r"), depends_on=(node("n1"),))
    assert driver.forget(node("n1", "u1")) == 2
    driver.outcome(bind, Cancelled)
    driver.outcome(loose, Cancelled)
    assert not other.done()
    driver.finish()


# -- errors of user code (law L14) ------------------------------------------------------------------------------------


def test_a_hook_that_raises_ends_its_call_alone() -> None:
    """L14: `fail_call` is how the shell says so; the rest goes on."""
    driver = Driver()
    entry, other = driver.submit(), driver.submit(target=pod("q"))
    error = ValueError("rebase_onto")
    driver.core.fail_call(entry, error, driver.now)
    driver.cancel(entry)  # a step, so that it is told
    assert driver.outcome(entry, Failed).error is error
    assert driver.start() is other
    driver.finish()


@pytest.mark.parametrize("report", ["fail", "succeed"])
def test_a_full_crowd_leaves_nothing(report: str) -> None:
    """L19: when every handle is resolved and every object forgotten, every table is empty."""
    driver = Driver(CONFIG)
    crowd(driver)
    for _ in range(60):
        driver.advance(1.0)
        for entry in driver.start_all():
            driver.succeed(entry) if report == "succeed" else driver.fail(entry, PERMANENT)
    driver.finish()
    assert len(driver.core.timers) == 0
    assert driver.core.wake_at(driver.now) > driver.now + 10**15


def test_names_are_bounded() -> None:
    """L19, case K3: types and flows without anything live are dropped at a cap."""
    driver = Driver(check=False)
    for number in range(1_000):
        entry = driver.submit(Call(call_type=f"t{number}", flow=f"f{number}", target=pod(f"p{number}")))
        assert driver.start() is entry
        driver.succeed(entry)
    assert len(driver.core.flows) <= 256
    assert len(driver.core.groups) <= 256
    driver.finish()
