"""Writes docs/design/states.md from the transition table of the core: `python docs/generate_states.py`."""

from pathlib import Path

from asyncdispatch._core.states import TERMINAL, TRANSITIONS, WAITING, CallState

PAGE = Path(__file__).parent / "design" / "states.md"

HEAD = """\
# States of a call

<!-- Written by docs/generate_states.py from TRANSITIONS in _core/states.py; a test fails when it is out of date. -->

A call goes through these states and no other way. `Entry.move` writes a call's state and raises on any transition that
is not in this table; the short ways of common calls write three transitions themselves, checked against it at import. A
row is where a call is, a column where it may go from there.

Waiting states, which are also what `Expired.where` says:

- `delayed`: its `not_before` is not over.
- `requirements`: its context's requirements are not all confirmed.
- `line`: another write of its object flies, or stands before it in line.
- `queued`: it lacks nothing but its turn, a seat or a token.
- `backoff`: an attempt has failed; it waits for the next one.
- `held`: the credentials that it uses were refused.

In flight it holds a seat: `in_flight`, or `stopping` once its attempt was asked to end. `joined` is a handle of another
call's execution; `accepted` lasts only for the step in which a call comes in. The last seven are outcomes.
"""

GROUPS = (
    ("Between waiting and flying", (*WAITING, CallState.IN_FLIGHT, CallState.STOPPING, CallState.JOINED)),
    ("Into an outcome", TERMINAL),
)


def page() -> str:
    """The whole page."""
    rows = [state for state in CallState if not state.terminal]
    parts = [HEAD]
    for title, columns in GROUPS:
        header = " | ".join(f"`{state.value}`" for state in columns)
        lines = [f"## {title}\n", f"| from | {header} |", "|---" * (len(columns) + 1) + "|"]
        for state in rows:
            marks = " | ".join("→" if column in TRANSITIONS[state] else " " for column in columns)
            lines.append(f"| `{state.value}` | {marks} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
