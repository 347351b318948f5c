"""The public interface changes only on purpose, and never without a word in the changelog."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import asyncdispatch
from tests import public_api
from tests.public_api import CURRENT, RELEASED, ROOT, changes, describe, modules, unmentioned


def test_it_is_as_it_is_written_down() -> None:
    """A difference is meant, or it is a mistake."""
    written = CURRENT.read_text(encoding="utf-8").splitlines()
    found = describe()
    gone = [f"- {line}" for line in written if line not in found]
    come = [f"+ {line}" for line in found if line not in written]
    remedy = "if it is meant: `python -m tests.public_api`, and name the change in CHANGELOG.md under Unreleased"
    assert not gone + come, "\n".join(["the public interface has changed", *gone, *come, remedy])
    assert written == found


def test_changes_since_the_release_are_in_the_changelog() -> None:
    """Each name that has come, gone or changed since then stands in its section Unreleased, as `code`."""
    if not RELEASED.exists():
        pytest.skip("nothing is released yet: all that there is is new")
    names = changes(*(path.read_text(encoding="utf-8").splitlines() for path in (RELEASED, CURRENT)))
    missing = unmentioned(names, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert not missing, f"not in CHANGELOG.md under Unreleased: {', '.join(missing)}"


def test_every_name_is_there() -> None:
    """`__all__` of each public module names what exists, once, and in order."""
    for name in modules():
        module = __import__(name, fromlist=["*"])
        assert len(module.__all__) == len(set(module.__all__)), name
        assert [each for each in module.__all__ if not hasattr(module, each)] == [], name


BESIDE = {("asyncdispatch.nomination.views", "amounts"), ("asyncdispatch.nomination.views", "requests_of")}
"""What an example takes from where nothing is promised, as we may and others should not."""


def imports(text: str) -> list[tuple[str, str]]:
    """Module and name of what a text imports from the library."""
    found = re.findall(r"^ *from (asyncdispatch[\w.]*) import (\([^)]*\)|[^\n(]*)", text, re.MULTILINE)
    return [(module, name) for module, names in found for name in re.findall(r"\w+", re.sub(r" as \w+|#.*", "", names))]


@pytest.mark.parametrize("folder", ["README.md", "docs", "examples"])
def test_what_people_are_shown_is_public(folder: str) -> None:
    """Documentation and examples import only what is promised."""
    public = set(modules())
    tree = ROOT / folder
    paths = [tree] if tree.is_file() else sorted([*tree.rglob("*.md"), *tree.rglob("*.py")])
    paths = [path for path in paths if "_build" not in path.parts and not path.name.startswith("generate_")]
    shown = [(path, *each) for path in paths for each in imports(path.read_text(encoding="utf-8"))]
    assert shown
    wrong = [
        f"{path.relative_to(ROOT)}: {name} of {module}"
        for path, module, name in shown
        if (module, name) not in BESIDE
        and (module not in public or name not in __import__(module, fromlist=["*"]).__all__)
    ]
    assert wrong == []


# ---- the checks themselves ------------------------------------------------------------------------------------------


def test_a_changed_signature_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are a new method, a changed default and a name that is gone."""

    def submit(self: Any, call: int = 3) -> None: ...

    before = describe()
    monkeypatch.setattr(asyncdispatch.Dispatcher, "submit", submit)
    monkeypatch.setattr(asyncdispatch.Dispatcher, "submit_all", submit, raising=False)
    monkeypatch.setattr(asyncdispatch, "__all__", [name for name in asyncdispatch.__all__ if name != "MergeFailed"])
    after = describe()
    assert changes(before, after) == ["MergeFailed", "submit", "submit_all"]
    assert "asyncdispatch.Dispatcher.submit: method(self: Any, call: int = 3) -> None" in after


def test_what_the_changelog_does_not_name_is_found() -> None:
    """Words outside of code, parts of words, and older sections do not count."""
    changelog = "# Changelog\n\n## [Unreleased]\n\n- `Dispatcher.submit_all`: drain\n\n## [0.1.0]\n\n- `drain`\n"
    assert unmentioned(["submit_all", "submit", "drain"], changelog) == ["submit", "drain"]
    assert unmentioned(["drain"], "# Changelog\n") == ["drain"]


def test_the_file_is_written_by_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And kept aside as the released one when that is asked for."""
    current, released = tmp_path / "current", tmp_path / "released"
    monkeypatch.setattr(public_api, "CURRENT", current)
    monkeypatch.setattr(public_api, "RELEASED", released)
    monkeypatch.setattr("sys.argv", ["public_api"])
    public_api.main()
    assert not released.exists()
    assert current.read_text().splitlines() == describe()
    monkeypatch.setattr("sys.argv", ["public_api", "--released"])
    public_api.main()
    assert released.read_text() == current.read_text()
