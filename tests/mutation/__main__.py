"""How many planted faults the tests notice.

python -m tests.mutation ordering lanes      every fault of two modules of the core
python -m tests.mutation --sample 50         so many of each module, the same ones each time; --seed takes others
python -m tests.mutation lanes --profile ci  survivors again, with the tests that take long, as CI runs them
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.operators import Mutant
from tests.mutation.server import HANGS, KILLED, SURVIVED, UNPLANTED, UNREACHED, Server, forked

SOURCE = Path(__file__).parents[2] / "src" / "asyncdispatch"
NOT_MUTATED = ("__init__", "invariants")
"""The invariants are what notices: with fewer of them nothing breaks."""


def modules(names: list[str]) -> dict[str, Path]:
    """The modules of the core, or those named, by their full names."""
    known = {path.stem: path for path in sorted((SOURCE / "_core").glob("*.py")) if path.stem not in NOT_MUTATED}
    known["delays"] = SOURCE / "_delays.py"
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no module named {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = {name: path for name, path in known.items() if not names or name in names}
    return {full_name(path): path for path in chosen.values()}


def full_name(path: Path) -> str:
    return ".".join(("asyncdispatch", *path.relative_to(SOURCE).with_suffix("").parts))


Result = tuple[str, str, str, str]
"""Its module, the mutant, how it ended, and the test that saw it."""


Choose = Callable[[str, list[Mutant]], list[Mutant]]


def sampled(count: int, seed: int) -> Choose:
    """So many of each module, the same ones for the same seed; 0: all."""

    def choose(module: str, found: list[Mutant]) -> list[Mutant]:
        if not count or count >= len(found):
            return found
        picked = set(random.Random(f"{seed} {module}").sample(range(len(found)), count))
        return [mutant for index, mutant in enumerate(found) if index in picked]

    return choose


def named_in(text: str) -> Choose:
    """Those mutants that a line of the text ends with."""
    names = {line.partition(": ")[2] or line for line in text.splitlines()} | set(text.splitlines())
    return lambda _, found: [mutant for mutant in found if str(mutant) in names]


def run(
    chosen: dict[str, Path], tests: list[str], profile: str, choose: Choose, slow: list[str] | None = None
) -> tuple[list[Result], list[str]]:
    """One run of pytest, in a fork: Hypothesis' profile is fixed as the tests are imported. Also the tests left out."""

    def work(write: Callable[[Any], None]) -> int:
        os.environ["HYPOTHESIS_PROFILE"] = profile
        server = Server(chosen, choose, lambda mutant, how, test: write((mutant.module, str(mutant), how, test)), slow)
        options = ["-q", "-s", "-p", "no:cacheprovider", *tests]
        code = pytest.main(options, plugins=[server])
        write({"slow": server.slow})
        return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else int(code)

    results: list[Result] = []
    left: list[str] = []
    began = time.monotonic()

    def hear(told: Any) -> None:
        if isinstance(told, dict):
            left.extend(told["slow"])
            return
        module, mutant, how, test = told
        results.append((module, mutant, how, test))
        if how in (SURVIVED, UNREACHED):
            print(f"[{len(results)} in {time.monotonic() - began:.0f} s] {how}: {mutant}", flush=True)
        elif not len(results) % 50:
            print(f"[{len(results)} in {time.monotonic() - began:.0f} s]", flush=True)

    code = forked(work, hear, silent=False)
    if code:
        sys.exit(code)
    return results, left


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", help="of the core, or delays; all if none is named")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each module, instead of all")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--only", type=Path, metavar="FILE", help="those that this file names, as an earlier run did")
    parser.add_argument("--tests", nargs="+", default=["tests/core", "tests/test_delays.py"], metavar="PATH")
    parser.add_argument("--profile", help="of Hypothesis, for the survivors; without it they are not tried again")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="fail below this share")
    parser.add_argument("--killers", action="store_true", help="also list which tests killed how many")
    options = parser.parse_args()
    chosen = modules(options.modules)
    choose = named_in(options.only.read_text()) if options.only else sampled(options.sample, options.seed)
    first, slow = run(chosen, options.tests, "smoke", choose)
    results = {mutant: (module, how, test) for module, mutant, how, test in first}
    again = {mutant for mutant, (_, how, _) in results.items() if how in (SURVIVED, UNREACHED)}
    if again and options.profile:
        print(f"{len(again)} survivors again, with {len(slow)} tests that take longer", flush=True)
        second, _ = run(chosen, options.tests, options.profile, named_in("\n".join(again)), slow)
        results.update((mutant, (module, how, test)) for module, mutant, how, test in second)
    return summary(chosen, results, options.at_least, options.killers)


def summary(chosen: dict[str, Path], results: dict[str, tuple[str, str, str]], at_least: float, killers: bool) -> int:
    print(f"\n{'module':<40}{'mutants':>8}{'killed':>8}{'hang':>6}{'survive':>8}{'unreached':>10}{'share':>8}")
    low = False
    for name in [*chosen, ""]:
        hows = Counter(how for module, how, _ in results.values() if name in ("", module))
        killed, total = hows[KILLED] + hows[HANGS], hows.total() - hows[UNPLANTED]
        share = 100 * killed / total if total else 100.0
        low = low or share < at_least
        print(
            f"{name or 'all':<40}{total:>8}{hows[KILLED]:>8}{hows[HANGS]:>6}{hows[SURVIVED]:>8}"
            f"{hows[UNREACHED]:>10}{share:>7.1f}%"
        )
    for mutant, (_, how, _) in results.items():
        if how in (SURVIVED, UNREACHED, UNPLANTED):
            print(f"{how}: {mutant}")
    if killers:
        for test, count in Counter(test for _, _, test in results.values() if test).most_common():
            print(f"{count:>6} {test}")
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
