"""Kubernetes calls for the dispatcher, on the raw transport of kubernetes_asyncio. Needs the extra `kubernetes`."""

from asyncdispatch.kubernetes.calls import Read
from asyncdispatch.kubernetes.cluster import Cluster
from asyncdispatch.kubernetes.conditions import KEEP
from asyncdispatch.kubernetes.creation import Create
from asyncdispatch.kubernetes.errors import ApiError, TransportError
from asyncdispatch.kubernetes.pods import PodBinding, PodStatusPatch

__all__ = [
    "KEEP",
    "ApiError",
    "Cluster",
    "Create",
    "PodBinding",
    "PodStatusPatch",
    "Read",
    "TransportError",
]
