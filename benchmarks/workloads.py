"""What is dispatched: shapes of priority and flow, the objects acted on, and what a call does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from asyncdispatch import AdaptiveLimit, DispatcherConfig, FunctionCall, ObjectRef

CALL_TYPE = "probe"
PRIORITIES = (0, 1, 1_000, 1_000_000, -1_000, -(2**31), 2_000_000_000, 2_000_001_000)
"""One for each of the default levels, so that the first n are n levels."""

Function = Callable[..., Coroutine[Any, Any, int]]
Row = tuple[ObjectRef, int, str]


async def bare(_: object = None) -> int:
    return 1


async def yields(_: object = None) -> int:
    await asyncio.sleep(0)
    return 1


async def sleeps_1_ms(_: object = None) -> int:
    await asyncio.sleep(0.001)
    return 1


async def sleeps_50_ms(_: object = None) -> int:
    await asyncio.sleep(0.05)
    return 1


@dataclass(frozen=True, slots=True)
class Shape:
    """How many priority levels and flows the calls are spread over, evenly."""

    levels: int
    flows: int

    def __str__(self) -> str:
        return f"{self.levels}x{self.flows}"

    def rows(self, count: int) -> list[Row]:
        """Object, priority and flow of each call. The objects are made once: they are the caller's, not the call's."""
        levels, flows = self.levels, [f"flow-{i}" for i in range(self.flows)]
        return [(ref, PRIORITIES[i % levels], flows[i // levels % self.flows]) for i, ref in enumerate(objects(count))]


ONE = Shape(1, 1)
EIGHT_LEVELS = Shape(8, 1)
FLOWS = Shape(4, 10)
SHAPES = (ONE, EIGHT_LEVELS, FLOWS)

_objects: list[ObjectRef] = []


def objects(count: int) -> list[ObjectRef]:
    while len(_objects) < count:
        _objects.append(ObjectRef("v1", "Pod", "default", f"pod-{len(_objects)}"))
    return _objects[:count]


def forget_objects() -> None:
    """Before memory is counted, or when a million of them are no longer needed."""
    _objects.clear()


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """`waves` times: submit a call for each row, then await every result in the order of submission."""

    function: Function
    shape: Shape
    rows: list[Row]
    waves: int = 1
    at_once: int = 16
    inside: bool = True
    """Whether the call is made inside the clock."""
    clock: Callable[[], float] = time.process_time

    @property
    def count(self) -> int:
        return self.waves * len(self.rows)

    def call(self, row: Row) -> FunctionCall[int]:
        """With the fields that its shape needs and no others, as a caller would write it."""
        ref, priority, flow = row
        if self.shape.flows > 1:
            return FunctionCall(self.function, call_type=CALL_TYPE, target=ref, priority=priority, flow=flow)
        if self.shape.levels > 1:
            return FunctionCall(self.function, call_type=CALL_TYPE, target=ref, priority=priority)
        return FunctionCall(self.function, call_type=CALL_TYPE, target=ref)


def config_for(pending: int, at_once: int = 16, **fields: Any) -> DispatcherConfig:
    """All features on: the default config (breaker, budget, adaptive limit, deadlines, aging) with room enough."""
    limit = AdaptiveLimit(initial=at_once, minimum=min(4, at_once), maximum=at_once)
    return DispatcherConfig(**{"capacity": pending * 2 + 100, "max_in_flight": limit, **fields})
