"""Builds the programs of a control plane from the Go module proxy: `make controlplane` runs this.

    python -m asyncdispatch.testing.controlplane.build [--sources controlplane] [VERSION]

`sources` holds a Go module for each Kubernetes version and one for etcd. What is built goes to the cache folder of that
version, each program whole or not at all. What is there already, and is what it should be, is left alone.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.testing.controlplane.binaries import (
    DEFAULT_VERSION,
    ETCD,
    KUBE_APISERVER,
    KUBE_SCHEDULER,
    ControlPlaneError,
    assets_folder,
    cache_folder,
    find_programs,
    wanted_version,
)

__all__ = ["build", "main"]

_KUBERNETES_MODULE = "k8s.io/kubernetes"
_ETCD_MODULE = "go.etcd.io/etcd/server/v3"
_FIRST_WITH_TOOLCHAINS = (1, 21)
"""From this Go on, it fetches a newer one by itself where a module asks for that."""


@dataclass(frozen=True)
class _Program:
    name: str
    package: str
    version: str
    module: Path
    """The folder of the Go module that it is built in."""

    @property
    def ldflags(self) -> str:
        if self.package == _ETCD_MODULE:
            return "-s -w"
        # Without it the server would call itself v0.0.0.
        return f"-s -w -X k8s.io/component-base/version.gitVersion=v{self.version}"

    def is_at(self, path: Path) -> bool:
        """Whether the file is this program in this version."""
        try:
            told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return False
        return self.version in re.findall(r"\d+\.\d+\.\d+", told)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="controlplane", description="Build a Kubernetes control plane for tests.")
    parser.add_argument("version", nargs="?", help=f"of Kubernetes; else K8S_VERSION, else {DEFAULT_VERSION}")
    parser.add_argument("--sources", type=Path, default=Path("controlplane"), help="folder of the Go modules")
    options = parser.parse_args(arguments)
    try:
        build(options.version, options.sources)
    except (ControlPlaneError, ConfigurationError) as error:
        print(f"controlplane: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("controlplane: interrupted; what was finished is kept, run it again for the rest", file=sys.stderr)
        return 130
    return 0


def build(version: str | None, sources: Path) -> None:
    """Build what is missing for that version, and say so. Raises `ControlPlaneError`, `ConfigurationError`."""
    if (assets := assets_folder()) is not None:
        find_programs(version, (ETCD, KUBE_APISERVER))
        print(f"KUBEBUILDER_ASSETS is set: nothing is built, the programs in {assets} are used")
        return
    wanted = wanted_version(version) or DEFAULT_VERSION
    programs = _programs(wanted, sources)
    folder = cache_folder(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        missing = [program for program in programs if not program.is_at(folder / program.name)]
        if not missing:
            print(f"Kubernetes {wanted} is in {folder}")
            return
        go, environ = _find_go(missing)
        names = ", ".join(f"{program.name} {program.version}" for program in missing)
        print(f"Building {names} into {folder}")
        print(
            "The first time this takes 3 to 5 minutes on two idle processors, and 3 GB in Go's own caches.", flush=True
        )
        started = time.monotonic()
        for program in missing:
            _build_one(program, folder, go, environ)
        print(f"Built in {time.monotonic() - started:.0f} s")


def _programs(version: str, sources: Path) -> list[_Program]:
    modules = {}
    for path in sorted(sources.glob("*/go.mod")):
        if found := re.search(rf"^require {re.escape(_KUBERNETES_MODULE)} v(\S+)$", path.read_text(), re.MULTILINE):
            modules[found[1]] = path.parent
    if version not in modules:
        choice = (
            ", ".join(sorted(modules, reverse=True)) or f"none: {sources} holds no Go modules, name it by --sources"
        )
        raise ConfigurationError("K8S_VERSION", version, f"can't be built here; there are {choice}")
    etcd = sources / "etcd" / "go.mod"
    found = re.search(rf"^require {re.escape(_ETCD_MODULE)} v(\S+)$", etcd.read_text(), re.MULTILINE)
    if found is None:
        raise ControlPlaneError(f"{etcd} does not require {_ETCD_MODULE}")
    return [
        _Program(ETCD, _ETCD_MODULE, found[1], etcd.parent),
        _Program(KUBE_APISERVER, f"{_KUBERNETES_MODULE}/cmd/{KUBE_APISERVER}", version, modules[version]),
        _Program(KUBE_SCHEDULER, f"{_KUBERNETES_MODULE}/cmd/{KUBE_SCHEDULER}", version, modules[version]),
    ]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One build at a time per folder; the system frees the lock however the holder ends."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another build into {folder} is running; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in folder.glob(".building-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def _build_one(program: _Program, folder: Path, go: Path, environ: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as work:
        made = Path(work) / program.name
        command = [str(go), "build", "-trimpath", "-ldflags", program.ldflags, "-o", str(made), program.package]
        if subprocess.run(command, cwd=program.module, env=environ, check=False).returncode != 0:
            raise ControlPlaneError(f"{program.name} {program.version} could not be built: see what go says above")
        if not program.is_at(made):
            raise ControlPlaneError(f"{program.name} was built, but its --version does not say {program.version}")
        os.replace(made, folder / program.name)


def _find_go(programs: list[_Program]) -> tuple[Path, dict[str, str]]:
    """A Go that is new enough, and the environment to run it in."""
    environ = {**os.environ, "CGO_ENABLED": "0"}
    needed = max(_numbers(_go_line(program.module)) for program in programs)
    places = [shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go"]
    if (root := os.environ.get("GOROOT")) is not None:
        places.append(f"{root}/bin/go")
    go = next((Path(place) for place in places if place and os.access(place, os.X_OK)), None)
    if go is None:
        raise ControlPlaneError(
            "Go is needed to build the control plane, and there is none on PATH or in /usr/local/go. Any will do, it"
            " fetches the version that it takes: on Debian and Ubuntu, apt-get install golang-go"
        )
    found = _numbers(_ask(go, environ, "env", "GOVERSION"))
    if found < needed and found >= _FIRST_WITH_TOOLCHAINS:
        environ["GOTOOLCHAIN"] = "auto"
    elif found < needed:
        go = _fetch_go(go, environ, needed)
        environ.pop("GOROOT", None)
    return go, environ


def _fetch_go(go: Path, environ: dict[str, str], version: tuple[int, ...]) -> Path:
    """A newer Go by means of an old one: it is a module too, and its sum is checked like any module's."""
    system, machine = _ask(go, environ, "env", "GOOS", "GOARCH").split()
    name = f"golang.org/toolchain@v0.0.1-go{'.'.join(map(str, version))}.{system}-{machine}"
    print(f"{go} is too old; fetching {name}", flush=True)
    _ask(go, environ, "mod", "download", name)
    root = Path(_ask(go, environ, "env", "GOMODCACHE")) / name
    for path in [*root.glob("bin/*"), *root.glob("pkg/tool/*/*")]:  # modules hold no programs, so none may be run
        path.chmod(0o755)
    return root / "bin" / "go"


def _ask(go: Path, environ: dict[str, str], *arguments: str) -> str:
    # Outside of any module, whose go line an older Go could not read.
    with tempfile.TemporaryDirectory() as nowhere:
        done = subprocess.run(
            [go, *arguments], cwd=nowhere, env={"GOTOOLCHAIN": "local", **environ}, capture_output=True, text=True
        )
    if done.returncode != 0:
        raise ControlPlaneError(f"'{go} {' '.join(arguments)}' failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _go_line(module: Path) -> str:
    found = re.search(r"^go (\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    return found[1] if found else "1.0"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


if __name__ == "__main__":
    sys.exit(main())
