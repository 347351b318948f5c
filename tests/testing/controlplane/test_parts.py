"""The pieces of a control plane that need none: where programs are, flags, ports, roles, one program's life."""

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from asyncdispatch import ConfigurationError
from asyncdispatch.testing import ControlPlane, ControlPlaneError, Role
from asyncdispatch.testing.controlplane.access import Access
from asyncdispatch.testing.controlplane.binaries import cache_folder, find_programs, wanted_version
from asyncdispatch.testing.controlplane.folders import make_folder
from asyncdispatch.testing.controlplane.part import Part, PortTaken, dies_with, merge_flags
from asyncdispatch.testing.controlplane.ports import free_port


def program(folder: Path, script: str) -> Path:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def part(folder: Path, script: str, *, serves: bool, timeout: float = 30.0) -> Part:
    async def ready() -> bool:
        if not serves:
            raise ConnectionRefusedError
        return True

    made = program(folder, script)
    return Part(made, dict, ready, flags=(), log=folder / "log", start_timeout=timeout)


# ---- programs -------------------------------------------------------------------------------------------------------


def test_missing_programs_come_with_the_remedy(tmp_path: Path) -> None:
    """What is missing, where, and what to do."""
    environ = {"XDG_CACHE_HOME": str(tmp_path), "K8S_VERSION": "1.35.4"}
    with pytest.raises(
        ControlPlaneError,
        match=r"no etcd, kube-apiserver, kube-scheduler in .*1.35.4. .*make controlplane K8S_VERSION=1.35.4",
    ):
        find_programs(environ=environ)
    environ["KUBEBUILDER_ASSETS"] = str(tmp_path)
    (tmp_path / "etcd").touch(mode=0o755)
    (tmp_path / "kube-apiserver").touch(mode=0o644)
    with pytest.raises(ControlPlaneError, match=r"no kube-apiserver in .* KUBEBUILDER_ASSETS names that folder"):
        find_programs(names=("etcd", "kube-apiserver"), environ=environ)
    (tmp_path / "kube-apiserver").chmod(0o755)
    assert find_programs(names=("etcd",), environ=environ) == {"etcd": tmp_path / "etcd"}


async def test_a_control_plane_without_programs_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what is missing; nothing was made that would have to be taken away."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ControlPlaneError, match="no etcd, kube-apiserver in"):
        await ControlPlane().__aenter__()


def test_versions() -> None:
    """An argument wins over the environment; both have three numbers."""
    assert wanted_version(None, {}) is None
    assert wanted_version(None, {"K8S_VERSION": ""}) is None
    assert wanted_version(None, {"K8S_VERSION": "1.34.4"}) == "1.34.4"
    assert wanted_version("1.35.4", {"K8S_VERSION": "1.34.4"}) == "1.35.4"
    with pytest.raises(ConfigurationError, match=r"K8S_VERSION='1.34': give all three numbers"):
        wanted_version(None, {"K8S_VERSION": "1.34"})
    with pytest.raises(ConfigurationError, match=r"version='../x': give all three numbers"):
        ControlPlane(version="../x")
    assert cache_folder("1.34.4", {"XDG_CACHE_HOME": "/c"}) == Path("/c/asyncdispatch/controlplane/1.34.4")


# ---- flags, ports, roles --------------------------------------------------------------------------------------------


def test_flags_replace_what_is_set() -> None:
    """By name, with a value or without; what is no flag is refused before anything starts."""
    defaults = {"a": "1", "b": "2"}
    assert merge_flags(defaults, []) == ["--a=1", "--b=2"]
    assert merge_flags(defaults, ["--b=3", "--b=4", "--c"]) == ["--a=1", "--b=3", "--b=4", "--c"]
    for bad in ("b=3", "--b 3", ""):
        with pytest.raises(ConfigurationError, match=r"flags=.*: give each as one string, like '--name=value'"):
            ControlPlane(flags={"etcd": [bad]})
    with pytest.raises(ConfigurationError, match="flags='kubelet': is no program; give some of etcd, kube-apiserver"):
        ControlPlane(flags={"kubelet": []})


def test_ports_are_free_and_of_the_loopback() -> None:
    """One that is listened on is not handed out."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        assert free_port() != listener.getsockname()[1]


def test_folders_of_the_dead_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in use stay, and so do kept logs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, its_lock = make_folder()
    (dead / "data").mkdir()
    its_lock.close()  # as the system does when its process ends
    living, lock = make_folder()
    logs = tmp_path / "asyncdispatch-controlplane-logs"
    (logs / "logs").mkdir(parents=True)
    other, another_lock = make_folder()
    assert sorted(tmp_path.iterdir()) == sorted([living, logs, other])
    assert stat.S_IMODE(living.stat().st_mode) == 0o700
    lock.close()
    another_lock.close()


def test_roles_are_written_for_the_api_server(tmp_path: Path) -> None:
    """Token, user, uid, groups; each role with a token that nobody can guess, and that no repr shows."""
    bot = Role("system:serviceaccount:a:b", ("g1", "g2"))
    access = Access(tmp_path, tmp_path / "ca.crt", {"bot": bot})
    lines = access.token_file.read_text().splitlines()
    assert f'{bot.token},system:serviceaccount:a:b,bot,"g1,g2"' in lines
    assert len({line.partition(",")[0] for line in lines}) == len(lines) == 4
    assert bot.token not in repr(bot)
    assert stat.S_IMODE(access.token_file.stat().st_mode) == 0o600
    config = json.loads(access.kubeconfig("bot", "https://127.0.0.1:7").read_text())
    assert config["users"][0]["user"]["token"] == bot.token
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:7"
    other = Access(tmp_path, tmp_path / "ca.crt", {})
    assert other.role("admin").token != access.role("admin").token
    for bad in ("", "a,b", 'a"', "a\n"):
        with pytest.raises(ConfigurationError, match=r"role\.user"):
            Role(bad)
        with pytest.raises(ConfigurationError, match=r"role\.groups"):
            Role("a", (bad,))


# ---- one program's life ---------------------------------------------------------------------------------------------


async def test_a_part_starts_and_stops(tmp_path: Path) -> None:
    """Started twice is an error; stopped twice is not."""
    running = part(tmp_path, "exec sleep 60", serves=True)
    assert (running.running, running.pid) == (False, None)
    await running.start()
    pid = running.pid
    assert pid is not None
    with pytest.raises(RuntimeError, match="running already"):
        await running.start()
    await running.stop()
    await running.stop()
    running.kill()
    assert not running.running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_part_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    """After the time that it was given."""
    running = part(tmp_path, "trap '' TERM; echo up; while :; do sleep 60 & wait; done", serves=True)
    await running.start()
    await running.stop(timeout=0.1)
    assert not running.running


async def test_a_part_that_ends_shows_its_log(tmp_path: Path) -> None:
    """Of this start only, by its end; a port that is taken is told apart, so that another can be tried."""
    log = tmp_path / "log"
    log.write_text("of an earlier start\n")
    with pytest.raises(ControlPlaneError, match="program ended while it started") as caught:
        await part(tmp_path, "for i in $(seq 40); do echo line $i; done; exit 1", serves=False).start()
    assert "line 40" in str(caught.value)
    assert "line 20\n" not in str(caught.value)
    assert str(log) in str(caught.value)
    with pytest.raises(PortTaken):
        await part(
            tmp_path, "echo 'listen tcp 127.0.0.1:1: bind: address already in use'; exit 1", serves=False
        ).start()
    with pytest.raises(ControlPlaneError) as quiet:
        await part(tmp_path, "exit 1", serves=False).start()
    assert type(quiet.value) is ControlPlaneError


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="the system has no setpriv, which Linux systems have")
def test_a_part_dies_with_a_process_that_is_killed(tmp_path: Path) -> None:
    """kill -9 of the tests, or a plain kill, leaves no servers behind."""
    script = f"""
import asyncio, os, signal, sys
from pathlib import Path
from tests.testing.controlplane.test_parts import part

async def main():
    running = part(Path({str(tmp_path)!r}), "exec sleep 60", serves=True)
    await running.start()
    print(running.pid, flush=True)
    sys.stdin.read(1)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdin is not None
        assert tests.stdout is not None
        process = os.pidfd_open(int(tests.stdout.readline()))
        try:
            tests.stdin.write("\n")
            tests.stdin.flush()
            ended, _, _ = select.select([process], [], [], 30)
            assert ended
        finally:
            os.close(process)
        assert tests.wait() == -signal.SIGKILL


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="the system has no setpriv, which Linux systems have")
def test_a_part_whose_parent_died_before_it_began_does_not_begin(tmp_path: Path) -> None:
    """Nobody would end it: a death is told only to those who asked before it."""
    began = tmp_path / "began"
    orphan = subprocess.run([*dies_with(os.getppid()), "touch", str(began)], check=False)
    assert orphan.returncode != 0
    assert not began.exists()
    subprocess.run([*dies_with(os.getpid()), "touch", str(began)], check=True)
    assert began.exists()


async def test_a_part_that_ends_is_noticed_while_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another program listens on its port, and says nothing."""
    monkeypatch.setattr("asyncdispatch.testing.controlplane.part._PROBE_TIMEOUT", 0.05)
    silence = asyncio.Event()
    made = program(tmp_path, "exit 1")
    ended = Part(made, dict, silence.wait, flags=(), log=tmp_path / "log", start_timeout=60)
    with pytest.raises(ControlPlaneError, match="program ended while it started"):
        await ended.start()


async def test_a_part_that_never_serves_is_killed(tmp_path: Path) -> None:
    """Within its time; the error shows what it said."""
    slow = part(tmp_path, "echo thinking; exec sleep 60", serves=False, timeout=0.3)
    with pytest.raises(ControlPlaneError, match=r"program did not serve within 0.3 s\n(.|\n)*thinking"):
        await slow.start()
    assert not slow.running
