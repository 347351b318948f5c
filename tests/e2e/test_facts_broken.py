"""Rows of the table of answers that need a control plane of their own: webhooks, service accounts, compaction, tokens.

The embedded server gives the same answers on request (`tests.facts`, "embedded_only"); here a real one gives them.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest_asyncio
import trustme
from aiohttp import web

from asyncdispatch.testing import ControlPlane
from tests.e2e.waiting import eventually
from tests.facts.world import APPLY, Reply, World, pod, raw_client, refused

HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAMESPACE = "rows"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own() -> AsyncIterator[ControlPlane]:
    """With the admission of service accounts, which the others leave out."""
    async with ControlPlane(flags={"kube-apiserver": ["--disable-admission-plugins="]}) as plane:
        await plane.add_namespace(NAMESPACE)
        yield plane


@asynccontextmanager
async def asking(plane: ControlPlane, token: str | None = None) -> AsyncIterator[World]:
    trust = ssl.create_default_context(cafile=str(plane.ca_file))
    headers = {"Authorization": f"Bearer {token or plane.token()}"} if token != "" else {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        yield World(raw_client(session, plane.url, headers), NAMESPACE)


@pytest_asyncio.fixture(loop_scope="session")
async def world(own: ControlPlane) -> AsyncIterator[World]:
    async with asking(own) as world:
        yield world


async def test_credentials(own, world):
    """401 for a token that is not known; nobody at all is anonymous, and has no rights (403)."""
    async with asking(own, "unknown") as stranger:
        refused(await stranger.get(stranger.pods()), 401, "Unauthorized", "Unauthorized")
    async with asking(own, "") as anonymous:
        says = 'User "system:anonymous" cannot list resource "pods"'
        refused(await anonymous.get(anonymous.pods()), 403, "Forbidden", says)


async def test_a_pod_before_its_service_account(own, world):
    """403, told by its message only; it passes once the account is there."""
    await world.post("/api/v1/namespaces", {"metadata": {"name": "young"}})
    path = "/api/v1/namespaces/young"
    says = "error looking up service account young/default: serviceaccount"
    status = refused(await world.post(f"{path}/pods", pod()), 403, "Forbidden", says)
    assert status["details"] == {"name": "web", "kind": "pods"}
    assert (await world.post(f"{path}/serviceaccounts", {"metadata": {"name": "default"}})).status == 201

    async def passes() -> bool:
        return (await world.post(f"{path}/pods", pod())).status == 201

    await eventually(passes)


async def test_an_apply_that_conflicts(own, world):
    """409, causes FieldManagerConflict, by field."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}
    path = world.path("configmaps", "applied")
    assert (await world.patch(f"{path}?fieldManager=first", body, APPLY)).status == 201
    reply = await world.patch(f"{path}?fieldManager=second", {**body, "data": {"a": "2"}}, APPLY)
    refused(reply, 409, "Conflict", "Apply failed with 1 conflict")
    assert reply.causes == [(".data.a", "FieldManagerConflict")]


class Hook:
    """An admission webhook that answers as it is told to, with a certificate of its own."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.code = 400
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert("127.0.0.1").configure_cert(server)
        app = web.Application()
        app.router.add_post("/", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server)
        try:
            await site.start()
            self.port = runner.addresses[0][1]
            yield
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        uid = (await request.json())["request"]["uid"]
        answer = {"uid": uid, "allowed": False, "status": {"code": self.code, "message": "no"}}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})

    def configuration(self, name: str) -> dict[str, Any]:
        authority = base64.b64encode(self.authority.cert_pem.bytes()).decode()
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}
        hook = {
            "name": f"{name}.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{self.port}/", "caBundle": authority},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 10,
        }
        return {"metadata": {"name": name}, "webhooks": [hook]}


async def until_refused(world: World, says: str) -> Reply:
    """The answer to a create, once the webhook counts."""

    async def tried() -> Reply | None:
        reply = await world.post(world.path("secrets") + "?dryRun=All", {"metadata": {"name": "s"}})
        return reply if says in reply.json.get("message", "") else None

    await eventually(tried)
    return await world.post(world.path("secrets"), {"metadata": {"name": "s"}})


async def test_webhooks(own, world):
    """A denial has any code that it likes and names the webhook; one that is not reachable is a 500 before storage."""
    hook = Hook()
    async with hook.serving():
        assert (await world.post(HOOKS, hook.configuration("denies"))).status == 201
        says = 'admission webhook "denies.example.com" denied the request: no'
        for code in (400, 403, 409, 422, 429, 500):
            hook.code = code
            reply = await until_refused(world, says)
            refused(reply, code, None, says)
            assert "Retry-After" not in reply.headers
    says = 'failed calling webhook "denies.example.com"'
    reply = await until_refused(world, says)
    refused(reply, 500, "InternalError", says)
    assert (await world.delete(f"{HOOKS}/denies")).status == 200
    assert (await world.get(world.path("secrets", "s"))).status == 404


async def test_what_was_compacted(own, world):
    """Once its cache has gone as well: 410 for a page, with a token to go on from now, and for a watch from before."""
    made = [(await world.post(world.path("configmaps"), {"metadata": {"name": f"c{n}"}})).json for n in range(3)]
    first = (await world.get(world.path("configmaps") + "?limit=1")).json
    assert (await world.delete(world.path("configmaps", "c0"))).status == 200
    await own.compact()
    own.apiserver.kill()
    await own.apiserver.start()
    page = world.path("configmaps") + f"?limit=10&continue={first['metadata']['continue']}"
    reply = await world.get(page)
    status = refused(reply, 410, "Expired", "The provided continue parameter is too old")
    rest = await world.get(world.path("configmaps") + f"?continue={status['metadata']['continue']}")
    assert "c1" in [item["metadata"]["name"] for item in rest.json["items"]]
    version = made[0]["metadata"]["resourceVersion"]
    watched = await world.get(world.path("configmaps") + f"?watch=1&resourceVersion={version}&timeoutSeconds=5")
    told = json.loads(watched.text.splitlines()[0])
    error = told["object"] if watched.status == 200 else told
    assert (error["code"], error["reason"]) == (410, "Expired")
    assert "too old resource version" in error["message"]
