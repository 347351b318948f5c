"""What is read from the scheduler's page of metrics."""

import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.nomination.scraped import FILTER_SECONDS, Page, Spread
from tests.nomination.conftest import nominating


def page(*filters: float, score: int = 3) -> str:
    """As kube-scheduler's: by extension point and status."""
    registry = CollectorRegistry()
    labels = ("extension_point", "status")
    points = Histogram(FILTER_SECONDS, "h", labels, registry=registry, buckets=(0.001, 0.002, 0.004, math.inf))
    for index, seconds in enumerate(filters):
        points.labels("Filter", "Unschedulable" if index % 2 else "Success").observe(seconds)
    for _ in range(score):
        points.labels("Score", "Success").observe(9)
    Counter("process_cpu_seconds_total", "c", registry=registry).inc(2.5)
    return generate_latest(registry).decode()


def test_a_histogram_over_its_series() -> None:
    """Whatever the status was; other extension points are left out. A counter is a sum, what is not there is 0."""
    found = Page(page(0.0005, 0.0015, 0.0015, 0.003)).spread(FILTER_SECONDS, extension_point="Filter")
    assert found.count == 4
    assert found.seconds == pytest.approx(0.0065)
    assert found.buckets == ((0.001, 1), (0.002, 3), (0.004, 4), (math.inf, 4))
    assert Page(page()).total("process_cpu_seconds_total") == 2.5
    assert Page(page()).total("nothing", status="Success") == 0
    assert str(found) == "4 times, mean 1.63 ms, P90 3.20 ms"


@pytest.mark.parametrize(("q", "seconds"), [(0.25, 0.001), (0.5, 0.0015), (0.75, 0.002), (1.0, 0.004)])
def test_quantiles(q: float, seconds: float) -> None:
    """By linear interpolation between the bounds of a bucket, as Prometheus does it."""
    found = Page(page(0.0005, 0.0015, 0.0015, 0.003)).spread(FILTER_SECONDS, extension_point="Filter")
    assert found.quantile(q) == pytest.approx(seconds)


def test_beyond_the_last_bound_and_nothing() -> None:
    far = Page(page(7.0, 8.0)).spread(FILTER_SECONDS, extension_point="Filter")
    assert far.quantile(0.5) == 0.004
    nothing = Page(page()).spread(FILTER_SECONDS, extension_point="Filter")
    assert (nothing, nothing.mean, nothing.quantile(0.5), str(nothing)) == (Spread(0, 0.0), None, None, "none")


def test_between_two_pages() -> None:
    """What has come since; all of it, if the scheduler was started anew in between."""

    def spread(*seconds: float) -> Spread:
        return Page(page(*seconds)).spread(FILTER_SECONDS, extension_point="Filter")

    since = spread(0.0005, 0.0005, 0.003).since(spread(0.0005))
    assert (since.count, since.buckets[0], since.buckets[-1]) == (2, (0.001, 1), (math.inf, 2))
    assert since.seconds == pytest.approx(0.0035)
    assert spread(0.003).since(spread(0.0005, 0.0005)) == spread(0.003)


@pytest.mark.parametrize("text", ["{", "a b c d", 7, None, b"x 1"])
def test_no_page(text) -> None:
    with pytest.raises(ConfigurationError, match="is no page of metrics"):
        Page(text)


async def test_it_is_in_the_report(server, cluster) -> None:
    """Where it is given; and by its name, where it is none."""
    async with nominating(cluster) as nominator:
        assert "filtering" not in str(nominator.report())
        assert nominator.report().filtering is None
        text = str(nominator.report(page(0.0005, 0.0015), page(0.0005)))
        assert "the scheduler's filtering of nodes for a Pod: 1 times, mean 1.50 ms" in text
        with pytest.raises(ConfigurationError, match="scheduler"):
            nominator.report("<html>")
        with pytest.raises(ConfigurationError, match="before"):
            nominator.report(page(), "<html>")
