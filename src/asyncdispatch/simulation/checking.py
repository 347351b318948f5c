"""What must be true of a history, whoever made it: read from its records alone, knowing nothing of the core.

Each rule has a name, which a violation tells, and counts how often it was looked at. An object is a register whose
versions the store counts up, so that one pass over the audit proves it linearizable: the order of the audit must be a
legal one for each object (every request finds what the one before it left, and leaves what it says), and must not
contradict real time (no request was answered before an earlier one in that order was sent). With the versions given,
there is no other order to search for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from asyncdispatch.calls import Effect
from asyncdispatch.simulation.history import NEVER, CallRecord, History, RequestRecord, State
from asyncdispatch.simulation.scenario import Scenario

__all__ = ["RULES", "Findings", "Violation", "check"]

SECOND = 1_000_000_000
SLACK = SECOND // 5
"""An outcome may come so much after its limit: deadlines are told within a bucket, stops take a moment."""
MAYBE = frozenset({"reset", "unavailable", "denied", "timed out", "stopped"})
"""What a sender is told of a request that may have been carried out."""
READ, CREATE = Effect.READ, Effect.CREATE

RULES = {
    "one outcome": "each accepted call of a living replica is told exactly one outcome, in time (law L1)",
    "success has its effect": "a call that succeeded was answered well, or is seen to be done (law L10)",
    "no success, no effect": "any other call has none, unless it says ambiguous or tells a late success (law L10)",
    "once": "one create for each key, one bind for each Pod, nothing sent again that was answered well (promise 2)",
    "looks before it repeats": "a create that may have been applied is not sent again before a look (law L10)",
    "one in flight": "a replica has at most one write of an object in flight (law L2)",
    "in line": "notes of one object are first sent in the order in which they were accepted (law L12)",
    "nothing of an ended context": "nothing is sent, and no success told, after its context's end (laws L5, L11)",
    "nothing too late": "nothing is sent after its deadline (law L5)",
    "superseded": "who names another call as its heir is right (laws L12, L13)",
    "merged": "what a merged call has said is said by its heir (law L13)",
    "own writes are seen": "no Pod is placed again by who was told that its bind succeeded (law L18)",
    "joined": "who shares an execution gets its value (law L8)",
    "legal": "every request finds what the one before it has left, and changes what it says (the server's own)",
    "real time": "the server's order does not contradict the senders' clocks (linearizability)",
    "fenced": "what is fenced by uid or version acts on that uid and version only (law L17)",
    "no dead hand": "nothing of an earlier leader, bound or decided on a version, lands after a later one's (rule R7)",
    "one leader": "no two replicas take themselves for the leader at one time (rule R7)",
}
"""What is checked, by the name that a violation tells."""


class Violation(NamedTuple):
    """One thing that must not be: which rule, what was seen, of which object, and when."""

    rule: str
    what: str
    lane: str
    at: int


class Findings(NamedTuple):
    """How often each rule was looked at, and what was found."""

    checks: Counter[str]
    violations: list[Violation]


def check(history: History, scenario: Scenario) -> Findings:
    """Look at all of it. Changes nothing."""
    return _Checker(history, scenario).run()


class _Checker:
    def __init__(self, history: History, scenario: Scenario) -> None:
        self.history = history
        self.checks: Counter[str] = Counter(dict.fromkeys(RULES, 0))
        self.violations: list[Violation] = []
        config = scenario.config
        self.patience = round(config.give_up * SECOND) + SLACK
        self.supersedes = {name: frozenset(policy.supersedes) for name, policy in config.call_types.items()}
        self._by_ticket: dict[tuple[int, int], CallRecord] | None = None
        self.joiners: dict[int, list[CallRecord]] = defaultdict(list)  # by identity of the call that was joined

    def run(self) -> Findings:
        for record in self.history.calls:
            if record.lead is not None:
                self.joiners[id(record.lead)].append(record)
        self._calls()
        self._lines()
        self._audit()
        self._terms()
        self._decisions()
        return Findings(self.checks, self.violations)

    def _found(self, rule: str, what: str, record: CallRecord | RequestRecord, at: int) -> None:
        self.violations.append(Violation(rule, what, record.call.target.lane, at))

    # -- calls --------------------------------------------------------------------------------------------------------

    def _calls(self) -> None:
        crashed, patience, ended = self.history.crashed, self.patience, self.history.ended
        stalled = {replica for replica, _, _ in self.history.stalls}
        checks = self.checks
        by_how = {"succeeded": self._success, "overwritten": self._named, "skipped": self._named}
        checks["one outcome"] += len(self.history.calls)
        for record in self.history.calls:
            if record.tellings != 1:
                if record.tellings or record.replica not in crashed:
                    self._found("one outcome", f"{_name(record)} was told {record.tellings} outcomes", record, ended)
                if not record.tellings:
                    self._requests(record)
                    continue
            elif record.told > record.deadline + patience and record.replica not in stalled:
                late = (record.told - record.deadline) / SECOND
                self._found("one outcome", f"{_name(record)} was told {late:.1f} s after its deadline", record, ended)
            by_how.get(record.how, self._no_success)(record)
            self._requests(record)

    def _success(self, record: CallRecord) -> None:
        """It was answered well, or a look has seen it done, or an equal key had succeeded before."""
        self.checks["success has its effect"] += 1
        if (context := record.context) is not None:
            self.checks["nothing of an ended context"] += 1
            over = context.over
            if over is not None and record.told > over:
                what = f"{_name(record)} succeeded {(record.told - over) / SECOND:.3f} s after its context's end"
                self._found("nothing of an ended context", what, record, record.told)
        lead = record.lead
        if lead is not None:
            self.checks["joined"] += 1
            if lead.how == "succeeded" and lead.value is not record.value:
                self._found("joined", f"{_name(record)} got another value than {_name(lead)}", record, record.told)
        for request in reversed((lead or record).requests):
            if request.error == "" and request.ended <= record.told and self._proves(request, record):
                return
        key = record.call.idempotency_key
        if key is not None and any(
            other.how == "succeeded" and other.told <= record.accepted and other.call.idempotency_key == key
            for other in self.history.calls
        ):
            return  # its key was remembered
        self._found("success has its effect", f"{_name(record)} has none", record, record.told)

    @staticmethod
    def _proves(request: RequestRecord, record: CallRecord) -> bool:
        """It was carried out, or it has seen the object as the call leaves it."""
        if request.landed == NEVER:
            return False
        if not request.look:
            return True
        state, call = request.after, record.call
        return state is not None and _shows(state, call) and call.target.uid in (None, state[0])

    def _no_success(self, record: CallRecord) -> None:
        self.checks["no success, no effect"] += 1
        if record.ambiguous or record.late:
            return
        for request in (record.lead or record).requests:
            if request.look or not request.changed or request.landed == NEVER or request.sent > record.told:
                continue
            if not self._undone(request, record):
                what = f"{_name(record)} is told {record.how}, but was carried out"
                self._found("no success, no effect", what, record, record.told)
                return

    @staticmethod
    def _undone(request: RequestRecord, record: CallRecord) -> bool:
        """A later look has found that somebody else had changed it again: that settles it as well."""
        for look in (record.lead or record).requests:
            if look.look and look.error == "" and request.landed <= look.landed and look.ended <= record.told:
                state = look.after
                if state is None or not _shows(state, request.call):
                    return True
        return False

    def _named(self, record: CallRecord) -> None:
        """Overwritten or Skipped: it names its heir."""
        self._no_success(record)
        self.checks["superseded"] += 1
        if self._by_ticket is None:
            self._by_ticket = {(each.replica, each.ticket): each for each in self.history.calls}
        heir = self._by_ticket.get((record.replica, record.by))
        what = f"{_name(record)} is told {record.how} by {record.by}, which "
        if heir is None or heir.call.target.lane != record.call.target.lane:
            self._found("superseded", f"{what}is no call of its object", record, record.told)
            return
        if (record.how == "overwritten") != (heir.ticket > record.ticket):
            self._found("superseded", f"{what}was accepted {'before' if heir.ticket < record.ticket else 'after'} it",
                        record, record.told)  # fmt: skip
        if heir.call.call_type in self.supersedes and record.call.call_type in self.supersedes[heir.call.call_type]:
            if heir.how != "succeeded" or heir.told > record.told:
                self._found("superseded", f"{what}has not succeeded by then", record, record.told)
        else:
            self._merged(record, heir)

    def _merged(self, record: CallRecord, heir: CallRecord) -> None:
        self.checks["merged"] += 1
        for request in heir.requests:
            if request.look or request.sent < record.told:
                continue
            missing = record.call.fields.keys() - request.call.fields.keys()
            if missing:
                what = f"{_name(record)} was merged into {_name(heir)}, which leaves out {', '.join(sorted(missing))}"
                self._found("merged", what, record, request.sent)
                return

    # -- requests of one execution ------------------------------------------------------------------------------------

    def _requests(self, record: CallRecord) -> None:
        requests = record.requests
        if not requests:
            return
        checks = self.checks
        checks["nothing too late"] += len(requests)
        checks["once"] += 1
        if len(requests) > 1:
            self._repeats(record, requests)
        if id(record) in self.joiners:
            self._limits_of_all([record, *self.joiners[id(record)]], requests)
            return
        deadline = record.deadline
        for request in requests:
            if request.sent >= deadline:
                self._found("nothing too late", f"{_name(record)} is sent after its deadline", record, request.sent)
        if record.context is not None:
            checks["nothing of an ended context"] += len(requests)
            over = record.context.over
            if over is not None and requests[-1].sent > over:
                what = f"{_name(record)} is sent {(requests[-1].sent - over) / SECOND:.3f} s after its context's end"
                self._found("nothing of an ended context", what, record, requests[-1].sent)

    def _limits_of_all(self, records: list[CallRecord], requests: list[RequestRecord]) -> None:
        """Whoever of those that share an execution may still want it lets it be sent."""
        for request in requests:
            for record in records:
                over = record.context.over if record.context is not None else None
                if request.sent < record.deadline and (over is None or request.sent <= over):
                    break
            else:
                what = f"{_name(records[0])} is sent, but nobody may want it"
                self._found("nothing too late", what, records[0], request.sent)

    def _repeats(self, record: CallRecord, requests: list[RequestRecord]) -> None:
        create = record.call.effect is CREATE
        self.checks["looks before it repeats"] += create
        for before, after in pairwise(requests):
            if before.error == "" and not before.look:
                self._found("once", f"{_name(record)} is sent again after a success", record, after.sent)
            if create and not before.look and not after.look and before.error in MAYBE:
                what = f"{_name(record)}, a create, is sent again without a look after '{before.error}'"
                self._found("looks before it repeats", what, record, after.sent)

    # -- requests of one object ---------------------------------------------------------------------------------------

    def _lines(self) -> None:
        """Requests of each replica, in the order in which they were sent."""
        flying: dict[int, dict[str, RequestRecord]] = defaultdict(dict)
        newest: dict[int, dict[str, int]] = defaultdict(dict)
        self.checks["one in flight"] += len(self.history.requests)
        for request in self.history.requests:
            record = request.record
            assert record is not None
            if record.call.effect is READ:
                continue
            lane = request.call.target.lane
            lanes = flying[record.replica]
            before = lanes.get(lane)
            if before is not None and (before.ended == NEVER or before.ended > request.sent):
                what = f"{_name(record)} is sent while {_name(before.record)} is in flight"
                self._found("one in flight", what, record, request.sent)
            lanes[lane] = request
            if record.call.call_type == "note" and request is record.requests[0]:
                self.checks["in line"] += 1
                tickets = newest[record.replica]
                if tickets.get(lane, 0) > record.ticket:
                    what = f"{_name(record)} is sent after the younger {tickets[lane]}"
                    self._found("in line", what, record, request.sent)
                tickets[lane] = record.ticket

    # -- the audit ----------------------------------------------------------------------------------------------------

    def _audit(self) -> None:
        audit, checks = self.history.audit, self.checks
        checks["legal"] += len(audit)
        checks["real time"] += len(audit)
        states: dict[str, State | None] = {}
        sent: dict[str, int] = {}
        done: dict[Any, RequestRecord] = {}
        newest = 0
        leaders: dict[str, tuple[int, bool]] = {}
        for request in audit:
            call: Any = request.call
            lane = call.target.lane
            before, after = request.before, request.after
            if states.get(lane) != before:
                self._found("legal", f"a {call.verb} finds {before}, not {states.get(lane)}", request, request.landed)
            latest = sent.get(lane, 0)
            if request.error == "" and request.ended < latest:
                what = f"a {call.verb} was answered before an earlier one was sent"
                self._found("real time", what, request, request.ended)
            if request.sent > latest:
                sent[lane] = request.sent
            if after is not before:
                states[lane] = after
                if after is not None:
                    if after[1] <= newest:
                        self._found("legal", f"version {after[1]} comes after {newest}", request, request.landed)
                    newest = after[1]
                self._changed(request, call, done)
                if request.record is not None and (context := request.record.context) is not None and context.parent:
                    self._heirs(request, context.parent.began, leaders)
            elif call.verb != "get" and after is not None and not _shows(after, call):
                self._found("legal", f"a {call.verb} is answered well, but changes nothing", request, request.landed)
            if call.target.uid is not None or call.version is not None:
                self._fenced(request, call)

    def _changed(self, request: RequestRecord, call: Any, done: dict[Any, RequestRecord]) -> None:
        """It leaves what it says, and what may be done once is."""
        verb, before, after = call.verb, request.before, request.after
        if verb == "delete":
            expected = None
        elif before is None or verb == "create":
            expected = dict(call.fields)
        else:
            expected = {**before[2], **call.fields}
        if expected != (None if after is None else after[2]):
            self._found("legal", f"a {verb} of {dict(call.fields)} leaves {after}", request, request.landed)
        if verb == "bind" and after is not None:
            once: Any = after[0]
        elif verb == "create" and call.idempotency_key is not None:
            once = call.idempotency_key
        else:
            return
        self.checks["once"] += 1
        if once in done:
            self._found("once", f"a second {verb} of {once} is carried out", request, request.landed)
        done[once] = request

    def _heirs(self, request: RequestRecord, term: int, leaders: dict[str, tuple[int, bool]]) -> None:
        """`leaders`: for each uid, when its last writer's term began, and whether it is bound."""
        self.checks["no dead hand"] += 1
        call, after = request.call, request.after
        assert after is not None  # no call with a context deletes
        binds = call.verb == "bind"
        latest, bound = leaders.get(after[0], (0, False))
        if term < latest and (call.version is not None or (binds and bound)):
            what = f"a {call.verb} of {_name(request.record)} lands after a later leader's write"
            self._found("no dead hand", what, request, request.landed)
        leaders[after[0]] = max(term, latest), bound or binds

    def _fenced(self, request: RequestRecord, call: Any) -> None:
        before = request.before
        if before is None:
            return
        self.checks["fenced"] += 1
        if call.target.uid not in (None, before[0]):
            self._found("fenced", f"a {call.verb} for {call.target.uid} acts on {before[0]}", request, request.landed)
        if call.version is not None and call.version != str(before[1]):
            what = f"a {call.verb} decided on version {call.version} acts on {before[1]}"
            self._found("fenced", what, request, request.landed)
        if call.verb == "bind" and "node" in before[2]:
            self._found("fenced", "a bind acts on a Pod that has a node", request, request.landed)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _decisions(self) -> None:
        """A scheduler decides on what it is shown, and that shows what it has done itself."""
        bound = {
            (record.replica, record.call.target.uid): record
            for record in self.history.calls
            if record.how == "succeeded" and record.call.verb == "bind"
        }
        self.checks["own writes are seen"] += len(self.history.decisions)
        for replica, uid, at in self.history.decisions:
            record = bound.get((replica, uid))
            if record is not None and record.told < at:
                self._found("own writes are seen", f"{uid} is placed again after {_name(record)}", record, at)

    # -- leaders ------------------------------------------------------------------------------------------------------

    def _terms(self) -> None:
        terms = sorted(self.history.terms, key=lambda term: term.since)
        self.checks["one leader"] += len(terms)
        for one, other in pairwise(terms):
            if other.since < one.until:
                what = f"replica {other.replica} leads while {one.replica} does"
                self.violations.append(Violation("one leader", what, "", other.since))


def _shows(state: State, call: Any) -> bool:
    """The object is as the call leaves it."""
    content = state[2]
    return all(content.get(name) == value for name, value in call.fields.items())


def _name(record: CallRecord | None) -> str:
    if record is None:
        return "somebody's call"
    return f"{record.call.call_type} {record.ticket} of replica {record.replica}"
