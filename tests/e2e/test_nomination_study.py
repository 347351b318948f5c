"""The study of whether nomination helps, and the planner of examples/, with accounts and a scheduler that are real."""

import asyncio
import re

import pytest
import pytest_asyncio

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster
from benchmarks.nomination_study import ARMS, main
from benchmarks.nomination_workload import Size, workload
from tests.e2e.nominating import is_bound, nomination_plane, place
from tests.test_examples import load


def test_the_table_is_printed(capsys):
    """A small size of it, on a control plane of its own: all jobs are bound in either way, and hints are honoured."""
    assert main(["--nodes=10", "--pods=40", "--gang=4", "--rounds=1", "--rate=20"]) == 0
    printed = capsys.readouterr().out
    assert f"| | {ARMS[0]} | {ARMS[1]} |" in printed
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+ \| [^|]+) \|$", printed, re.MULTILINE))
    assert len(rows) >= 22
    assert "nan" not in printed
    plain, hinted = (float(value.replace(",", "")) for value in rows["scheduler: attempts"].split(" | "))
    assert plain >= 20
    assert hinted >= 20
    assert int(rows["hints that ended as hit"].rpartition(" | ")[2]) > 0


def test_the_workload_is_by_the_seed():
    """Equal for equal sizes, jobs and bystanders half and half, more than is free; another seed is another one."""
    one = workload(Size(nodes=10, pods=40, gang=4))
    assert one == workload(Size(nodes=10, pods=40, gang=4))
    assert one != workload(Size(nodes=10, pods=40, gang=4, seed=2))
    assert [arrival.gang is None for arrival in one.arrivals].count(True) == 20
    free = sum(one.node_cpu - taken for taken in one.taken)
    assert sum(arrival.cpu for arrival in one.arrivals) > free
    assert all(0 <= taken < one.node_cpu for taken in one.taken)


@pytest.mark.parametrize("flag", ["--pods=0", "--nodes=-1", "--gang=x"])
def test_sizes_that_can_not_be_meant(flag, capsys):
    with pytest.raises(SystemExit):
        main([flag])
    assert "is no number above 0" in capsys.readouterr().err


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own():
    async with nomination_plane() as plane:
        yield plane


async def test_the_planner_of_the_examples(own):
    """With the nominator's rights alone, and the gates lifted by an account that may do nothing but that: gated Pods
    go where it wanted them. The scheduler's own page of metrics is in its report."""
    example = load("nominator")
    names = [f"job-{number}" for number in range(8)]
    for name in names:
        await own.add_pod(name, "ns", gates=(example.GATE,), requests={"cpu": "500m"})
    before = await own.metrics("kube-scheduler")
    async with own.api_client("nominator") as client, own.api_client("gatekeeper") as gates, Dispatcher() as dispatcher:
        planner = example.Planner(Cluster(client), Cluster(gates), dispatcher)
        task = asyncio.create_task(planner.run())
        bound = [await own.until(place(name), is_bound) for name in names]
        report = planner.nominator.report(await own.metrics("kube-scheduler"), before)
        while report.hits < len(names):
            await asyncio.sleep(0.05)
            report = planner.nominator.report(await own.metrics("kube-scheduler"), before)
        task.cancel()
        await asyncio.wait([task])
    assert {pod["spec"]["nodeName"] for pod in bound} <= {"n1", "n2"}
    assert report.hit_rate == 1.0
    assert report.filtering is not None
    assert report.filtering.count >= len(names)
    for name in names:
        await own.end_pod(name, "ns")
