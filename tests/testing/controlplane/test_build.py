"""Building the programs of a control plane, with a stand-in for Go that takes no minutes."""

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from asyncdispatch import ConfigurationError
from asyncdispatch.testing.controlplane.binaries import DEFAULT_VERSION, PROGRAMS, ControlPlaneError, cache_folder
from asyncdispatch.testing.controlplane.build import build, main

SOURCES = Path(__file__).parents[3] / "controlplane"
OLD_VERSION = "0.0.9"

GO = """\
    #!/bin/sh
    # Says its version; "builds" programs that say which version they are, by the linker's flags.
    echo "$GOTOOLCHAIN|$*" >>"{log}"
    case "$1" in
    env) case "$2" in
        GOVERSION) echo {version} ;;
        GOMODCACHE) echo {modules} ;;
        *) printf 'linux\\namd64\\n' ;;
        esac ;;
    mod) mkdir -p {modules}/"$3"/bin && cp "$0" {modules}/"$3"/bin/go && chmod 444 {modules}/"$3"/bin/go ;;
    build)
        while [ $# -gt 1 ]; do
            case "$1" in -o) out=$2 ;; *gitVersion=v*) says=${{1##*gitVersion=v}} ;; esac
            shift
        done
        {during}
        printf '#!/bin/sh\\necho "version: %s"\\n' "${{says:-{etcd}}}" >"$out"
        chmod 755 "$out" ;;
    esac
"""


def etcd_version() -> str:
    line = next(
        line for line in (SOURCES / "etcd" / "go.mod").read_text().splitlines() if line.startswith("require go.")
    )
    return line.rpartition(" v")[2]


class Go:
    """The stand-in, on PATH; what it was asked is in `asked`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "go-bin" / "go"
        self.log = folder / "go.log"
        self.modules = folder / "modules"
        self.path.parent.mkdir()
        self.become("go1.99.0")

    def become(self, version: str, during: str = ":", etcd: str | None = None) -> None:
        etcd = etcd or etcd_version()
        script = GO.format(version=version, during=during, etcd=etcd, log=self.log, modules=self.modules)
        self.path.write_text(textwrap.dedent(script))
        self.path.chmod(0o755)
        self.log.write_text("")

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()

    @property
    def built(self) -> list[str]:
        return [line.rpartition("/")[2] for line in self.asked if "|build " in line]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    for name in ("KUBEBUILDER_ASSETS", "K8S_VERSION", "GOROOT", "GOTOOLCHAIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Go(tmp_path)
    monkeypatch.setenv("PATH", f"{made.path.parent}:{os.environ['PATH']}")
    return made


def test_all_three_are_built_once(go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it does, where, and how long it may take; the second time nothing is left to do."""
    build(None, SOURCES)
    assert sorted(path.name for path in cache_folder().iterdir() if path.name != ".lock") == sorted(PROGRAMS)
    told = capsys.readouterr().out
    assert f"Building etcd {etcd_version()}, kube-apiserver {DEFAULT_VERSION}, kube-scheduler {DEFAULT_VERSION}" in told
    assert "minutes" in told
    assert go.built == ["v3", "kube-apiserver", "kube-scheduler"]
    build(None, SOURCES)
    assert capsys.readouterr().out == f"Kubernetes {DEFAULT_VERSION} is in {cache_folder()}\n"
    assert len(go.built) == 3


def test_what_is_of_another_version_or_broken_is_built_again(go: Go) -> None:
    """As after an update of etcd; the others are left alone."""
    build(None, SOURCES)
    (cache_folder() / "etcd").write_text(f"#!/bin/sh\necho etcd Version: {OLD_VERSION}\n")
    (cache_folder() / "kube-scheduler").chmod(0o644)
    build(None, SOURCES)
    assert go.built[3:] == ["v3", "kube-scheduler"]


@pytest.mark.parametrize("version", ["1.37.2", "1.35.4", "1.34.4"])
def test_each_promised_version_has_a_module(go: Go, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen by K8S_VERSION; every module is pinned by its sums."""
    monkeypatch.setenv("K8S_VERSION", version)
    build(None, SOURCES)
    built = cache_folder(version) / "kube-apiserver"
    assert subprocess.run([built], capture_output=True, text=True, check=True).stdout == f"version: {version}\n"
    assert all((module.parent / "go.sum").stat().st_size for module in SOURCES.glob("*/go.mod"))


def test_an_interrupted_build_is_never_taken_for_a_whole_one(go: Go) -> None:
    """Killed in the middle of it, nothing of that program is in the cache; the next build clears up and goes on."""
    go.become("go1.99.0", during='[ -z "$says" ] || { echo half >"$out"; kill -9 $PPID; exit 1; }')
    command = [sys.executable, "-m", "asyncdispatch.testing.controlplane.build", "--sources", str(SOURCES)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -9
    assert (cache_folder() / "etcd").exists()
    assert not (cache_folder() / "kube-apiserver").exists()
    assert len(list(cache_folder().glob(".building-*"))) == 1
    go.become("go1.99.0")
    build(None, SOURCES)
    assert go.built == ["kube-apiserver", "kube-scheduler"]
    assert not list(cache_folder().glob(".building-*"))


def test_a_build_that_fails_or_lies_is_an_error(go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says so and fails; what is not of the version that it should be is not kept."""
    go.become("go1.99.0", during="exit 1")
    assert main(["--sources", str(SOURCES)]) == 1
    assert f"controlplane: etcd {etcd_version()} could not be built" in capsys.readouterr().err
    go.become("go1.99.0", etcd=OLD_VERSION)
    with pytest.raises(ControlPlaneError, match="etcd was built, but its --version does not say"):
        build(None, SOURCES)
    assert not (cache_folder() / "etcd").exists()


@pytest.mark.parametrize(("version", "toolchain"), [("go1.99.0", "local"), ("go1.21.3", "auto")])
def test_a_go_that_is_old_is_told_to_fetch_a_newer_one(
    go: Go, version: str, toolchain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it is set not to; one that is new enough is left as it is."""
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    go.become(version)
    build(None, SOURCES)
    assert {line.partition("|")[0] for line in go.asked if "|build " in line} == {toolchain}


def test_a_go_that_is_too_old_for_that_fetches_a_newer_one_as_a_module(go: Go) -> None:
    """As Debian 12's: what it fetched is made to run, and builds."""
    go.become("go1.19.8")
    build(None, SOURCES)
    fetched = [line for line in go.asked if "|mod download golang.org/toolchain@v0.0.1-go1." in line]
    assert len(fetched) == 1
    made = go.modules / fetched[0].rpartition(" ")[2] / "bin" / "go"
    assert made.stat().st_mode & stat.S_IXUSR
    assert go.built == ["v3", "kube-apiserver", "kube-scheduler"]


def test_without_go_it_says_how_to_get_it(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is half done."""
    go.path.unlink()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/go") and real(path, mode))
    with pytest.raises(ControlPlaneError, match=r"Go is needed to build(.|\n)*apt-get install golang-go"):
        build(None, SOURCES)


def test_kubebuilder_assets_are_used_as_they_are(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is built then; a folder without the programs is an error."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert main(["--sources", str(SOURCES)]) == 1
    assert "KUBEBUILDER_ASSETS names that folder" in capsys.readouterr().err
    (tmp_path / "assets").mkdir()
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / "assets" / name).touch(mode=0o755)
    assert main(["--sources", str(SOURCES)]) == 0
    assert "nothing is built" in capsys.readouterr().out
    assert go.asked == []


def test_an_unknown_version_names_the_known_ones(go: Go, tmp_path: Path) -> None:
    """In the message; a folder without modules is named too."""
    with pytest.raises(ConfigurationError, match=r"K8S_VERSION='1.2.3': can't be built here; there are 1.37.2, 1.35.4"):
        build("1.2.3", SOURCES)
    with pytest.raises(ConfigurationError, match=r"version='latest': give all three numbers"):
        build("latest", SOURCES)
    with pytest.raises(ConfigurationError, match="holds no Go modules"):
        build(None, tmp_path)
