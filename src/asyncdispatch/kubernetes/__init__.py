"""Kubernetes calls for the dispatcher, on the raw transport of kubernetes_asyncio. Needs the extra `kubernetes`."""

from asyncdispatch.apierrors import ApiError, TransportError
from asyncdispatch.kubernetes.calls import Read
from asyncdispatch.kubernetes.classification import classify_error
from asyncdispatch.kubernetes.cluster import Cluster
from asyncdispatch.kubernetes.conditions import KEEP
from asyncdispatch.kubernetes.creation import Create
from asyncdispatch.kubernetes.dispatching import DispatchingApiClient
from asyncdispatch.kubernetes.events import Event
from asyncdispatch.kubernetes.lease import Lease, LeaseState, LeaseStatistics, LeaseTiming
from asyncdispatch.kubernetes.pods import PodBinding, PodStatusPatch
from asyncdispatch.kubernetes.reflector import (
    Reflector,
    ReflectorError,
    ReflectorState,
    ReflectorStatistics,
    WatchEvent,
)
from asyncdispatch.kubernetes.removal import Delete, Evict
from asyncdispatch.kubernetes.shards import ShardSet, ShardStatistics
from asyncdispatch.kubernetes.writes import Patch, Replace
from asyncdispatch.verdicts import register

__all__ = [
    "KEEP",
    "ApiError",
    "Cluster",
    "Create",
    "Delete",
    "DispatchingApiClient",
    "Event",
    "Evict",
    "Lease",
    "LeaseState",
    "LeaseStatistics",
    "LeaseTiming",
    "Patch",
    "PodBinding",
    "PodStatusPatch",
    "Read",
    "Reflector",
    "ReflectorError",
    "ReflectorState",
    "ReflectorStatistics",
    "Replace",
    "ShardSet",
    "ShardStatistics",
    "TransportError",
    "WatchEvent",
]

# Plain functions over a client library meet the same table as the calls of this package.
register(classify_error)
