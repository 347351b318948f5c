"""Writes the tables of docs/errors.md from the rows that the tests check: `python docs/generate_errors.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from asyncdispatch.calls import Effect, Verdict
from asyncdispatch.kubernetes.classification import classify_error
from tests.kubernetes.answers import SECTIONS, Row

PAGE = Path(__file__).parent / "errors.md"
BEGIN = "<!-- Written by docs/generate_errors.py from the rows of the tests; one fails when they are out of date. -->"
END = "<!-- The end of what is written. -->"


def page() -> str:
    """The whole page: its prose as it is, its tables anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    tables = "\n".join(_table(title, rows) for title, rows in SECTIONS.items())
    return f"{before}{BEGIN}\n\n{tables}\n{END}{rest.partition(END)[2]}"


def _table(title: str, rows: dict[str, Row]) -> str:
    head = "| Code | Answer | To a | Verdict | Maybe applied | Pause at least | Waits by | Why |"
    lines = [f"## {title}\n", head, "|---" * 8 + "|"]
    for what, row in rows.items():
        verdict = classify_error(row.error, row.of)
        assert verdict is not None
        code = getattr(row.error, "status", "–")
        effect = {Effect.CREATE: "create", Effect.READ: "read"}.get(row.of.effect, "write")
        cells = [code, what, effect, verdict.kind.name, "yes" if verdict.maybe_applied else "", _pause(verdict)]
        lines.append("| " + " | ".join(map(str, [*cells, _scope(verdict), row.why or "as above"])) + " |")
    return "\n".join(lines) + "\n"


def _pause(verdict: Verdict) -> str:
    return "" if verdict.retry_after is None else f"{verdict.retry_after:g} s"


def _scope(verdict: Verdict) -> str:
    if isinstance(verdict.scope, tuple):
        return f"{verdict.scope[0]}, in its namespace"
    return "its credentials" if verdict.scope is not None else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
