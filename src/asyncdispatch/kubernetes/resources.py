"""Where objects live on the API server: kinds, their plurals, and the paths made of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.verdicts import regular_plural

__all__ = [
    "Resource",
    "builtin",
    "builtin_kind",
    "check_segment",
    "collection_path",
    "group_path",
    "object_path",
    "regular_plural",
]


@dataclass(frozen=True, slots=True)
class Resource:
    """How a kind is served: its name in paths, and whether its objects are in namespaces."""

    plural: str
    namespaced: bool


# Group: kinds in namespaces, kinds of the whole cluster. Versions don't matter: no kind has changed between them.
_KINDS: Mapping[str, tuple[str, str]] = {
    "": (
        """ConfigMap Endpoints Event LimitRange PersistentVolumeClaim Pod PodTemplate ReplicationController
        ResourceQuota Secret Service ServiceAccount""",
        "ComponentStatus Namespace Node PersistentVolume",
    ),
    "admissionregistration.k8s.io": (
        "",
        """MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration
        ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration""",
    ),
    "apiextensions.k8s.io": ("", "CustomResourceDefinition"),
    "apiregistration.k8s.io": ("", "APIService"),
    "apps": ("ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet", ""),
    "autoscaling": ("HorizontalPodAutoscaler", ""),
    "batch": ("CronJob Job", ""),
    "certificates.k8s.io": ("PodCertificateRequest", "CertificateSigningRequest ClusterTrustBundle"),
    "coordination.k8s.io": ("Lease LeaseCandidate", ""),
    "discovery.k8s.io": ("EndpointSlice", ""),
    "events.k8s.io": ("Event", ""),
    "flowcontrol.apiserver.k8s.io": ("", "FlowSchema PriorityLevelConfiguration"),
    "internal.apiserver.k8s.io": ("", "StorageVersion"),
    "networking.k8s.io": ("Ingress NetworkPolicy", "IngressClass IPAddress ServiceCIDR"),
    "node.k8s.io": ("", "RuntimeClass"),
    "policy": ("PodDisruptionBudget", ""),
    "rbac.authorization.k8s.io": ("Role RoleBinding", "ClusterRole ClusterRoleBinding"),
    "resource.k8s.io": (
        "ResourceClaim ResourceClaimTemplate",
        "DeviceClass DeviceTaintRule ResourcePoolStatusRequest ResourceSlice",
    ),
    "scheduling.k8s.io": ("PodGroup Workload", "PriorityClass"),
    "storagemigration.k8s.io": ("", "StorageVersionMigration"),
    "storage.k8s.io": (
        "CSIStorageCapacity",
        "CSIDriver CSINode StorageClass VolumeAttachment VolumeAttributesClass",
    ),
}


_BUILTIN: Mapping[tuple[str, str], Resource] = MappingProxyType(
    {
        (group, kind): Resource(regular_plural(kind), namespaced)
        for group, columns in _KINDS.items()
        for namespaced, kinds in zip((True, False), columns, strict=True)
        for kind in kinds.split()
    }
)


_KIND_OF: Mapping[tuple[str, str], str] = MappingProxyType(
    {(group, resource.plural): kind for (group, kind), resource in _BUILTIN.items()}
)


def builtin(ref: ObjectRef) -> Resource | None:
    """How the API server itself serves the ref's kind, or None for what has to be looked up."""
    return _BUILTIN.get((ref.api_version.rpartition("/")[0], ref.kind))


def builtin_kind(api_version: str, plural: str) -> str | None:
    """The kind that the API server itself serves under `plural`, or None for what has to be looked up."""
    return _KIND_OF.get((api_version.rpartition("/")[0], plural))


def group_path(api_version: str) -> str:
    """The path of a group and version: `/api/v1`, `/apis/batch/v1`. Discovery is a GET of it."""
    group, slash, version = api_version.rpartition("/")
    return f"/apis/{_segment(group)}/{_segment(version)}" if slash else f"/api/{_segment(version)}"


def collection_path(ref: ObjectRef, resource: Resource) -> str:
    """The path that is listed and created in. `ConfigurationError` if the ref's namespace does not suit its kind."""
    if resource.namespaced and ref.namespace is None:
        raise ConfigurationError("metadata.namespace", None, f"a {ref.kind} is in a namespace: say which")
    if not resource.namespaced and ref.namespace is not None:
        raise ConfigurationError("metadata.namespace", ref.namespace, f"a {ref.kind} is in no namespace: leave it out")
    namespace = f"/namespaces/{_segment(ref.namespace)}" if ref.namespace is not None else ""
    return f"{group_path(ref.api_version)}{namespace}/{_segment(resource.plural)}"


def object_path(ref: ObjectRef, resource: Resource, subresource: str = "") -> str:
    """The path of the object itself, or of one of its subresources."""
    path = f"{collection_path(ref, resource)}/{_segment(ref.name)}"
    return f"{path}/{subresource}" if subresource else path


def check_segment(value: Any, field: str) -> None:
    """`ConfigurationError` for what can't be one segment of a path, by the API server's own rule for names."""
    if not isinstance(value, str) or value in ("", ".", "..") or "/" in value or "%" in value:
        remedy = "must be a string without '/' and '%', other than '.' and '..': it stands in the object's path"
        raise ConfigurationError(field, value, remedy)


_PLAIN = re.compile(r"[A-Za-z0-9-][A-Za-z0-9._-]*")


def _segment(value: str) -> str:
    """`value` as one segment of a path, whatever is in it."""
    if _PLAIN.fullmatch(value):
        return value
    if value in (".", ".."):
        raise ConfigurationError("metadata.name", value, "can't name an object: paths give it a meaning of its own")
    return quote(value, safe=":@!$&'()*+,;=")
