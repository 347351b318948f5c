"""Which live execution a call may join, and which successes are remembered (law L8).

A key's equality is user code: it is asked only while a call is being submitted, before anything changes. What leaves
the index is found by identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncdispatch._core.states import READ, SECOND
from asyncdispatch.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncdispatch._core.states import Entry
    from asyncdispatch.calls import APICall
    from asyncdispatch.config import IdempotencyPolicy


def key_hash(call: APICall[Any]) -> int:
    """The hash of what must be equal to join. Raises `ConfigurationError` if the key's own hash fails."""
    ref = call.target
    try:
        return hash((call.idempotency_key, call.call_type, ref.lane, call.version, ref.uid, call.effect is READ))
    except Exception as error:
        raise ConfigurationError("idempotency_key", type(call.idempotency_key), "its hash raised: mend it") from error


def same_operation(one: APICall[Any], other: APICall[Any]) -> bool:
    """Law L8: equal key, type, object, version and uid; and the same credentials."""
    if (
        one.call_type != other.call_type
        or one.version != other.version
        or one.target.lane != other.target.lane
        or one.target.uid != other.target.uid
        or one.effect is not other.effect
    ):
        return False
    try:
        return bool(one.idempotency_key == other.idempotency_key and one.scope == other.scope)
    except Exception as error:
        raise ConfigurationError(
            "idempotency_key", type(one.idempotency_key), "its equality raised: mend it"
        ) from error


class KeyIndex:
    """Live executions by the hash of what identifies them."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table: dict[int, list[Entry]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._table.values()))

    def find(self, hashed: int, call: APICall[Any]) -> Entry | None:
        for entry in self._table.get(hashed, ()):
            if same_operation(entry.call, call):
                return entry
        return None

    def add(self, hashed: int, entry: Entry) -> None:
        entry.rare().hash = hashed
        self._table.setdefault(hashed, []).append(entry)

    def remove(self, entry: Entry) -> None:
        more = entry.more
        if more is None or more.hash is None:
            return
        bucket = self._table[more.hash]
        bucket[:] = [other for other in bucket if other is not entry]
        if not bucket:
            del self._table[more.hash]
        more.hash = None


class Memory:
    """Successes of keyed writes, for `ttl`, until their object is gone. In memory only (rule R9)."""

    __slots__ = ("_by_lane", "_max", "_table", "_ttl", "timer")

    def __init__(self, policy: IdempotencyPolicy | None) -> None:
        self._ttl = int(policy.ttl * SECOND) if policy else 0
        self._max = policy.max_keys if policy else 0
        self._table: dict[int, tuple[int, int, APICall[Any], Any]] = {}  # by ticket: expiry, hash, call, value
        self._by_lane: dict[str, dict[int, None]] = {}
        self.timer = 0

    def __len__(self) -> int:
        return len(self._table)

    def remember(self, ticket: int, hashed: int | None, call: APICall[Any], value: Any, now: int) -> None:
        if not self._max or hashed is None or call.idempotency_key is None or call.effect is READ:
            return
        if len(self._table) >= self._max:
            self._drop(next(iter(self._table)))
        self._table[ticket] = (now + self._ttl, hashed, call, value)
        self._by_lane.setdefault(call.target.lane, {})[ticket] = None

    def find(self, hashed: int, call: APICall[Any], now: int) -> tuple[Any] | None:
        """The remembered value, in a tuple; None if there is none."""
        for ticket in reversed(self._by_lane.get(call.target.lane, {})):
            expiry, known, remembered, value = self._table[ticket]
            if known == hashed and expiry > now and same_operation(remembered, call):
                return (value,)
        return None

    def forget_object(self, lane: str) -> None:
        for ticket in list(self._by_lane.get(lane, ())):
            self._drop(ticket)

    def expire(self, now: int) -> None:
        while self._table:
            ticket = next(iter(self._table))
            if self._table[ticket][0] > now:
                return
            self._drop(ticket)

    @property
    def due(self) -> int | None:
        """When the oldest is forgotten."""
        return next(iter(self._table.values()))[0] if self._table else None

    def _drop(self, ticket: int) -> None:
        call = self._table.pop(ticket)[2]
        tickets = self._by_lane[call.target.lane]
        del tickets[ticket]
        if not tickets:
            del self._by_lane[call.target.lane]
