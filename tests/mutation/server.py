"""A pytest plugin that stands where tests would run: all is imported, and each mutant costs a fork.

The first fork runs each test once under coverage, to learn which lines it runs and for how long. Then each mutant is
planted in a fork of its own, where those tests run which reach it, the likeliest to notice first, until one fails. A
test that uses ten times its time is stopped: then the mutant hangs, which counts as killed.

In the quick round, property tests draw few examples, and tests that take long are left out. The round for the survivors
has these, and property tests as the suite runs them.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import coverage
import pytest

from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.planting import CannotPlant, plant

KILLED, SURVIVED, HANGS, UNREACHED, UNPLANTED = "killed", "survived", "hangs", "unreached", "unplanted"
_CODES = {0: SURVIVED, 1: KILLED, 3: UNPLANTED}

QUICK_EXAMPLES = 10
QUICK_SECONDS = 3.0
SLOW_LIMIT = 0.5
"""Seconds of the CPU, under coverage."""

MEMORY = 4 << 30
"""Bytes that a mutant may take."""


Work = Callable[[Callable[[Any], None]], int]
"""What a fork does: it is given a function that writes to its parent, and returns its exit code."""


@dataclass
class Known:
    """What is known of the tests: how long each took, which lines it ran, and what it has killed."""

    seconds: dict[str, float] = field(default_factory=dict)
    reach: dict[str, dict[str, set[int]]] = field(default_factory=dict)  # module, then test, then lines
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)

    def order(self, mutant: Mutant) -> list[str]:
        """The tests that reach a mutant. First what is quick and has killed in the same function or module."""
        reach = self.reach.get(mutant.module, {})
        if mutant.first_line:
            tests = [test for test, lines in reach.items() if not lines.isdisjoint(mutant.lines)]
        else:
            tests = list(self.seconds)

        def cost(test: str) -> float:
            near = self.kills[mutant.module + mutant.scope, test] * 20 + self.kills[mutant.module, test]
            return self.seconds[test] / (1 + near)

        return sorted(tests, key=cost)

    def worth(self, tests: list[str], seconds: float) -> list[str]:
        """As many of the first as take so long."""
        sums = accumulate(self.seconds[test] for test in tests)
        return [test for test, total in zip(tests, sums, strict=True) if total <= seconds]

    def by_kills(self, tests: list[str]) -> list[str]:
        total: Counter[str] = Counter()
        for (_, test), count in self.kills.items():
            total[test] += count
        return sorted(tests, key=lambda test: -total[test])

    def killed(self, mutant: Mutant, test: str) -> None:
        for place in (mutant.module + mutant.scope, mutant.module):
            self.kills[place, test] += 1


class Server:
    """Runs mutants instead of tests. `choose` says which of all; `report` is told of each as it is done."""

    def __init__(
        self,
        modules: dict[str, Path],
        choose: Callable[[str, list[Mutant]], list[Mutant]],
        report: Callable[[Mutant, str, str], None],
        slow: list[str] | None = None,
        patience: float = 5.0,
    ) -> None:
        """`slow`: for the round of the survivors, the tests that the quick one has left out. `patience`: seconds that a
        test gets beside ten times its usual ones before it hangs."""
        self._patience = patience
        self._modules = {name: path.resolve() for name, path in modules.items()}
        self._choose = choose
        self._report = report
        self._known = Known()
        self._quick = slow is None
        self.slow: list[str] = slow or []

    def pytest_sessionstart(self) -> None:
        """The suite's own profile, without the search for the smallest example: one that fails is enough."""
        from hypothesis import Phase, settings  # pytest wants to be first: its plugin's asserts are rewritten

        profile = settings(phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False)
        if self._quick:
            profile = settings(profile, max_examples=QUICK_EXAMPLES)
        settings.register_profile("mutants", profile)
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        if self._quick:
            self._measure(session, items)
        else:
            self._known.seconds = dict.fromkeys(self.slow, SLOW_LIMIT)
        for name, path in self._modules.items():
            module = importlib.import_module(name)
            if not path.samefile(module.__file__ or ""):
                pytest.exit(f"{name} is imported from {module.__file__}, not from {path}", returncode=2)
            tree = ast.parse(path.read_text(), str(path))
            for mutant in self._choose(name, mutants_of(tree, name)):
                self._report(mutant, *self._judge(session, mutant, tree, module, items))
        return True

    def _judge(
        self,
        session: pytest.Session,
        mutant: Mutant,
        tree: ast.Module,
        module: ModuleType,
        items: dict[str, pytest.Item],
    ) -> tuple[str, str]:
        """How a mutant ends, and the test that noticed it."""
        if self._quick:
            order = self._known.worth(self._known.order(mutant), QUICK_SECONDS)
        else:
            order = self._known.by_kills(self.slow)
        if not order:
            return (UNREACHED if self._quick else SURVIVED), ""

        def run(write: Callable[[Any], None]) -> int:
            try:
                plant(mutant, tree, module, also=("asyncdispatch", "tests"))
            except CannotPlant:
                return 3
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            for name in order:
                write(name)
                usual = self._known.seconds[name]
                signal.setitimer(signal.ITIMER_PROF, self._patience + usual * 10)  # its time of the CPU
                signal.setitimer(signal.ITIMER_REAL, self._patience * 20 + usual * 100)  # if it only waits
                if not _passes(session, items[name]):
                    return 1
            return 0

        told: list[str] = []
        code = forked(run, told.append)
        how = _CODES.get(code, HANGS)
        test = told[-1] if told and how in (KILLED, HANGS) else ""
        if test:
            self._known.killed(mutant, test)
        return how, test

    def _measure(self, session: pytest.Session, items: dict[str, pytest.Item]) -> None:
        """Run every test without a mutant, in a fork."""

        def work(write: Callable[[Any], None]) -> int:
            files = {str(path): name for name, path in self._modules.items()}
            os.environ["COVERAGE_CORE"] = "ctrace"  # the newer core knows no contexts
            tracer = coverage.Coverage(data_file=None, config_file=False, include=list(files))
            tracer.start()
            stopped: list[str] = []

            def stop(*_: object) -> None:
                stopped.append(name)
                pytest.skip("left for the round of the survivors")

            signal.signal(signal.SIGPROF, stop)
            for name, item in items.items():
                tracer.switch_context(name)
                signal.setitimer(signal.ITIMER_PROF, SLOW_LIMIT)
                began = time.process_time()
                passed = _passes(session, item)
                signal.setitimer(signal.ITIMER_PROF, 0)
                # However it took being stopped, it says nothing.
                write([name, time.process_time() - began, passed or name in stopped])
            tracer.stop()
            for file, module in files.items():
                write([module, tracer.get_data().contexts_by_lineno(file)])
            return 0

        told: list[Any] = []
        if forked(work, told.append):
            pytest.exit("the run without a mutant came to no end", returncode=2)
        failed = [name for name, _, passed in told[: len(items)] if not passed]
        if failed:
            pytest.exit(f"these fail without a mutant: {', '.join(failed)}", returncode=2)
        self._known.seconds = {name: seconds for name, seconds, _ in told[: len(items)] if seconds < SLOW_LIMIT}
        self.slow = [name for name in items if name not in self._known.seconds or _draws(items[name])]
        for module, lines in told[len(items) :]:
            reach = self._known.reach.setdefault(module, {})
            for line, tests in lines.items():
                for test in tests:
                    if test in self._known.seconds:
                        reach.setdefault(test, set()).add(int(line))


def _draws(item: pytest.Item) -> bool:
    """True for a property test."""
    return hasattr(getattr(item, "obj", None), "hypothesis") or type(item).__name__ == "TestCaseFunction"


def _passes(session: pytest.Session, item: pytest.Item) -> bool:
    before = session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return session.testsfailed == before


def forked(work: Work, hear: Callable[[Any], None], *, silent: bool = True) -> int:
    """Run `work` in a fork; `hear` gets what it writes, through JSON. Its code; negative if a signal has ended it."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1  # an exception here is the mutant's doing
        try:
            os.close(reading)
            if silent:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
            with os.fdopen(writing, "w") as out:

                def write(what: Any) -> None:
                    out.write(json.dumps(what) + "\n")
                    out.flush()

                code = work(write)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            hear(json.loads(line))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
