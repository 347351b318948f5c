"""What `nominate` returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from asyncdispatch.nomination.states import NominationState

if TYPE_CHECKING:
    from asyncdispatch.nomination.decisions import Decision, NominationOutcome
    from asyncdispatch.nomination.states import Life

__all__ = ["NominationHandle"]


class NominationHandle:
    """One decision on its way. Made by `Nominator.nominate`; used from its event loop."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._ended = asyncio.Event()
        self._moved = asyncio.Event()

    @property
    def decision(self) -> Decision:
        """As it is now: a fresh calculation after a conflict takes the place of the first, and has an id of its own."""
        return self._life.decision

    @property
    def decision_id(self) -> str:
        return self._life.decision_id

    @property
    def state(self) -> NominationState:
        return self._life.phase

    @property
    def settled(self) -> NominationOutcome | None:
        """The outcome, or None while there is none."""
        return self._life.outcome

    def done(self) -> bool:
        return self._life.outcome is not None

    async def outcome(self) -> NominationOutcome:
        """Wait for how it ends. Never raises for that; cancelling it leaves the decision."""
        await self._ended.wait()
        assert self._life.outcome is not None
        return self._life.outcome

    async def written(self) -> bool:
        """Wait until the hint stands, or the decision has ended. True if it was written."""
        while not self._life.written and not self.done():
            await self._moved.wait()
        return self._life.written

    def _tell(self) -> None:
        """Of the nominator: it has moved."""
        self._moved.set()
        self._moved = asyncio.Event()
        if self.done():
            self._ended.set()

    def __repr__(self) -> str:
        return (
            f"<NominationHandle {self.decision_id} of {self.decision.ref} to {self.decision.node}: {self.state.value}>"
        )
