"""Hypothesis strategies for what a dispatcher meets: objects, calls, what goes wrong with a request, schedules.

They draw few names and short times, so that calls meet on the same objects at the same time, which is where bugs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from asyncdispatch.calls import APICall, ObjectRef, Verdict, VerdictKind
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.testing.apiserver import StatusError, answers
from asyncdispatch.testing.stepping.wire import Trouble, instead, lost, unsent

__all__ = [
    "api_answers",
    "call_fields",
    "calls",
    "configs",
    "errors",
    "pauses",
    "pod",
    "pods",
    "priorities",
    "refs",
    "schedules",
    "troubles",
    "verdicts",
]

C = TypeVar("C", bound=APICall[Any])
T = TypeVar("T")

NAMES = ("a", "b")
PRIORITIES = (-1_000, 0, 1_000_000)
"""One in each of three levels of the default configuration."""


# -- objects --------------------------------------------------------------------------------------------------------


def refs(
    kind: str = "Pod", names: Sequence[str] = NAMES, *, api_version: str = "v1", namespace: str | None = "default"
) -> SearchStrategy[ObjectRef]:
    """Refs without uid to objects of a few names."""
    return st.sampled_from([ObjectRef(api_version, kind, namespace, name) for name in names])


def pod(name: str, *, namespace: str = "default", priority: int = 0) -> dict[str, Any]:
    """One such Pod."""
    spec = {"containers": [{"name": "main", "image": "app:1"}], "priority": priority}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def pods(names: Sequence[str] = NAMES, *, namespace: str = "default") -> SearchStrategy[dict[str, Any]]:
    """Pods that no scheduler has bound yet, as a test puts them on a server."""

    return st.builds(pod, st.sampled_from(names), namespace=st.just(namespace), priority=priorities())


# -- calls ----------------------------------------------------------------------------------------------------------


def priorities() -> SearchStrategy[int]:
    """Priorities of three levels; the default one is the simplest."""
    return st.sampled_from(sorted(PRIORITIES, key=abs))


def call_fields(**own: SearchStrategy[Any]) -> SearchStrategy[dict[str, Any]]:
    """Control fields of a call, each given or left out; `own` adds to them, or draws one of them otherwise."""
    fields: dict[str, SearchStrategy[Any]] = {
        "priority": priorities(),
        "flow": st.sampled_from(["default", "other"]),
        "timeout": st.sampled_from([60.0, 5.0, 0.5]),
        "not_before": st.sampled_from([0.0, 0.3, 2.0]),
        "sheddable": st.booleans(),
    }
    unknown = [name for name in own if name not in APICall.__dataclass_fields__]
    if unknown:
        raise ConfigurationError("own", unknown[0], "is no field of APICall: give fields of your type to `calls`")
    return st.fixed_dictionaries({}, optional=fields | own)


def calls(
    call_type: type[C], /, *, fields: SearchStrategy[dict[str, Any]] | None = None, **own: SearchStrategy[Any] | Any
) -> SearchStrategy[C]:
    """Calls of one class, with `own` fields drawn (a strategy) or fixed (anything else), and `fields` (by default of
    `call_fields()`) for control; what is in `own` wins."""
    drawn = {name: each if isinstance(each, SearchStrategy) else st.just(each) for name, each in own.items()}

    def make(control: dict[str, Any], fixed: dict[str, Any]) -> C:
        return call_type(**{**control, **fixed})

    return st.builds(make, call_fields() if fields is None else fields, st.fixed_dictionaries(drawn))


# -- what goes wrong ------------------------------------------------------------------------------------------------

NOT_APPLIED: list[answers.Answer | StatusError] = [
    answers.throttled(),
    answers.cache_not_ready(),
    answers.unauthorized(),
    answers.webhook_unreachable("policy.example.com"),
    answers.webhook_denied("policy.example.com", "not on Fridays", code=403),
    answers.quota_conflict(),
    answers.not_served(),
]
EITHER: list[answers.Answer | StatusError] = [answers.etcd_timeout(), answers.leader_changed(), answers.empty(503)]


def api_answers() -> SearchStrategy[answers.Answer | StatusError]:
    """Refusals as real servers give them: overload, storage, credentials, webhooks, quotas."""
    return st.sampled_from([*EITHER, *NOT_APPLIED])


def troubles() -> SearchStrategy[Trouble | None]:
    """What happens to one request: nothing (None), which is as likely as all the rest; no connection; an answer that
    is lost, whether the write has landed, has not, or will; a refusal; an error after which the write stands."""
    wrong = st.one_of(
        st.builds(lost, applied=st.booleans()),
        st.just(lost(late=True)),
        st.just(unsent()),
        st.builds(instead, st.sampled_from(NOT_APPLIED)),
        st.builds(instead, st.sampled_from(EITHER), applied=st.booleans()),
    )
    return st.booleans().flatmap(lambda calm: wrong if calm else st.none())


def verdicts() -> SearchStrategy[Verdict]:
    """Any verdict, for a `StepDriver` that is told what an attempt's error means."""
    return st.builds(Verdict, st.sampled_from(VerdictKind), maybe_applied=st.booleans(), retry_after=st.none())


def errors() -> SearchStrategy[Exception]:
    """Exceptions as `execute` raises them where no server of the test's is asked."""
    return st.sampled_from([ConnectionResetError("reset"), TimeoutError("no answer"), ValueError("no such thing")])


# -- time and size --------------------------------------------------------------------------------------------------


def pauses() -> SearchStrategy[float]:
    """Seconds between two things: none, less than a round trip, a backoff, longer than aging and most time-outs."""
    return st.sampled_from([0.0, 0.01, 0.5, 5.0, 60.0])


def schedules(items: SearchStrategy[T], *, max_size: int = 20) -> SearchStrategy[list[tuple[float, T]]]:
    """Who comes when: pairs of the seconds since the one before, and what comes."""
    return st.lists(st.tuples(pauses(), items), max_size=max_size)


def configs() -> SearchStrategy[DispatcherConfig]:
    """Small dispatchers, which are soon full."""
    return st.builds(
        DispatcherConfig,
        capacity=st.sampled_from([200, 20, 4]),
        lane_capacity=st.sampled_from([8, 2]),
        max_in_flight=st.sampled_from([4, 1]),
        aging=st.sampled_from([5.0, 0.5]),
    )
