"""Prometheus metrics of a dispatcher: `Dispatcher(registry=registry)`, where `registry` is prometheus_client's.

Next to nothing is counted while calls run; the rest is read when Prometheus asks. `FAMILIES` says which metrics there
are. Named like kube-scheduler's own where it has one, under the prefix `asyncdispatch_`.
"""

from asyncdispatch.metrics.collector import DispatcherMetrics
from asyncdispatch.metrics.families import FAMILIES, PREFIX, Family

__all__ = ["FAMILIES", "PREFIX", "DispatcherMetrics", "Family"]
