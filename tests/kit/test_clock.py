"""Virtual time: by itself, and as the time of an event loop and of a dispatcher in it."""

import asyncio
from datetime import timedelta
from time import monotonic

import pytest

from asyncdispatch import ConfigurationError, Dispatcher
from asyncdispatch.testing import StepDriver, VirtualClock
from tests.shell import after, call


def test_time_passes_when_it_is_told_to() -> None:
    """To the nanosecond, and never by itself."""
    clock = VirtualClock(10.0)
    assert (clock(), clock.ns) == (10.0, 10_000_000_000)
    before = clock.date()
    clock.advance(0.25)
    assert clock() == 10.25
    assert clock.date() - before == timedelta(seconds=0.25)
    assert repr(clock) == "<VirtualClock 10.250000 s>"


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), "1"])
def test_what_is_no_time_is_refused(seconds: object) -> None:
    """And time stays as it was."""
    clock = VirtualClock(10.0)
    with pytest.raises(ConfigurationError, match="seconds"):
        clock.advance(seconds)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="start"):
        VirtualClock(seconds)  # type: ignore[arg-type]
    assert clock() == 10.0


def test_time_does_not_go_back() -> None:
    """Not by a way around `advance` either."""
    clock = VirtualClock(10.0)
    with pytest.raises(ConfigurationError, match="time does not go back"):
        clock.move_to(9_999_999_999)


def test_a_dispatcher_lives_by_it() -> None:
    """A call that takes an hour of the loop's time takes a moment."""
    clock = VirtualClock(5.0)

    async def main() -> float:
        async with Dispatcher() as dispatcher:
            handle = dispatcher.submit(call(after(20.0)))
            assert await handle == "done"
            outcome = handle.settled
            assert outcome is not None
            return outcome.elapsed_seconds

    began = monotonic()
    assert clock.run(main()) == pytest.approx(20.0)
    assert monotonic() - began < 20.0
    assert clock() == pytest.approx(25.0)


def test_its_next_loop_goes_on_where_the_last_has_ended() -> None:
    """And between the two it is a clock as any."""
    clock = VirtualClock(5.0)
    clock.run(asyncio.sleep(10.0))
    clock.advance(1.0)
    clock.run(asyncio.sleep(10.0))
    assert clock() == pytest.approx(26.0)


def test_a_stalled_loop() -> None:
    """`advance` in a running loop: what was due meanwhile is late, and is done next."""
    clock = VirtualClock(0.0)

    async def main() -> list[float]:
        loop, rang = asyncio.get_running_loop(), list[float]()
        loop.call_at(1.0, lambda: rang.append(clock()))
        clock.advance(30.0)
        assert rang == []
        await asyncio.sleep(0.1)
        return rang

    assert clock.run(main()) == pytest.approx([30.0])


def test_it_follows_only_loops_whose_time_is_virtual() -> None:
    """A clock of real time would wait."""
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(ConfigurationError, match="its time is real"):
            VirtualClock().follow(loop)
    finally:
        loop.close()


def test_a_driver_lives_by_it() -> None:
    """The driver moves it, and it moves the driver."""
    clock = VirtualClock(7.0)
    driver = StepDriver(clock=clock)
    driver.advance(1.0)
    assert clock() == 8.0
    clock.advance(1.0)
    assert driver.now == 9_000_000_000
