"""Rows about evictions and the budgets that hold them back."""

from typing import Any

from tests.facts.world import World, refused, scenario

POLICY = "policy/v1"
APP = {"app": "web"}


async def budget(world: World, name: str = "b", **status: Any) -> str:
    """A budget for the Pods of the app; with the status that a controller would have given it, if any."""
    path = world.path("poddisruptionbudgets", group=POLICY)
    spec = {"minAvailable": 1, "selector": {"matchLabels": APP}}
    body = {"apiVersion": POLICY, "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
    reply = await world.post(path, body)
    assert reply.status == 201, reply.text
    if status:
        counts = {"observedGeneration": 1, "desiredHealthy": 1, "expectedPods": 1, "currentHealthy": 1, **status}
        reply = await world.patch(f"{path}/{name}/status", {"status": counts})
        assert reply.status == 200, reply.text
    return f"{path}/{name}"


async def evict(world: World, name: str = "web", **options: Any) -> Any:
    body = {"apiVersion": POLICY, "kind": "Eviction", "metadata": {"name": name, "namespace": world.namespace}}
    if options:
        body["deleteOptions"] = options
    return await world.post(world.pods(name, "eviction"), body)


async def gone_or_going(world: World, name: str = "web") -> bool:
    reply = await world.get(world.pods(name))
    return reply.status == 404 or "deletionTimestamp" in reply.json["metadata"]


@scenario
async def an_eviction_without_a_budget(world: World) -> None:
    """201 with a Status, and the Pod is being deleted, with a condition that says why."""
    await world.bound(labels=APP)
    reply = await evict(world)
    assert (reply.status, reply.json["kind"], reply.json["status"]) == (201, "Status", "Success")
    made = (await world.get(world.pods("web"))).json
    assert "deletionTimestamp" in made["metadata"]
    reasons = {one["type"]: one.get("reason") for one in made["status"]["conditions"]}
    assert reasons["DisruptionTarget"] == "EvictionByEvictionAPI"


@scenario
async def an_eviction_whose_budget_is_used_up(world: World) -> None:
    """429, cause DisruptionBudget, no Retry-After."""
    await world.bound(labels=APP)
    await budget(world, disruptionsAllowed=0)
    reply = await evict(world)
    status = refused(reply, 429, "TooManyRequests", "violate the pod's disruption budget")
    assert reply.causes == [(None, "DisruptionBudget")]
    assert "needs 1 healthy pods and has 1 currently" in status["details"]["causes"][0]["message"]
    assert "Retry-After" not in reply.headers
    assert not await gone_or_going(world)


@scenario
async def an_eviction_whose_budget_is_not_yet_processed(world: World) -> None:
    """429, cause DisruptionBudget, Retry-After 10."""
    await world.bound(labels=APP)
    await budget(world)
    reply = await evict(world)
    refused(reply, 429, "TooManyRequests")
    assert reply.causes == [(None, "DisruptionBudget")]
    assert reply.headers["Retry-After"] == "10"
    assert not await gone_or_going(world)


@scenario
async def an_eviction_with_two_budgets(world: World) -> None:
    """500 without a reason, and without Retry-After."""
    await world.bound(labels=APP)
    for name in ("b1", "b2"):
        await budget(world, name, disruptionsAllowed=1)
    reply = await evict(world)
    refused(reply, 500, None, "more than one PodDisruptionBudget")
    assert "Retry-After" not in reply.headers
    assert not await gone_or_going(world)


@scenario
async def an_eviction_that_the_budget_allows(world: World) -> None:
    """It is charged to the budget, so that the next one is refused until a controller counts again."""
    for name in ("web", "web2"):
        await world.bound(name, labels=APP)
    path = await budget(world, disruptionsAllowed=1, currentHealthy=2, expectedPods=2)
    assert (await evict(world)).status == 201
    status = (await world.get(path)).json["status"]
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["web"])
    refused_next = refused(await evict(world, "web2"), 429, "TooManyRequests")
    assert "does not allow evicting pods currently" in refused_next["details"]["causes"][0]["message"]


@scenario
async def an_eviction_of_another_uid(world: World) -> None:
    """409 Conflict, and the Pod lives."""
    await world.bound(labels=APP)
    refused(await evict(world, preconditions={"uid": "another"}), 409, "Conflict", "UID in the precondition")
    assert not await gone_or_going(world)


@scenario
async def an_eviction_of_a_pod_that_is_gone(world: World) -> None:
    """404."""
    refused(await evict(world), 404, "NotFound")


@scenario
async def an_eviction_of_a_pod_that_never_started(world: World) -> None:
    """No budget is asked; without a node the Pod is gone at once."""
    await world.pod(labels=APP)
    await budget(world, disruptionsAllowed=0)
    assert (await evict(world)).status == 201
    assert (await world.get(world.pods("web"))).status == 404


@scenario
async def an_eviction_of_a_pod_that_has_ended(world: World) -> None:
    """No budget is asked."""
    await world.bound(labels=APP)
    assert (await world.patch(world.pods("web", "status"), {"status": {"phase": "Succeeded"}})).status == 200
    await budget(world, disruptionsAllowed=0)
    assert (await evict(world)).status == 201
    assert await gone_or_going(world)


@scenario
async def an_eviction_of_a_pod_that_is_not_ready(world: World) -> None:
    """It passes while enough others are healthy, and is not counted."""
    await world.bound(labels=APP)
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert (await world.patch(world.pods("web", "status"), unready)).status == 200
    path = await budget(world, disruptionsAllowed=0, currentHealthy=1)
    assert (await evict(world)).status == 201
    assert "disruptedPods" not in (await world.get(path)).json["status"]


@scenario
async def an_eviction_that_is_only_tried(world: World) -> None:
    """dryRun=All: nothing is charged, nobody goes."""
    await world.bound(labels=APP)
    path = await budget(world, disruptionsAllowed=1)
    assert (await evict(world, dryRun=["All"])).status == 201
    assert not await gone_or_going(world)
    assert (await world.get(path)).json["status"]["disruptionsAllowed"] == 1


@scenario
async def an_eviction_under_another_name(world: World) -> None:
    """400."""
    await world.bound()
    body = {"apiVersion": POLICY, "kind": "Eviction", "metadata": {"name": "other"}}
    refused(await world.post(world.pods("web", "eviction"), body), 400, "BadRequest", "name in URL")
