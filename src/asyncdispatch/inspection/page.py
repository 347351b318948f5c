"""The page of the queue: one dump as HTML that needs nothing from elsewhere and refreshes itself.

Built as a tree of elements, so that whatever stands in a dump becomes text and never markup. The content security
policy allows the one script and the one style sheet by their hashes and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from asyncdispatch._dumping import Json
from asyncdispatch._reasons import REASONS

__all__ = ["POLICY", "page"]

STYLE = files("asyncdispatch.inspection").joinpath("page.css").read_text(encoding="utf-8")
SCRIPT = files("asyncdispatch.inspection").joinpath("page.js").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hash(SCRIPT)}",
        f"style-src {_hash(STYLE)}",
        "connect-src 'self'",
        "img-src data:",  # the empty icon: browsers ask for one
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

STATES = ("queued", "line", "delayed", "requirements", "backoff", "held", "in_flight", "stopping")
"""Of the table of levels, in the order in which they are shown."""

Child = Element | str | None
Column = tuple[str, Callable[[Json], Any]]


def page(dumped: Json) -> bytes:
    """The whole document."""
    capacity = dumped["capacity"]
    html = e(
        "html",
        e(
            "head",
            e("meta", charset="utf-8"),
            e("meta", name="viewport", content="width=device-width, initial-scale=1"),
            e("title", f"{capacity['depth']} of {capacity['total']} · asyncdispatch"),
            e("link", rel="icon", href="data:,"),
            e("style", STYLE),
        ),
        e(
            "body",
            e(
                "header",
                e("h1", "asyncdispatch"),
                e("label", e("input", type="checkbox", id="pause"), " pause"),
                e("div", id="note", role="status"),
            ),
            e("main", *_main(dumped)),
            e(
                "footer",
                "Names only: bodies and messages of errors are not shown. The same as JSON: ",
                e("code", "Accept: application/json"),
                ".",
            ),
            e("script", SCRIPT),
        ),
        lang="en",
    )
    return b"<!doctype html>\n" + tostring(html, encoding="unicode", method="html").encode("utf-8", "replace")


def e(tag: str, *children: Child, **attributes: str) -> Element:
    """An element; a final underscore in an attribute's name is dropped."""
    element = Element(tag, {name.rstrip("_"): value for name, value in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            element.append(child)
            last = child
        elif child is not None and last is None:
            element.text = (element.text or "") + child
        elif child is not None and last is not None:
            last.tail = (last.tail or "") + child
    return element


# -- what stands where ------------------------------------------------------------------------------------------------


def _main(dumped: Json) -> Iterable[Element]:
    yield _status(dumped)
    yield e(
        "div",
        _depth(dumped),
        _seats(dumped),
        _starts(dumped),
        _levels(dumped["levels"]),
        _reasons(dumped),
        _next(dumped["next"]),
        _table("In flight", dumped["in_flight"], FLYING),
        _table("Flows", dumped["flows"], FLOWS, "half"),
        _table("Call types", dumped["types"], TYPES, "half"),
        _if_any("Circuit breakers", dumped["breakers"], BREAKERS, "half"),
        _if_any("Refused credentials", dumped["held"], HELD, "half"),
        _if_any("Conditions elsewhere", dumped["later"], LATER, "half"),
        _table("Waiting, the oldest first", dumped["waiting"], WAITING),
        _if_any("Contexts", dumped["contexts"], CONTEXTS),
        _if_any("Own writes not yet seen", dumped["own_writes"], WRITES),
        class_="cards",
    )


def _status(dumped: Json) -> Element:
    state, mode, pressure = dumped["state"], dumped["mode"], dumped["pressure"]
    totals = dumped["totals"]
    words: list[Child] = [
        e("span", state, class_=f"badge {'good' if state == 'running' else 'bad'}", id="state"),
        " ",
        e("span", mode, class_=f"badge {'good' if mode == 'async' else 'warn'}", id="mode"),
        " ",
        e("span", f"pressure {pressure}", class_=f"badge {_health(pressure)}", id="pressure"),
        e("span", f" {dumped['reason']}" if dumped["reason"] else "", id="reason"),
        e(
            "span",
            f" {totals['accepted']:,} accepted, {totals['outcomes']['succeeded']:,} succeeded, "
            f"{totals['outcomes']['failed']:,} failed, {totals['retried']:,} retried, {totals['refused']:,} refused · ",
            e("time", dumped["taken"].replace("T", " ").partition(".")[0] + " UTC", id="taken"),
            class_="soft",
        ),
    ]
    return e("p", *words)


def _health(pressure: str) -> str:
    return {"ok": "good", "high": "warn"}.get(pressure, "bad")


def _depth(dumped: Json) -> Element:
    capacity = dumped["capacity"]
    depth, total = capacity["depth"], capacity["total"]
    health = _health(dumped["pressure"]).replace("good", "")
    text = f"{capacity['ordinary']:,} for ordinary calls; {capacity['joined']:,} joined another"
    return _tile("Depth", f"{depth:,}", f" of {total:,}", "depth", _bar(depth, total, health), text)


def _seats(dumped: Json) -> Element:
    seats = dumped["seats"]
    text = f"may grow to {seats['maximum']}; {dumped['workers']} workers, {dumped['waiting_for_room']} wait for room"
    bar = _bar(seats["taken"], seats["limit"], "")
    return _tile("Seats taken", str(seats["taken"]), f" of {seats['limit']}", "seats", bar, text)


def _starts(dumped: Json) -> Element:
    budget, rate = dumped["retry_budget"], dumped["rate"]
    bar = _bar(budget["available"], budget["burst"], "" if budget["available"] >= 1 else "bad")
    text = f"{budget['waiting']} wait for it; "
    text += f"{rate['qps']:g} starts per second, the next in {rate['next_in']:g} s" if rate else "no rate limit"
    return _tile("Retry budget", f"{budget['available']:.0f}", f" of {budget['burst']}", "budget", bar, text)


def _tile(title: str, value: str, of: str, name: str, bar: Element, text: str) -> Element:
    number = e("div", e("span", value, id=name), e("small", of), class_="big")
    return e("section", e("h2", title), number, bar, e("div", text, class_="soft"), class_="third")


def _bar(value: float, most: float, health: str) -> Element:
    """Drawn by attributes: the policy allows no inline style."""
    share = min(100.0, 100.0 * value / most) if most else 0.0
    svg = e("svg", viewBox="0 0 100 1", preserveAspectRatio="none", class_=f"bar {health}".strip())
    svg.set("aria-hidden", "true")
    SubElement(svg, "rect", {"width": f"{share:.2f}", "height": "1"})
    return svg


def _levels(levels: list[Json]) -> Element:
    names = [state for state in STATES if any(state in level["states"] for level in levels) or state in STATES[:1]]
    head = e("tr", e("th", "Level"), *(e("th", state.replace("_", " "), class_="number") for state in names))
    most = max((count for level in levels for count in level["states"].values()), default=0)
    body = []
    for level in levels:
        cells = [_count(level["states"].get(state, 0), most) for state in names]
        body.append(e("tr", e("td", level["name"]), *cells))
    return e(
        "section", e("h2", "Levels and states"), e("table", head, *body, class_="grid", id="levels"), class_="half"
    )


def _count(count: int, most: int) -> Element:
    shade = "" if not count else " many" if count * 2 > most else " some"
    return e("td", f"{count:,}" if count else "·", class_=f"number{shade if count else ' soft'}")


def _reasons(dumped: Json) -> Element:
    rows = dumped["reasons"]
    section = {"count": dumped["waiting"]["count"], "left_out": 0, "rows": rows}
    return _table("Why calls wait", section, REASON_COLUMNS, "half", name="reasons")


def _next(rows: list[Json]) -> Element:
    section = {"count": None, "left_out": 0, "rows": [{**row, "place": i} for i, row in enumerate(rows, 1)]}
    return _table("Next to start", section, NEXT, name="next")


def _if_any(title: str, section: Json, columns: Iterable[Column], width: str = "") -> Element | None:
    return _table(title, section, columns, width) if section["count"] else None


def _table(title: str, section: Json, columns: Iterable[Column], width: str = "", name: str = "") -> Element:
    """A section of a dump as a table, or the word that there is nothing."""
    rows, count, left_out = section["rows"], section["count"], section["left_out"]
    more = f" {count:,}" if count is not None else ""
    more += f", of which {left_out:,} are not listed" if left_out else ""
    heading = e("h2", title, e("small", more))
    if not rows:
        return e("section", heading, e("p", "none", class_="none"), class_=width)
    columns = list(columns)
    head = e("tr", *(e("th", column, class_="number" if column in NUMBERS else "") for column, _ in columns))
    body = [e("tr", *(_cell(column, value(row)) for column, value in columns)) for row in rows]
    table = e("table", head, *body, id=name or title.split(",")[0].lower().replace(" ", "-"))
    return e("section", heading, table, class_=width)


def _cell(column: str, value: Any) -> Element:
    kind = "number" if column in NUMBERS else CELLS.get(column, "")
    return e("td", _text(value), class_=kind)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.2g}" if value < 1 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if type(value) is int else str(value)


# -- columns ----------------------------------------------------------------------------------------------------------


def _field(name: str) -> Callable[[Json], Any]:
    return lambda row: row[name]


def _seconds(name: str) -> Callable[[Json], str]:
    return lambda row: "–" if row[name] is None else f"{_text(row[name])} s"


def _doing(row: Json) -> str:
    what = f"reconcile of {row['attempts']}" if row["doing"] == "reconcile" else f"attempt {row['attempts']}"
    what += ", stopping" if row["stopping"] else ""
    return what + (f", after {row['last_error']}" if row["last_error"] else "")


def _requirements(row: Json) -> str:
    told = [f"{each['name']} {each['state']}" for each in row["requirements"]]
    left_out = row["requirements_left_out"]
    return "; ".join(told) + (f"; {left_out} more" if left_out else "")


CALL: tuple[Column, ...] = (
    ("Ticket", lambda row: str(row["ticket"])),
    ("Object", _field("object")),
    ("Type", _field("type")),
    ("Flow", _field("flow")),
    ("Level", _field("level")),
)
REASON_COLUMNS: tuple[Column, ...] = (
    ("Calls", _field("count")),
    ("Oldest", _seconds("oldest_seconds")),
    ("Reason", _field("reason")),
    ("What it means", lambda row: REASONS[row["reason"]]),
)
NEXT: tuple[Column, ...] = (("#", _field("place")), *CALL, ("Waited", _seconds("since_seconds")))
FLYING: tuple[Column, ...] = (
    *CALL[:4],
    ("Doing", _doing),
    ("For", _seconds("in_flight_seconds")),
    ("Cut off in", _seconds("cut_off_in")),
)
WAITING: tuple[Column, ...] = (
    *CALL,
    ("Attempts", _field("attempts")),
    ("Waited", _seconds("since_seconds")),
    ("Time left", _seconds("deadline_in")),
    ("Why", _field("why")),
)
LIMITS: tuple[Column, ...] = (
    ("Name", _field("name")),
    ("Waiting", _field("waiting")),
    ("In flight", _field("in_flight")),
    ("Seats", _field("max_in_flight")),
)
FLOWS: tuple[Column, ...] = (*LIMITS, ("May queue", _field("max_queued")), ("Weight", lambda row: f"{row['weight']:g}"))
TYPES: tuple[Column, ...] = (
    *LIMITS,
    ("Usually takes", lambda row: f"{_text(row['usual_seconds'])} s" if row["usual_seconds"] else "–"),
    ("Supersedes", lambda row: ", ".join(row["supersedes"])),
)
BREAKERS: tuple[Column, ...] = (
    ("Flow", _field("flow")),
    ("Type", _field("type")),
    ("State", lambda row: row["state"].replace("_", "-")),
    ("Failures", _field("failures")),
    ("Open for", _seconds("open_for")),
)
HELD: tuple[Column, ...] = (
    ("Credentials of", _field("scope")),
    ("Since", _seconds("since_seconds")),
    ("Waiting", _field("waiting")),
    ("Error", _field("error")),
)
LATER: tuple[Column, ...] = (
    ("Condition", _field("scope")),
    ("Waiting", _field("waiting")),
    ("Tried now", _field("awake")),
)
CONTEXTS: tuple[Column, ...] = (
    ("Epoch", lambda row: str(row["epoch"])),
    ("Object", _field("object")),
    ("Began", _seconds("since_seconds")),
    ("Valid for", _seconds("valid_for")),
    ("Calls", _field("calls")),
    ("Requirements", _requirements),
)
WRITES: tuple[Column, ...] = (
    ("Ticket", lambda row: str(row["ticket"])),
    ("Object", _field("object")),
    ("Type", _field("type")),
    ("Since", _seconds("since_seconds")),
    ("Version", lambda row: None if row["version"] is None else str(row["version"])),
)
CELLS = {"Object": "name", "Why": "why", "What it means": "why"}
NUMBERS = {
    *("#", "Ticket", "Calls", "Oldest", "Waited", "For", "Cut off in", "Attempts", "Time left", "Waiting", "In flight"),
    *("Seats", "May queue", "Weight", "Usually takes", "Failures", "Open for", "Since", "Tried now", "Epoch"),
    *("Began", "Valid for", "Version"),
}
