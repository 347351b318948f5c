"""Run the benchmarks and print each figure, then one line for each goal. Exits 0 whatever it finds."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import FULL, QUICK, Figure, NotHere, Scale, worst
from benchmarks.p1_waves import p1, p2
from benchmarks.p3_latency import p3
from benchmarks.p4_growth import p4
from benchmarks.p5_memory import p5
from benchmarks.p6_extras import p6
from benchmarks.p7_cancel import p7
from benchmarks.p8_priority import p8
from benchmarks.p9_fairness import p9
from benchmarks.p11_adapter import p11
from benchmarks.p12_threads import p12
from benchmarks.p13_simulator import p13
from benchmarks.p15_cluster import p15
from benchmarks.p16_scheduler import p16

RESULTS = Path(__file__).with_name("results.json")

BENCHMARKS: dict[str, Callable[[Scale], list[Figure]]] = {
    "P1": p1,
    "P2": p2,
    "P3": p3,
    "P4": p4,
    "P5": p5,
    "P6": p6,
    "P7": p7,
    "P8": p8,
    "P9": p9,
    "P11": p11,
    "P12": p12,
    "P13": p13,
    "P15": p15,
    "P16": p16,
}


def machine() -> dict[str, Any]:
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "cores": os.cpu_count(),
        "load_before": load,
    }


def run(names: Sequence[str], scale: Scale, output: Path) -> dict[str, Figure]:
    """Run them, print, write `output`; returns the worst figure of each."""
    about = machine()
    print("# " + ", ".join(f"{key}={value}" for key, value in about.items()), flush=True)
    found: dict[str, list[Figure]] = {}
    for name in names:
        began = time.monotonic()
        try:
            found[name] = BENCHMARKS[name](scale)
        except NotHere as error:
            print(f"# {name} was not measured: {error}", flush=True)
            continue
        for figure in found[name]:
            print(figure.line(name), flush=True)
        print(f"# {name} took {time.monotonic() - began:.1f} s", flush=True)
    summary = {name: worst(figures) for name, figures in found.items()}
    for name, figure in summary.items():
        print(f"{name} {figure}")
    results = {
        "machine": about,
        "scale": asdict(scale),
        "figures": [_as_json(name, figure) for name, figures in found.items() for figure in figures],
        "goals": {name: _as_json(name, figure) for name, figure in summary.items()},
    }
    output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return summary


def _as_json(name: str, figure: Figure) -> dict[str, Any]:
    goal = None if figure.goal is None else str(figure.goal)
    return {
        "benchmark": name,
        "what": figure.what,
        "unit": figure.unit,
        "value": round(figure.value, 4),
        "goal": goal,
        "ok": None if goal is None else figure.ok,
        "note": figure.note,
    }


def _names(text: str) -> list[str]:
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BENCHMARKS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(BENCHMARKS)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", type=_names, default=list(BENCHMARKS), metavar="P1,P2", help="only these")
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes and fewer rounds: for a loop, not for a claim"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go, as JSON")
    options = parser.parse_args(arguments)
    run(options.only, QUICK if options.quick else FULL, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
