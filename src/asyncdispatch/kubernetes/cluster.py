"""A cluster: the front door of this package. It makes calls; a dispatcher carries them out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from asyncdispatch.calls import ObjectRef, version_of
from asyncdispatch.errors import ConfigurationError, MissingField
from asyncdispatch.kubernetes.calls import Read
from asyncdispatch.kubernetes.conditions import KEEP, Nomination, checked, timed
from asyncdispatch.kubernetes.creation import Create, checked_new
from asyncdispatch.kubernetes.credentials import connect_client
from asyncdispatch.kubernetes.events import REPORTER, Event, regarding, slot
from asyncdispatch.kubernetes.kubeconfig import KubeconfigPath
from asyncdispatch.kubernetes.lease import Lease, lease_timing
from asyncdispatch.kubernetes.objects import checked_ref, node_name, pod_ref, priority_of, to_json
from asyncdispatch.kubernetes.patches import change_of
from asyncdispatch.kubernetes.pods import PodBinding, PodStatusPatch, conditions_of, of_unbound
from asyncdispatch.kubernetes.reflector import Reflector, Selector
from asyncdispatch.kubernetes.removal import Delete, Evict
from asyncdispatch.kubernetes.resources import builtin, check_segment, collection_path
from asyncdispatch.kubernetes.shards import Key, ShardSet
from asyncdispatch.kubernetes.transport import Transport
from asyncdispatch.kubernetes.writes import Patch, Replace

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

        With neither argument and in a Pod that has a token, its service account; else the kubeconfig (by default where
        KUBECONFIG says, or `~/.kube/config`) with its current context. Its token, client certificate and authorities
        are kept fresh: read again when they change, expire or are refused, off the loop. Raises `ConfigurationError`
        for a file or context that is missing or broken, never telling a secret.
        """
        api_client, credentials = await connect_client(kubeconfig, context)
        try:
            yield cls(api_client)
        finally:
            await credentials.aclose()
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
        somebody else has written in between; else it is fenced by the uid alone. But what a bound Pod must not show
        (not scheduled, a nominated node) is written only onto the state that it was decided on, unless `fence="uid"`
        is given, so that it can't land behind a bind however late it is: see `PodStatusPatch`. A patch of which `pod`
        shows everything already is a no-op.
        """
        ref = pod_ref(pod)
        current = [] if isinstance(pod, ObjectRef) else conditions_of(pod)
        stamped = timed(checked(conditions), current, datetime.now(UTC))
        if fence is None and call_fields.get("version") is None and of_unbound(stamped, nominated_node):
            call_fields.setdefault("base", None if isinstance(pod, ObjectRef) else version_of(pod))
        call_fields = self._fields(pod, fence or "uid", call_fields)
        call = PodStatusPatch(target=ref, conditions=stamped, nominated_node=nominated_node, **call_fields)
        if call.done_in(pod):
            object.__setattr__(call, "satisfied", True)
        return call

    def create(self, obj: Any, *, plural: str | None = None, **call_fields: Any) -> Create:
        """Create `obj`, once. With `idempotency_key` (a string) it carries our mark: see `Create`.

        `plural` is the kind's name in paths, for a custom resource; without it the server is asked, once.
        """
        ref = checked_ref(obj)
        given = to_json(obj, "obj")
        body = checked_new({**given, "apiVersion": ref.api_version, "kind": ref.kind})
        _check_place(ref, plural)
        call_fields.setdefault("priority", priority_of(body))
        call_fields.setdefault("scope", self)
        return Create(target=ref, obj=body, transport=self.transport, plural=plural, **call_fields)

    def read(self, ref: Any, *, plural: str | None = None, **call_fields: Any) -> Read:
        """Read the object that `ref` (an ObjectRef, or an object) names. With a uid, that very object.

        `version=…` allows an answer from the server's cache that is at least as new; by default it is the newest state.
        """
        target = _named(ref, plural)
        call_fields.setdefault("priority", priority_of(ref))
        call_fields.setdefault("scope", self)
        return Read(target=target, transport=self.transport, plural=plural, **call_fields)

    def patch(
        self,
        ref: Any,
        patch: Any,
        *,
        fence: Fence = "uid",
        strategic: bool = False,
        subresource: str = "",
        plural: str | None = None,
        **call_fields: Any,
    ) -> Patch:
        """Patch the object that `ref` (an ObjectRef, or an object) names; see `Patch`.

        `patch` is a mapping (a merge patch; for built-in kinds a strategic one on request), a list of operations (a
        JSON Patch), or a function that is given the object and returns one of the two, or None if nothing is to be
        done. What a function decides is fenced by the version of the object that it was given, and decided anew
        whenever somebody else has written in between: it must ask for a state, not for a step towards one.

        A fixed patch is fenced by the uid, where `ref` has one; with `fence="version"` (or `version=…`) also by the
        version. One that replaces a list, or names a place in one, needs that (rule R21).
        """
        target, known = _named(ref, plural, subresource), _whole(ref)
        if callable(patch):
            if fence != "uid" or call_fields.get("version") is not None:
                raise ConfigurationError("version", fence, "is that of the object the function is given: leave it out")
            wanted: dict[str, Any] = {"decide": patch}
        else:
            change = change_of(patch, target, strategic=strategic, subresource=subresource)
            target = change.own_fence(target, call_fields)
            wanted = {"change": change}
        call_fields = self._fields(ref, fence, call_fields)
        call = Patch(
            target=target, strategic=strategic, subresource=subresource, plural=plural, **wanted, **call_fields
        )
        return call if known is None else call.on(known)

    def replace(self, obj: Any, *, subresource: str = "", plural: str | None = None, **call_fields: Any) -> Replace:
        """Replace an object by `obj` whole, fenced by the uid and the resourceVersion in `obj`: see `Replace`."""
        target = _named(obj, plural, subresource)
        body = {**to_json(obj, "obj"), "apiVersion": target.api_version, "kind": target.kind}
        call_fields.setdefault("version", version_of(body))
        fields = self._fields(obj, "uid", call_fields)
        return Replace(target=target, obj=body, subresource=subresource, plural=plural, **fields)

    def delete(
        self,
        ref: Any,
        *,
        fence: Fence = "uid",
        grace_period: int | None = None,
        propagation: str | None = None,
        plural: str | None = None,
        **call_fields: Any,
    ) -> Delete:
        """Delete the object that `ref` (an ObjectRef, or an object) names: see `Delete`.

        With a uid, that very object and no other of its name; with `fence="version"` (or `version=…`) only as it was
        seen. `grace_period` is in seconds; `propagation` is "Background", "Foreground" or "Orphan". An object that is
        dying counts as deleted: a create of its name waits until it has gone.
        """
        target, known = _named(ref, plural), _whole(ref)
        fields = self._fields(ref, fence, call_fields)
        call = Delete(target=target, grace_period=grace_period, propagation=propagation, plural=plural, **fields)
        return call if known is None else call.on(known)

    def evict(self, pod: Any, *, fence: Fence = "uid", grace_period: int | None = None, **call_fields: Any) -> Evict:
        """Evict `pod`: delete it as soon as its disruption budgets allow. See `Evict`. The uid must match, always."""
        target, known = pod_ref(pod), _whole(pod)
        fields = self._fields(pod, fence, call_fields)
        call = Evict(target=target, grace_period=grace_period, **fields)
        return call if known is None else call.on(known)

    def event(
        self,
        obj: Any,
        *,
        reason: str,
        message: str,
        type: str = "Normal",  # noqa: A002 (the field's own name)
        action: str | None = None,
        reporter: str = REPORTER,
        **call_fields: Any,
    ) -> Event:
        """Tell people about `obj`, at best effort: see `Event`.

        `reason` is one word of a machine's (CamelCase), `message` is for people, `type` is "Normal" or "Warning",
        `action` says what was done (by default the reason), `reporter` which component says so. Those about one object
        with equal reason, type, action and reporter become one while they wait. An Event that is not told within a
        minute is not told, unless `timeout` says otherwise.
        """
        about, action = regarding(obj), reason if action is None else action
        fields = {"timeout": 60.0, "scope": self, "transport": self.transport, **call_fields}
        return Event(
            target=slot(about, *(str(part) for part in (reason, type, action, reporter))),
            about=about,
            reason=reason,
            note=message,
            type=type,
            action=action,
            reporter=reporter,
            **fields,
        )

    def lease(self, name: str, namespace: str, identity: str | None = None, **timing: float) -> Lease:
        """Leadership by the Lease `name` in `namespace`: see `Lease`, and enter it before the dispatcher.

        `identity` is who holds it, to others: each replica's own (by default the host's name, and a random part).
        `timing` is that of `LeaseTiming`: lease_duration=15, renew_deadline=10, retry_period=2, in seconds.
        """
        return Lease(self.transport, name, namespace, identity, timing=lease_timing(timing))

    def shards(
        self,
        name: str,
        namespace: str,
        identity: str | None = None,
        total: int | None = None,
        *,
        key: Key | None = None,
        handover_timeout: float = 30.0,
        **timing: float,
    ) -> ShardSet:
        """A share of `total` shards, each fenced by a Lease of its own: see `ShardSet`, and enter it first.

        `total` must be given: the same number in all replicas.
        """
        if total is None:
            raise MissingField("total", None, "say how many shards there are: the same number in all replicas")
        return ShardSet(
            self.transport,
            name,
            namespace,
            identity,
            total=total,
            key=key,
            handover_timeout=handover_timeout,
            timing=lease_timing(timing),
        )

    def reflector(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str | None = None,
        labels: Selector = None,
        fields: Selector = None,
        **settings: Any,
    ) -> Reflector:
        """What the server has of one kind, kept up to date here: `async with cluster.reflector("v1", "Pod") as pods`.

        Of all namespaces, unless one is given. `labels` and `fields` select, as text or as a mapping. `settings` are
        those of `Reflector`: dispatcher, handlers, plural, and its bounds and times.
        """
        return Reflector(
            self.transport, api_version, kind, namespace=namespace, labels=labels, fields=fields, **settings
        )

    def _fields(self, obj: Any, fence: str, given: dict[str, Any]) -> dict[str, Any]:
        """The call fields of a write on an object."""
        if fence not in ("uid", "version"):
            raise ConfigurationError("fence", fence, "must be 'uid' or 'version'")
        fields = {"priority": priority_of(obj), "scope": self, "transport": self.transport, **given}
        if fence == "version" and fields.get("version") is None:
            fields["version"] = None if isinstance(obj, ObjectRef) else version_of(obj)
            if not fields["version"]:
                remedy = "fence='version' needs it: pass the object as the API server sent it"
                raise ConfigurationError("metadata.resourceVersion", None, remedy)
        return fields


def _check_place(ref: ObjectRef, plural: str | None, subresource: str = "") -> None:
    """What the path is made of; and a namespace exactly where the kind has one, as far as that is known unasked."""
    if plural is not None:
        check_segment(plural, "plural")
    if subresource != "":
        check_segment(subresource, "subresource")
    if (resource := builtin(ref)) is not None:
        collection_path(ref, resource)


def _named(obj: Any, plural: str | None, subresource: str = "") -> ObjectRef:
    """The ref of an object that has a name already."""
    ref = checked_ref(obj)
    if ref.generated:
        raise ConfigurationError("metadata.name", ref.name, "give the name: it is not known yet for this object")
    _check_place(ref, plural, subresource)
    return ref


def _whole(obj: Any) -> Any:
    """`obj` as a dict, if it is an object as a server has sent it; None for a ref, and for a part of one."""
    if isinstance(obj, ObjectRef) or version_of(obj) is None:
        return None
    return obj if isinstance(obj, dict) else to_json(obj, "obj")
