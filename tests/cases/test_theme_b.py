"""B: answers that mean something else."""

import asyncio

import pytest

from asyncdispatch import CallFailed, Dispatcher
from asyncdispatch.outcomes import Succeeded
from tests.cases.support import now, sent


def job(image="i"):
    template = {"spec": {"containers": [{"name": "c", "image": image}], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "ns"},
        "spec": {"template": template},
    }


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
async def test_b15_delete_and_create_of_what_cannot_be_changed(server, cluster, lost):
    """A Job's template is immutable: the caller has to delete it and create it again, at once.

    Right: the create does not replace the waiting delete; it waits behind it, and until the old Job has gone.
    """
    old = server.patch_object(server.create(job()), {"metadata": {"finalizers": ["foregroundDeletion"]}})
    immutable = 'Job.batch "j" is invalid: spec.template: Invalid value: field is immutable'
    server.fail(status=422, reason="Invalid", message=immutable, method="PATCH")
    if lost:
        server.fail(status=500, reason="", message="etcdserver: request timed out", applied=True, method="DELETE")
    async with Dispatcher() as dispatcher:
        with pytest.raises(CallFailed, match="immutable"):
            await dispatcher.run(cluster.patch(old, {"spec": {"template": {"spec": {"nodeName": "n1"}}}}))
        delete = dispatcher.submit(cluster.delete(old, propagation="Foreground"))
        create = dispatcher.submit(cluster.create(job("i2"), idempotency_key="j/2"))
        asyncio.get_running_loop().call_later(3, lambda: server.finish(old))
        assert isinstance(await delete.outcome(), Succeeded)
        assert now() < 1
        outcome = await create.outcome()
    assert isinstance(outcome, Succeeded)
    assert outcome.value["metadata"]["uid"] != old["metadata"]["uid"]
    assert outcome.value == server.get(old)
    assert len([record for record in sent(server, "DELETE", "POST") if record.applied]) == 2
    assert 3 <= now() < 10
    assert len(sent(server, "POST")) <= 5
