"""Resource quotas: what an object uses, and whether a new one may."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from asyncdispatch.testing.apiserver.kinds import child, mapping
from asyncdispatch.testing.apiserver.resources import Resource
from asyncdispatch.testing.apiserver.status import Json, forbidden
from asyncdispatch.testing.apiserver.store import Store, Stored

Usage = dict[str, Decimal]

_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal("1e3"), "M": Decimal("1e6"), "G": Decimal("1e9"), "T": Decimal("1e12"), "P": Decimal("1e15"),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip
_BY_PLAIN_NAME = ("pods", "services", "secrets", "configmaps", "persistentvolumeclaims", "resourcequotas")
_OF_CONTAINERS = ("cpu", "memory", "ephemeral-storage")


def quantity(text: object) -> Decimal:
    """The number that a quantity like `500m` or `1Gi` stands for; 0 for what is none."""
    said = str(text)
    number = said.rstrip("numkMGTPi")
    try:
        return Decimal(number) * _SUFFIXES[said[len(number) :]]
    except (InvalidOperation, KeyError):
        return Decimal(0)


def written(value: Decimal, name: str) -> str:
    """A quantity as the API server writes it."""
    if value != value.to_integral_value():
        return f"{(value * 1000).to_integral_value()}m"
    if "memory" in name or "storage" in name:
        for suffix in ("Pi", "Ti", "Gi", "Mi", "Ki"):
            if value and not value % _SUFFIXES[suffix]:
                return f"{value / _SUFFIXES[suffix]:f}{suffix}"
    return f"{value.to_integral_value():f}"


def usage(resource: Resource, obj: Json) -> Usage:
    """What an object uses: its count, and for a Pod that has not ended its requests and limits."""
    ended = resource.kind == "Pod" and child(obj, "status", "phase") in ("Succeeded", "Failed")
    qualified = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    used = {f"count/{qualified}": Decimal(1)}
    if not resource.group and resource.plural in _BY_PLAIN_NAME and not ended:
        used[resource.plural] = Decimal(1)
    if resource.kind == "Pod" and not resource.group and not ended:
        for part in ("requests", "limits"):
            for name in _OF_CONTAINERS:
                total = _total(mapping(obj, "spec"), part, name)
                used[f"{part}.{name}"] = total
                if part == "requests":
                    used[name] = total
    return used


def check(store: Store, resource: Resource, name: str, obj: Json) -> None:
    """Refuse (403) a new object that a quota of its namespace does not allow, as far as its status is known."""
    for stored in _quotas(store, str(child(obj, "metadata", "namespace") or "")):
        hard, used = mapping(stored.obj, "status", "hard"), mapping(stored.obj, "status", "used")
        wanted = {key: value for key, value in usage(resource, obj).items() if key in hard}
        if not wanted:
            continue
        if missing := _missing(wanted, obj):
            raise forbidden(*_about(resource, name), f"failed quota: {stored.key[1]}: must specify {missing}")
        if any(key not in used for key in wanted):
            why = f"status unknown for quota: {stored.key[1]}, resources: {','.join(sorted(wanted))}"
            raise forbidden(*_about(resource, name), why)
        over = sorted(key for key in wanted if wanted[key] and quantity(used[key]) + wanted[key] > quantity(hard[key]))
        if over:
            asked = {key: written(wanted[key], key) for key in over}
            why = f"requested: {_shown(asked, over)}, used: {_shown(used, over)}, limited: {_shown(hard, over)}"
            raise forbidden(*_about(resource, name), f"exceeded quota: {stored.key[1]}, {why}")


def charge(store: Store, resource: Resource, obj: Json) -> None:
    """Note in the quotas what a new object uses. Only a controller (see `controllers`) takes it back."""
    for stored in _quotas(store, str(child(obj, "metadata", "namespace") or "")):
        status = mapping(stored.obj, "status")
        used, hard = mapping(status, "used"), mapping(status, "hard")
        wanted = {key: value for key, value in usage(resource, obj).items() if key in hard and value}
        if wanted:
            new = {**used, **{key: written(quantity(used.get(key, 0)) + wanted[key], key) for key in wanted}}
            store.put(stored.resource, {**stored.obj, "status": {**status, "used": new}})


def _quotas(store: Store, namespace: str) -> list[Stored]:
    table = store.table(store.registry.named("ResourceQuota"))
    return [stored for key, stored in table.objects.items() if key[0] == namespace]


def _about(resource: Resource, name: str) -> tuple[str, str, str]:
    return resource.group, resource.plural, name


def _total(spec: Json, part: str, name: str) -> Decimal:
    """What a Pod asks for in all: its containers together, or its greediest initial one."""

    def of(containers: str) -> list[Decimal]:
        return [quantity(mapping(one, "resources", part).get(name, 0)) for one in spec.get(containers) or ()]

    return max(sum(of("containers"), Decimal(0)), *of("initContainers"), Decimal(0))


def _missing(wanted: Mapping[str, Any], obj: Json) -> str:
    """What containers leave out although a quota counts it, as the API server words it."""
    lacking: list[str] = []
    for key in sorted(wanted):
        part, _, name = key.rpartition(".")
        if name not in _OF_CONTAINERS or part not in ("", "requests", "limits"):
            continue
        names = [
            str(one.get("name"))
            for one in [*(child(obj, "spec", "containers") or ()), *(child(obj, "spec", "initContainers") or ())]
            if name not in mapping(one, "resources", part or "requests")
        ]
        if names:
            lacking.append(f"{key} for: {','.join(names)}")
    return "; ".join(lacking)


def _shown(values: Mapping[str, Any], keys: list[str]) -> str:
    return ",".join(f"{key}={values[key]}" for key in keys)
