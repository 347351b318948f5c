"""Every metric that there is: its name, type, labels and meaning, in one table.

The collector fills it, the documentation shows it, and dashboards and alert rules are tested against it.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncdispatch._core.metering import RESULTS, SIZE

__all__ = ["FAMILIES", "PREFIX", "Family"]

PREFIX = "asyncdispatch_"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: `kind` is counter, gauge or histogram. `upstream`: kube-scheduler has it, as `scheduler_` + name."""

    name: str
    kind: str
    what: str
    labels: tuple[str, ...] = ()
    upstream: bool = False

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus knows it."""
        if self.name == "queue_wait_seconds":
            return (f"{self.full_name}_bucket",)  # to add waits up would cost as much as to count them
        if self.kind == "histogram":
            return tuple(self.full_name + end for end in ("_bucket", "_count", "_sum"))
        return (self.full_name,)


_TABLE = (
    # What upstream has.
    Family(
        "async_api_call_execution_total",
        "counter",
        f"Attempts that have ended, by result: {', '.join(RESULTS)}. A reconcile is none.",
        ("call_type", "result"),
        upstream=True,
    ),
    Family(
        "async_api_call_execution_duration_seconds",
        "histogram",
        "How long attempts took.",
        ("call_type", "result"),
        upstream=True,
    ),
    Family("pending_async_api_calls", "gauge", "Calls that wait, for whatever it is.", ("call_type",), upstream=True),
    # Calls.
    Family("up", "gauge", "1 if the dispatcher takes calls and its event loop has answered in time."),
    Family("accepted_calls_total", "counter", "Calls accepted."),
    Family(
        "refused_calls_total",
        "counter",
        "Calls refused: total, flow, joined or object for want of room; stale, merge_failed, closed or mistaken.",
        ("reason",),
    ),
    Family(
        "calls_total",
        "counter",
        "Calls by outcome. The reason is the verdict of what failed, where what expired was, why it was cancelled.",
        ("call_type", "outcome", "reason"),
    ),
    Family("duplicate_calls_total", "counter", "Calls that joined a live one or were remembered.", ("kind",)),
    Family("merged_calls_total", "counter", "Calls that took over from one in line, or absorbed one that came back."),
    Family("ambiguous_calls_total", "counter", "Calls without success that may have been applied.", ("call_type",)),
    Family("late_successes_total", "counter", "Successes that reached nobody: their callers had left.", ("call_type",)),
    Family("retries_total", "counter", "Calls that wait for another attempt, by verdict.", ("call_type", "verdict")),
    Family("scheduling_retries_total", "counter", "Objects that a Requeue has put back, by outcome.", ("outcome",)),
    Family(
        "reconciles_total",
        "counter",
        "Reads of what became of a request, by answer: applied, again, refused, unknown, error or cancelled.",
        ("call_type", "answer"),
    ),
    # Waiting.
    Family("queue_depth", "gauge", "Calls that wait, for whatever it is.", ("level", "flow")),
    Family("waiting_calls", "gauge", "Calls that wait, by what they wait for.", ("state",)),
    Family(
        "queue_wait_seconds",
        "histogram",
        "From acceptance, or the end of a call's delay, to its first attempt. Buckets only.",
        ("level",),
    ),
    Family("oldest_wait_seconds", "gauge", "For how long the oldest call of a level has waited.", ("level",)),
    Family("depth", "gauge", "Accepted calls without an outcome, of the capacity; joiners aside."),
    Family("capacity", "gauge", "How many there may be."),
    Family("joined_calls", "gauge", "Calls that wait for the outcome of an equal one."),
    Family("pressure", "gauge", "1 for the pressure that there is: ok, high or full.", ("pressure",)),
    # Flying.
    Family("in_flight", "gauge", "Attempts in flight.", ("call_type",)),
    Family("flow_in_flight", "gauge", "Attempts in flight.", ("flow",)),
    Family("oldest_in_flight_seconds", "gauge", "For how long the oldest attempt in flight has been under way."),
    Family("seats", "gauge", "How many attempts may be in flight now: this follows the server."),
    Family("seats_maximum", "gauge", "How many there may be at most."),
    Family("call_type_seats", "gauge", "The limit of a call type that has one.", ("call_type",)),
    Family("flow_seats", "gauge", "The limit of a flow that has one.", ("flow",)),
    # What holds calls back.
    Family("retry_budget", "gauge", "Retries that the budget has left."),
    Family("retry_budget_waiting_calls", "gauge", "Retries that wait for the budget."),
    Family("open_breakers", "gauge", "Breakers that let nothing through, or one probe, by call type.", ("call_type",)),
    Family("breaker_openings_total", "counter", "How often a breaker has opened.", ("call_type",)),
    Family("unauthenticated_seconds", "gauge", "For how long credentials have been refused; 0 if they are good."),
    # Health.
    Family("unobserved_writes", "gauge", "Own writes that no watch or read has shown yet."),
    Family("contexts", "gauge", "Scheduling contexts that have not ended."),
    Family("last_completion_age_seconds", "gauge", "Since a call has ended; absent before the first."),
    Family("event_loop_blocked_total", "counter", "Steps of user code that held the event loop for too long."),
    Family("observer_errors_total", "counter", "Errors of observers and callbacks."),
    Family("label_overflow_total", "counter", "How often a name had to share the label value other.", ("label",)),
    # Mode and guard.
    Family("mode", "gauge", "1 for the mode that it is in: async, draining or sync.", ("mode",)),
    Family("mode_changes_total", "counter", "Changes to a mode.", ("mode",)),
    Family("guard_state", "gauge", "1 for the state that the guard is in.", ("state",)),
    Family("guard_signal", "gauge", "What the guard sees of a signal, such as scheduling_p99 as told.", ("signal",)),
    Family("guard_limit", "gauge", "What the guard compares a signal with.", ("signal",)),
    Family("rollbacks_total", "counter", "Rollbacks of the guard, by the signal that was breached.", ("reason",)),
    # What is handed in.
    Family("lease_leader", "gauge", "1 while the lease is ours.", ("lease",)),
    Family("lease_valid_seconds", "gauge", "How much of the term is left; 0 without one.", ("lease",)),
    Family("lease_terms_total", "counter", "Terms that there were.", ("lease",)),
    Family("lease_request_failures_total", "counter", "Requests for the lease that have failed.", ("lease",)),
    Family("reflector_objects", "gauge", "Objects in the store.", ("reflector",)),
    Family(
        "reflector_stale_seconds", "gauge", "For how long it has heard nothing; +Inf before a list.", ("reflector",)
    ),
    Family("reflector_failures", "gauge", "Tries in a row that have failed.", ("reflector",)),
    Family("reflector_lists_total", "counter", "Lists begun.", ("reflector",)),
    Family("reflector_events_total", "counter", "Events of watches.", ("reflector",)),
    Family("reflector_drifts_total", "counter", "How often it was found that events had been lost.", ("reflector",)),
)

FAMILIES = {family.name: family for family in _TABLE}

DURATION_BOUNDS = tuple(range(15))
"""Upstream's: 1 ms and 14 doublings. The number is that of the bucket: below 2**n ms."""

WAIT_BOUNDS = tuple(range(17, 41))
"""From 131 µs to 18 minutes: below 2**n ns."""

assert WAIT_BOUNDS[-1] < SIZE
