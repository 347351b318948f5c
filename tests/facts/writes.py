"""Rows about patches, binds, hints, creates and deletes."""

from tests.facts.world import (
    APPLY,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    WIDGETS,
    World,
    pod,
    refused,
    scenario,
)

LABEL = {"metadata": {"labels": {"a": "b"}}}

# -- preconditions of patches and updates -----------------------------------------------------------------------------


@scenario
async def a_patch_with_a_stale_version(world: World) -> None:
    """409 Conflict, about the object."""
    await world.pod()
    status = refused(await world.patch(world.pods("web"), {"metadata": {"resourceVersion": "1"}}), 409, "Conflict")
    assert (status["details"]["name"], status["details"]["kind"]) == ("web", "pods")


@scenario
async def a_patch_with_another_uid(world: World) -> None:
    """422, cause metadata.uid."""
    await world.pod()
    for path in (world.pods("web"), world.pods("web", "status")):
        reply = await world.patch(path, {"metadata": {"uid": "another"}})
        refused(reply, 422, "Invalid")
        assert ("metadata.uid", "FieldValueInvalid") in reply.causes


@scenario
async def a_patch_with_another_uid_and_a_stale_version(world: World) -> None:
    """The version is compared first: 409."""
    await world.pod()
    body = {"metadata": {"uid": "another", "resourceVersion": "1"}}
    refused(await world.patch(world.pods("web"), body), 409, "Conflict", "object has been modified")


@scenario
async def a_put_with_another_uid(world: World) -> None:
    """409 of storage, "Precondition failed: UID"."""
    made = await world.pod()
    made["metadata"]["uid"] = "another"
    refused(await world.put(world.pods("web"), made), 409, "Conflict", "Precondition failed: UID")


@scenario
async def a_put_with_a_stale_version(world: World) -> None:
    """409 Conflict."""
    made = await world.pod()
    assert (await world.patch(world.pods("web"), LABEL)).status == 200
    refused(await world.put(world.pods("web"), made), 409, "Conflict", "object has been modified")


@scenario
async def a_json_patch_whose_test_fails(world: World) -> None:
    """422 without causes, the same as for any other that can't be applied or understood."""
    await world.pod()
    test = [{"op": "test", "path": "/metadata/name", "value": "x"}]
    broken = [{"op": "remove", "path": "/metadata/nothing"}]
    replies = [await world.patch(world.pods("web"), patch, JSON_PATCH) for patch in (test, broken, [{"op": "?"}])]
    for reply in replies:
        refused(reply, 422, "Invalid")
        assert reply.causes == []


@scenario
async def a_patch_that_changes_nothing(world: World) -> None:
    """200, and the version stays."""
    made = await world.pod(labels={"a": "b"})
    for kind in (MERGE, STRATEGIC):
        reply = await world.patch(world.pods("web"), LABEL, kind)
        assert (reply.status, reply.json["metadata"]["resourceVersion"]) == (
            200,
            made["metadata"]["resourceVersion"],
        )


@scenario
async def a_patch_without_a_version(world: World) -> None:
    """The last writer wins."""
    await world.pod()
    for value in ("1", "2"):
        assert (await world.patch(world.pods("web"), {"metadata": {"labels": {"a": value}}})).status == 200
    assert (await world.get(world.pods("web"))).json["metadata"]["labels"]["a"] == "2"


@scenario
async def an_apply_without_a_field_manager(world: World) -> None:
    """422."""
    refused(await world.patch(world.pods("web"), pod(), APPLY), 422, "Invalid")


@scenario
async def a_patch_of_an_unknown_kind(world: World) -> None:
    """415."""
    await world.pod()
    refused(await world.patch(world.pods("web"), LABEL, "application/json"), 415, "UnsupportedMediaType")


@scenario
async def a_strategic_merge_patch_of_a_custom_resource(world: World) -> None:
    """415; a merge patch passes."""
    path = world.path("widgets", group=WIDGETS)
    body = {"apiVersion": WIDGETS, "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}}
    assert (await world.post(path, body)).status == 201
    refused(await world.patch(f"{path}/w", {"spec": {"size": 2}}, STRATEGIC), 415, "UnsupportedMediaType")
    assert (await world.patch(f"{path}/w", {"spec": {"size": 2}})).status == 200


@scenario
async def a_strategic_merge_of_conditions(world: World) -> None:
    """By their type; new ones come first, and what was there keeps its order."""
    await world.pod()

    async def wish(types: str, kind: str) -> str:
        conditions = [{"type": one, "status": "True"} for one in types]
        reply = await world.patch(world.pods("web", "status"), {"status": {"conditions": conditions}}, kind)
        assert reply.status == 200, reply.text
        return "".join(one["type"] for one in reply.json["status"]["conditions"])

    for old, patch, new in (("AB", "CA", "CAB"), ("ABC", "CDA", "BCDA"), ("AB", "AC", "ACB"), ("ABC", "DB", "DABC")):
        assert await wish(old, MERGE) == old
        assert await wish(patch, STRATEGIC) == new


@scenario
async def a_patch_of_the_name(world: World) -> None:
    """400."""
    await world.pod()
    says = "does not match the name on the URL"
    refused(await world.patch(world.pods("web"), {"metadata": {"name": "other"}}), 400, "BadRequest", says)


@scenario
async def a_patch_of_what_is_gone(world: World) -> None:
    """404 that names the object."""
    status = refused(await world.patch(world.pods("web"), LABEL), 404, "NotFound")
    assert (status["details"]["name"], status["details"]["kind"]) == ("web", "pods")


@scenario
async def a_status_patch_and_what_it_may_not_change(world: World) -> None:
    """spec, ownerReferences and deletionTimestamp are reset in silence; labels and annotations pass."""
    await world.pod()
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "ownerReferences": [owner]}
    body = {"metadata": metadata, "spec": {"priority": 7}, "status": {"message": "m"}}
    reply = await world.patch(world.pods("web", "status"), body)
    assert reply.status == 200, reply.text
    made = reply.json
    assert (made["metadata"]["labels"], made["metadata"]["annotations"]) == ({"a": "b"}, {"c": "d"})
    assert "ownerReferences" not in made["metadata"]
    assert made["spec"]["priority"] == 0
    assert made["status"]["message"] == "m"


# -- hints ------------------------------------------------------------------------------------------------------------


@scenario
async def a_hint_to_a_node_that_does_not_exist(world: World) -> None:
    """Accepted, for a gated Pod too."""
    await world.pod(schedulingGates=[{"name": "example.com/wait"}])
    reply = await world.hint("nowhere")
    assert (reply.status, reply.json["status"]["nominatedNodeName"]) == (200, "nowhere")


@scenario
async def a_hint_with_a_bad_name(world: World) -> None:
    """422, cause status.nominatedNodeName."""
    await world.pod()
    reply = await world.hint("Not_A_Node")
    refused(reply, 422, "Invalid")
    assert [field for field, _ in reply.causes] == ["status.nominatedNodeName"]


@scenario
async def a_hint_for_a_bound_pod(world: World) -> None:
    """422 FieldValueForbidden, as long as it is there; a stale version is told first (409)."""
    await world.bound()
    for _ in range(2):
        reply = await world.hint("n2")
        refused(reply, 422, "Invalid")
        assert reply.causes == [("status.nominatedNodeName", "FieldValueForbidden")]
        refused(await world.hint("n2", resourceVersion="1"), 409, "Conflict")
        assert (await world.delete(world.pods("web"))).status == 200


@scenario
async def a_bind_clears_the_hint(world: World) -> None:
    """nominatedNodeName is gone once the Pod is bound, also elsewhere."""
    await world.pod()
    assert (await world.hint("n2")).status == 200
    assert (await world.bind(node="n1")).status == 201
    made = (await world.get(world.pods("web"))).json
    assert made["spec"]["nodeName"] == "n1"
    assert "nominatedNodeName" not in made["status"]


# -- binds ------------------------------------------------------------------------------------------------------------


@scenario
async def a_bind(world: World) -> None:
    """201 with a Status, not a Binding; to a node that does not exist too; annotations come along."""
    await world.pod()
    reply = await world.bind(node="nowhere", annotations={"a": "b"})
    assert (reply.status, reply.json["kind"], reply.json["status"]) == (201, "Status", "Success")
    made = (await world.get(world.pods("web"))).json
    assert (made["spec"]["nodeName"], made["metadata"]["annotations"]["a"]) == ("nowhere", "b")


@scenario
async def a_bind_by_its_version_and_uid(world: World) -> None:
    """201 if both are the Pod's; 409 from storage if one is not."""
    made = await world.pod()
    metadata = made["metadata"]
    refused(await world.bind(uid="another"), 409, "Conflict", "Precondition failed: UID")
    assert (await world.patch(world.pods("web"), LABEL)).status == 200
    stale = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    refused(await world.bind(**stale), 409, "Conflict", "Precondition failed")
    now = (await world.get(world.pods("web"))).json["metadata"]
    assert (await world.bind(uid=now["uid"], resourceVersion=now["resourceVersion"])).status == 201


@scenario
async def a_second_bind(world: World) -> None:
    """409 Conflict, "already assigned to node", to the same node too."""
    await world.pod()
    assert (await world.bind()).status == 201
    for node in ("n1", "n2"):
        refused(await world.bind(node=node), 409, "Conflict", "already assigned to node")


@scenario
async def a_bind_of_a_pod_that_is_being_deleted(world: World) -> None:
    """409 Conflict."""
    body = pod()
    body["metadata"]["finalizers"] = ["example.com/hold"]
    assert (await world.post(world.pods(), body)).status == 201
    assert (await world.delete(world.pods("web"))).status == 200
    refused(await world.bind(), 409, "Conflict", "is being deleted")
    assert (await world.patch(world.pods("web"), {"metadata": {"finalizers": None}})).status == 200
    assert (await world.get(world.pods("web"))).status == 404


@scenario
async def a_bind_of_a_pod_that_is_gone(world: World) -> None:
    """404."""
    refused(await world.bind(), 404, "NotFound")


@scenario
async def a_bind_that_is_only_tried(world: World) -> None:
    """dryRun=All: 201, and nothing is bound."""
    await world.pod()
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"}, "target": {"name": "n1"}}
    reply = await world.post(world.pods("web", "binding") + "?dryRun=All", body)
    assert reply.status == 201, reply.text
    assert "nodeName" not in (await world.get(world.pods("web"))).json["spec"]


# -- creates and deletes ----------------------------------------------------------------------------------------------


@scenario
async def a_create_with_a_taken_name(world: World) -> None:
    """409 AlreadyExists, about the object."""
    await world.pod()
    status = refused(await world.post(world.pods(), pod()), 409, "AlreadyExists", "already exists")
    assert not status["message"].startswith("object is being deleted")
    assert (status["details"]["name"], status["details"]["kind"]) == ("web", "pods")


@scenario
async def a_create_with_a_name_that_a_dying_object_holds(world: World) -> None:
    """409 AlreadyExists whose message begins "object is being deleted", until that one has ended."""
    await world.bound()
    assert (await world.delete(world.pods("web"))).status == 200
    status = refused(await world.post(world.pods(), pod()), 409, "AlreadyExists")
    assert status["message"].startswith("object is being deleted")
    assert (await world.delete(world.pods("web"), {"gracePeriodSeconds": 0})).status == 200
    assert (await world.post(world.pods(), pod())).status == 201


@scenario
async def a_delete_with_another_uid(world: World) -> None:
    """409 Conflict that names the kind, where others name the plural; the object lives."""
    await world.pod()
    reply = await world.delete(world.pods("web"), {"preconditions": {"uid": "another"}})
    status = refused(reply, 409, "Conflict", "The object might have been deleted and then recreated")
    assert status["details"] == {"name": "web", "kind": "Pod"}
    stale = await world.delete(world.pods("web"), {"preconditions": {"resourceVersion": "1"}})
    refused(stale, 409, "Conflict", "The object might have been modified")
    assert (await world.get(world.pods("web"))).status == 200


@scenario
async def a_delete_of_a_pod_without_a_node(world: World) -> None:
    """At once, shown as it was when it was dying; again: 404."""
    await world.pod()
    reply = await world.delete(world.pods("web"))
    assert (reply.status, reply.json["metadata"]["deletionGracePeriodSeconds"]) == (200, 0)
    assert "deletionTimestamp" in reply.json["metadata"]
    refused(await world.delete(world.pods("web")), 404, "NotFound")


@scenario
async def a_delete_of_a_pod_on_a_node(world: World) -> None:
    """It stays with a deletionTimestamp until somebody deletes it with grace period 0."""
    await world.bound()
    assert (await world.delete(world.pods("web"))).status == 200
    assert "deletionTimestamp" in (await world.get(world.pods("web"))).json["metadata"]
    assert (await world.delete(world.pods("web"), {"gracePeriodSeconds": 0})).status == 200
    assert (await world.get(world.pods("web"))).status == 404
