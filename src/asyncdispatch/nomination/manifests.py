"""What to apply before a nominator runs in a cluster: its account, its rights, and the policy that bounds them.

RBAC can allow `patch` on `pods/status`, not which fields of it. The ValidatingAdmissionPolicy does: of a Pod's status
the nominated node, from empty to a name or back, and our annotations, whatever the program tries (laws N2, N3).
"""

from __future__ import annotations

from typing import Any

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.objects import node_name
from asyncdispatch.nomination.decisions import PREFIX, checked_prefix

__all__ = ["FILES", "files", "manifests"]

Json = dict[str, Any]

STATUS_FIELDS = (
    *("phase", "conditions", "message", "reason", "hostIP", "hostIPs", "podIP", "podIPs", "startTime", "qosClass"),
    *("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses", "resize", "resourceClaimStatuses"),
    *("extendedResourceClaimStatus", "observedGeneration", "allocatedResources", "resources"),
)
"""All fields of a Pod's status but ours, up to Kubernetes 1.37. One that a server does not know is never there."""
META_FIELDS = ("labels", "finalizers", "ownerReferences")

FILES = ("serviceaccount.yaml", "rbac.yaml", "policy.yaml", "deployment.yaml")
"""Of `deploy/nomination`, in the order in which they are applied."""


def manifests(
    *, prefix: str = PREFIX, namespace: str = "nomination", name: str = "asyncdispatch-nominator"
) -> list[Json]:
    """Service account, roles with their bindings, admission policy with its binding, and a Deployment to begin with.

    `prefix` is that of the policy's annotations (`NominationPolicy.prefix`). Raises `ConfigurationError` for what is no
    prefix, or can't be the name of an object.
    """
    return [manifest for group in files(prefix=prefix, namespace=namespace, name=name).values() for manifest in group]


def files(*, prefix: str, namespace: str, name: str) -> dict[str, list[Json]]:
    """The same by the name of the file that holds them."""
    checked_prefix(prefix)
    for label, value in (("namespace", namespace), ("name", name)):
        if len(node_name(value, label)) > 63 or "." in value:
            raise ConfigurationError(label, value, "must be a DNS label: at most 63 of a-z, 0-9 and '-'")
    place = {"name": name, "namespace": namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place}
    parts = ([account], _rights(name, namespace), _policy(prefix, namespace, name), [_deployment(name, namespace)])
    return dict(zip(FILES, parts, strict=True))


def _rights(name: str, namespace: str) -> list[Json]:
    """No right on `pods/binding`, and none to change Pods: only on their status."""
    group, subject = "rbac.authorization.k8s.io", {"kind": "ServiceAccount", "name": name, "namespace": namespace}

    def rule(groups: str, resource: str, *verbs: str) -> Json:
        return {"apiGroups": [groups], "resources": [resource], "verbs": list(verbs)}

    rules = [
        rule("", "pods", "get", "list", "watch"),
        rule("", "pods/status", "patch"),
        rule("", "nodes", "get", "list", "watch"),
        rule("events.k8s.io", "events", "create", "patch"),
    ]
    leases = [rule("coordination.k8s.io", "leases", "get", "list", "create", "update")]
    shards = {"name": f"{name}-shards", "namespace": namespace}
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        _binding("ClusterRole", {"name": name}, subject),
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": shards, "rules": leases},
        _binding("Role", shards, subject),
    ]


def _binding(role: str, metadata: Json, subject: Json) -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": f"{role}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": role, "name": metadata["name"]},
        "subjects": [subject],
    }


def _policy(prefix: str, namespace: str, name: str) -> list[Json]:
    group = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": group,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "resourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["UPDATE"],
                            "resources": ["pods/status"],
                        }
                    ]
                },
                "matchConditions": [
                    {
                        "name": "is-the-nominator",
                        "expression": f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'",
                    }
                ],
                "variables": [
                    {"name": "old", "expression": "oldObject.metadata.?annotations.orValue({})"},
                    {"name": "new", "expression": "object.metadata.?annotations.orValue({})"},
                    {"name": "was", "expression": "oldObject.status.?nominatedNodeName.orValue('')"},
                    {"name": "is", "expression": "object.status.?nominatedNodeName.orValue('')"},
                ],
                "validations": _validations(prefix),
            },
        },
        {
            "apiVersion": group,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def _validations(prefix: str) -> list[Json]:
    def unchanged(part: str, field: str) -> Json:
        return {
            "expression": f"object.{part}.?{field} == oldObject.{part}.?{field}",
            "message": f"a nominator must not change {part}.{field}",
        }

    ours = f"k.startsWith('{prefix}/')"
    kept = "k in variables.old && variables.old[k] == variables.new[k]"
    return [
        {
            "expression": "variables.is == variables.was || variables.is == '' || variables.was == ''",
            "message": "a nominator must not replace a nominated node",
        },
        {
            "expression": f"variables.new.all(k, {ours} || ({kept}))",
            "message": f"a nominator must not set annotations but {prefix}/…",
        },
        {
            "expression": f"variables.old.all(k, {ours} || k in variables.new)",
            "message": f"a nominator must not remove annotations but {prefix}/…",
        },
        *(unchanged("metadata", field) for field in META_FIELDS),
        *(unchanged("status", field) for field in STATUS_FIELDS),
    ]


def _deployment(name: str, namespace: str) -> Json:
    labels = {"app.kubernetes.io/name": name}
    container = {
        "name": "nominator",
        "image": "registry.example.com/nominator:1",
        "args": ["python", "nominator.py"],
        "ports": [{"name": "metrics", "containerPort": 8080}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "prometheus.io/path": "/metrics"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": scraped},
                "spec": {
                    "serviceAccountName": name,
                    "terminationGracePeriodSeconds": 90,  # longer than drain_timeout: hints are taken back
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [container],
                },
            },
        },
    }
