"""What must be true of a history, whoever made it: read from its records alone, knowing nothing of the core.

How often each of the `RULES` was looked at is counted. An object is a register whose versions the store counts up, so
that one pass over the audit proves it linearizable: the order of the audit must be a legal one for each object (every
request finds what the one before it left, and leaves what it says), and must not contradict real time (no request was
answered before an earlier one in that order was sent). With the versions given, there is no other order to search for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from asyncdispatch.calls import Effect
from asyncdispatch.simulation.history import NEVER, CallRecord, History, RequestRecord, State
from asyncdispatch.simulation.rules import RULES, Findings, Violation
from asyncdispatch.simulation.scenario import Scenario

__all__ = ["check"]

SECOND = 1_000_000_000
SLACK = SECOND // 5
"""An outcome may come so much after its limit: deadlines are told within a bucket, stops take a moment."""
UNSEEN: tuple[State | None, int] = (None, 0)
"""How an object was left, and when the latest request for it was sent, before the first."""
MAYBE = frozenset({"reset", "unavailable", "denied", "timed out", "stopped"})
"""What a sender is told of a request that may have been carried out."""
READ, CREATE = Effect.READ, Effect.CREATE


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
        self.stalled = {replica for replica, _, _ in history.stalls}
        self.joiners: dict[CallRecord, list[CallRecord]] = defaultdict(list)
        """By the call that was joined."""
        self.bound: dict[tuple[int, str | None], CallRecord] = {}
        """Binds that succeeded, by replica and uid."""
        self.done: set[Any] = set()
        """Uids of Pods that were bound, and keys that were created."""
        self.leaders: dict[str, tuple[int, bool]] = {}
        """For each uid, when its last writer's term began, and whether it is bound."""
        self.others: list[CallRecord] = []
        """Calls that one look has not settled."""
        self.scheduled: list[CallRecord] = []
        """Calls of contexts that one look has settled."""
        self._tickets: dict[tuple[int, int], CallRecord] = {}
        self._keys: dict[Any, int] = {}

    def run(self) -> Findings:
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
        """Most calls are sent once, in time, and told in time of the success that they had: that keeps every rule, and
        is seen by one look. All others are looked at rule by rule."""
        plain, scheduled, others = 0, self.scheduled, self.others
        for record in self.history.calls:
            requests = record.requests
            if len(requests) == 1 and record.how == "succeeded" and record.tellings == 1:
                request = requests[0]
                if (
                    request.error == ""
                    and request.landed <= request.ended <= record.told <= record.deadline
                    and request.sent < record.deadline
                    and not request.look
                    and record.lead is None
                ):
                    if (context := record.context) is None:
                        plain += 1
                        continue
                    if request.sent <= record.told <= context.over and record.call.idempotency_key is None:
                        scheduled.append(record)  # nobody can have joined it
                        continue
            others.append(record)
            if record.lead is not None:
                self.joiners[record.lead].append(record)
        for record in others:
            self._call(record)
        for rule in ("one outcome", "success has its effect", "nothing too late", "once"):
            self.checks[rule] += plain + len(scheduled)
        self.checks["nothing of an ended context"] += 2 * len(scheduled)  # of each its request and its success

    def _call(self, record: CallRecord) -> None:
        self.checks["one outcome"] += 1
        tellings, late = record.tellings, record.told - record.deadline
        if tellings != 1 and (tellings or record.replica not in self.history.crashed):
            what = f"{_name(record)} was told {tellings} outcomes"
            self._found("one outcome", what, record, self.history.ended)
        elif tellings and late > self.patience and record.replica not in self.stalled:
            what = f"{_name(record)} was told {late / SECOND:.1f} s after its deadline"
            self._found("one outcome", what, record, self.history.ended)
        if record.how == "succeeded":
            self._success(record)
        elif record.how in ("overwritten", "skipped"):
            self._named(record)
        elif tellings:
            self._no_success(record)
        if record.requests:
            self._requests(record, record.requests)

    def _success(self, record: CallRecord) -> None:
        """It was answered well, or a look has seen it done, or an equal key had succeeded before."""
        self.checks["success has its effect"] += 1
        if record.context is not None:
            self.checks["nothing of an ended context"] += 1
            if (after := record.told - record.context.over) > 0:
                what = f"{_name(record)} succeeded {after / SECOND:.3f} s after its context's end"
                self._found("nothing of an ended context", what, record, record.told)
        lead = record.lead
        if lead is not None:
            self.checks["joined"] += 1
            if lead.how == "succeeded" and lead.value is not record.value:
                self._found("joined", f"{_name(record)} got another value than {_name(lead)}", record, record.told)
        for request in reversed((lead or record).requests):
            if request.error == "" and request.ended <= record.told and self._proves(request, record):
                return
        if not self._remembered(record):
            self._found("success has its effect", f"{_name(record)} has none", record, record.told)

    def _remembered(self, record: CallRecord) -> bool:
        """An equal key had succeeded when it was accepted."""
        key = record.call.idempotency_key
        if not self._keys:
            for each in self.history.calls:
                if each.how == "succeeded" and (other := each.call.idempotency_key) is not None:
                    self._keys[other] = min(each.told, self._keys.get(other, NEVER))
        return key is not None and self._keys.get(key, NEVER) <= record.accepted

    @staticmethod
    def _proves(request: RequestRecord, record: CallRecord) -> bool:
        """It was carried out, or it has seen the object as the call leaves it."""
        if request.landed == NEVER or not request.look:
            return request.landed != NEVER
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
        heir = self._heir(record)
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

    def _heir(self, record: CallRecord) -> CallRecord | None:
        """The call that it names. Nearly always one of a context, or of the few that one look has not settled."""
        name = record.replica, record.by
        if not self._tickets:
            self._tickets = {(each.replica, each.ticket): each for each in (*self.scheduled, *self.others)}
        if name not in self._tickets and len(self._tickets) < len(self.history.calls):
            self._tickets = {(each.replica, each.ticket): each for each in self.history.calls}
        return self._tickets.get(name)

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

    def _requests(self, record: CallRecord, requests: list[RequestRecord]) -> None:
        checks, context, last = self.checks, record.context, requests[-1].sent
        checks["nothing too late"] += len(requests)
        checks["once"] += 1
        if len(requests) > 1:
            self._repeats(record, requests)
        if record in self.joiners:
            self._limits_of_all([record, *self.joiners[record]], requests)
            return
        if last >= record.deadline:
            self._found("nothing too late", f"{_name(record)} is sent after its deadline", record, last)
        if context is not None:
            checks["nothing of an ended context"] += len(requests)
            if (after := last - context.over) > 0:
                what = f"{_name(record)} is sent {after / SECOND:.3f} s after its context's end"
                self._found("nothing of an ended context", what, record, last)

    def _limits_of_all(self, records: list[CallRecord], requests: list[RequestRecord]) -> None:
        """Whoever of those that share an execution may still want it lets it be sent."""
        for request in requests:
            for record in records:
                over = record.context.over if record.context is not None else NEVER
                if request.sent < record.deadline and request.sent <= over:
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
        notes = 0
        for request in self.history.requests:
            record: Any = request.record
            call = record.call
            if call.effect is READ:
                continue
            replica, lane, sent = record.replica, request.call.target.lane, request.sent
            lanes = flying[replica]
            before = lanes.get(lane)
            if before is not None and before.ended > sent:
                what = f"{_name(record)} is sent while {_name(before.record)} is in flight"
                self._found("one in flight", what, record, sent)
            lanes[lane] = request
            if call.call_type == "note" and request is record.requests[0]:
                notes += 1
                tickets = newest[replica]
                if before is not None and tickets.get(lane, 0) > record.ticket:
                    what = f"{_name(record)} is sent after the younger {tickets[lane]}"
                    self._found("in line", what, record, sent)
                tickets[lane] = record.ticket
            elif call.verb == "bind" and record.how == "succeeded":
                self.bound[replica, call.target.uid] = record
        self.checks["one in flight"] += len(self.history.requests)
        self.checks["in line"] += notes

    # -- the audit ----------------------------------------------------------------------------------------------------

    def _audit(self) -> None:
        audit = self.history.audit
        last: dict[str, tuple[State | None, int]] = {}
        """Of each object: how it was left, and when the latest request so far was sent."""
        newest = 0
        for request in audit:
            call: Any = request.call
            target, verb, before, after, sent = call.target, call.verb, request.before, request.after, request.sent
            lane = target.lane
            found, latest = last.get(lane, UNSEEN)
            if found is not before and found != before:
                self._found("legal", f"a {verb} finds {before}, not {found}", request, request.landed)
            if sent < latest:
                if request.ended < latest and request.error == "":
                    what = f"a {verb} was answered before an earlier one was sent"
                    self._found("real time", what, request, request.ended)
                sent = latest
            last[lane] = found if after is before else after, sent
            if after is not before:
                if after is not None:
                    if after[1] <= newest:
                        self._found("legal", f"version {after[1]} comes after {newest}", request, request.landed)
                    newest = after[1]
                if verb != "apply" or after is None or after[2] != call.fields:
                    self._changed(request, call, before, after)
            elif verb != "get" and after is not None and not _shows(after, call):
                self._found("legal", f"a {verb} is answered well, but changes nothing", request, request.landed)
            if target.uid is not None or call.version is not None:
                self._fenced(request, call)
        self.checks["legal"] += len(audit)
        self.checks["real time"] += len(audit)

    def _changed(self, request: RequestRecord, call: Any, before: State | None, after: State | None) -> None:
        """It leaves what it says, and what may be done once is."""
        verb, expected = call.verb, call.fields
        if before is not None and verb not in ("create", "apply"):
            expected = {**before[2], **expected}
        if (after is not None) if verb == "delete" else (after is None or expected != after[2]):
            self._found("legal", f"a {verb} of {dict(call.fields)} leaves {after}", request, request.landed)
        context = None if request.record is None else request.record.context
        if context is not None and context.parent is not None and after is not None:
            self._heirs(request, context.parent.began, after[0])
        if verb == "bind" and after is not None:
            once: Any = after[0]
        elif verb == "create" and call.idempotency_key is not None:
            once = call.idempotency_key
        else:
            return
        self.checks["once"] += 1
        if once in self.done:
            self._found("once", f"a second {verb} of {once} is carried out", request, request.landed)
        self.done.add(once)

    def _heirs(self, request: RequestRecord, term: int, uid: str) -> None:
        """A write in a context below that of a term."""
        self.checks["no dead hand"] += 1
        call = request.call
        binds = call.verb == "bind"
        latest, bound = self.leaders.get(uid, (0, False))
        if term < latest and (call.version is not None or (binds and bound)):
            what = f"a {call.verb} of {_name(request.record)} lands after a later leader's write"
            self._found("no dead hand", what, request, request.landed)
        self.leaders[uid] = max(term, latest), bound or binds

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
        self.checks["own writes are seen"] += len(self.history.decisions)
        for replica, uid, at in self.history.decisions:
            record = self.bound.get((replica, uid))
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
