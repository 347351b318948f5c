"""A cluster: the front door of this package. It makes calls; a dispatcher carries them out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from asyncdispatch.calls import ObjectRef, version_of
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.calls import Read
from asyncdispatch.kubernetes.conditions import KEEP, Nomination, checked, timed
from asyncdispatch.kubernetes.creation import Create, checked_new
from asyncdispatch.kubernetes.kubeconfig import KubeconfigPath, connect_client
from asyncdispatch.kubernetes.lease import Lease, lease_timing
from asyncdispatch.kubernetes.objects import node_name, pod_ref, priority_of, to_json
from asyncdispatch.kubernetes.pods import PodBinding, PodStatusPatch, conditions_of, of_unbound
from asyncdispatch.kubernetes.resources import builtin, collection_path
from asyncdispatch.kubernetes.transport import Transport

__all__ = ["Cluster"]

Fence = Literal["uid", "version"]


class Cluster:
    """Makes the calls for one cluster, over an ApiClient of kubernetes_asyncio or of the official kubernetes.aio.

    The client is used as it is, with its connections, TLS and credentials, and stays its owner's to close: keep it open
    for as long as a dispatcher carries out calls of this cluster. Objects are JSON dicts; client models are accepted.
    Each method makes a call and sends nothing. `call_fields` are those of `APICall` (priority, flow, timeout,
    context …); priority, uid and version come from the object unless given. All raise `ConfigurationError` for what
    can't be meant.

    The cluster itself is the `scope` of its calls: when its credentials are refused, all of them are held together.
    """

    def __init__(self, api_client: Any) -> None:
        self.transport = Transport(api_client)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, kubeconfig: KubeconfigPath | None = None, context: str | None = None
    ) -> AsyncIterator[Cluster]:
        """A cluster with a client of its own, closed at the end.

        With neither argument and in a Pod, its service account; else the kubeconfig (by default where KUBECONFIG says,
        or `~/.kube/config`) with its current context. Raises `ConfigurationError` for a file or context that is missing
        or broken, never telling a secret.
        """
        api_client = await connect_client(kubeconfig, context)
        try:
            yield cls(api_client)
        finally:
            await api_client.close()

    def __repr__(self) -> str:
        return f"<Cluster {self.transport.server}>"

    def bind(
        self,
        pod: Any,
        node: Any,
        *,
        fence: Fence = "uid",
        annotations: Mapping[str, str] | None = None,
        **call_fields: Any,
    ) -> PodBinding:
        """Bind `pod` to `node` (a name, or a Node). The uid is always required to match.

        With `fence="version"` (or `version=…`) the Pod must also be exactly as it was decided on: any change since then
        refuses the bind. `annotations` are carried over to the Pod.
        """
        ref = pod_ref(pod)
        call_fields = self._fields(pod, fence, call_fields)
        return PodBinding(target=ref, node=node_name(node), annotations=annotations or {}, **call_fields)

    def patch_status(
        self,
        pod: Any,
        *,
        conditions: Iterable[Any] = (),
        nominated_node: Nomination = KEEP,
        fence: Fence | None = None,
        **call_fields: Any,
    ) -> PodStatusPatch:
        """Set `conditions` (each by its type) and the nominated node (None clears it) in the status of `pod`.

        A condition that changes gets the present time as its lastTransitionTime unless it has one; one whose status is
        as in `pod` keeps the time of `pod`. With `fence="version"` (or `version=…`) the patch is decided anew whenever
        somebody else has written in between. That is the default for what a bound Pod must not show (not scheduled, a
        nominated node), so that it can't land behind a bind however late it is; else the default is "uid". A patch of
        which `pod` shows everything already is a no-op.
        """
        ref = pod_ref(pod)
        current = [] if isinstance(pod, ObjectRef) else conditions_of(pod)
        stamped = timed(checked(conditions), current, datetime.now(UTC))
        if fence is None:
            versioned = not isinstance(pod, ObjectRef) and version_of(pod) is not None
            fence = "version" if versioned and of_unbound(stamped, nominated_node) else "uid"
        call_fields = self._fields(pod, fence, call_fields)
        call = PodStatusPatch(target=ref, conditions=stamped, nominated_node=nominated_node, **call_fields)
        if isinstance(pod, Mapping) and call.done_in(pod):
            object.__setattr__(call, "satisfied", True)
        return call

    def create(self, obj: Any, *, plural: str | None = None, **call_fields: Any) -> Create:
        """Create `obj`, once. With `idempotency_key` (a string) it carries our mark: see `Create`.

        `plural` is the kind's name in paths, for a custom resource; without it the server is asked, once.
        """
        ref = ObjectRef.of(obj)
        given = to_json(obj, "obj")
        body = checked_new({**given, "apiVersion": ref.api_version, "kind": ref.kind})
        _check_place(ref)
        call_fields.setdefault("priority", priority_of(body))
        call_fields.setdefault("scope", self)
        return Create(target=ref, obj=body, transport=self.transport, plural=plural, **call_fields)

    def read(self, ref: Any, *, plural: str | None = None, **call_fields: Any) -> Read:
        """Read the object that `ref` (an ObjectRef, or an object) names. With a uid, that very object.

        `version=…` allows an answer from the server's cache that is at least as new; by default it is the newest state.
        """
        target = ObjectRef.of(ref)
        if target.generated:
            raise ConfigurationError("metadata.name", target.name, "give the name: it is not known yet for this object")
        _check_place(target)
        call_fields.setdefault("priority", priority_of(ref))
        call_fields.setdefault("scope", self)
        return Read(target=target, transport=self.transport, plural=plural, **call_fields)

    def lease(self, name: str, namespace: str, identity: str | None = None, **timing: float) -> Lease:
        """Leadership by the Lease `name` in `namespace`: see `Lease`, and enter it before the dispatcher.

        `identity` (by default the host's name) gets a suffix of its own. `timing` is that of `LeaseTiming`:
        lease_duration=15, renew_deadline=10, retry_period=2, in seconds.
        """
        return Lease(self.transport, name, namespace, identity, timing=lease_timing(timing))

    def _fields(self, pod: Any, fence: str, given: dict[str, Any]) -> dict[str, Any]:
        """The call fields of a write on a Pod."""
        if fence not in ("uid", "version"):
            raise ConfigurationError("fence", fence, "must be 'uid' or 'version'")
        fields = {"priority": priority_of(pod), "scope": self, "transport": self.transport, **given}
        if fence == "version" and fields.get("version") is None:
            fields["version"] = None if isinstance(pod, ObjectRef) else version_of(pod)
            if not fields["version"]:
                raise ConfigurationError("pod.metadata.resourceVersion", None, "fence='version' needs it: pass the Pod")
        return fields


def _check_place(ref: ObjectRef) -> None:
    """A namespace exactly where the kind has one, as far as that is known without asking."""
    if (resource := builtin(ref)) is not None:
        collection_path(ref, resource)
