"""Exec plugins: run apart and without a terminal, for a limited time, and nothing that they say is repeated."""

import base64
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster, execplugin
from asyncdispatch.kubernetes.execplugin import run_plugin
from tests.kubernetes.test_kubeconfig import cluster_of, kubeconfig, token_sent, told, written

V1 = "client.authentication.k8s.io/v1"
SECRET = "s3cr3t-t0k3n"


def script(tmp_path: Path, lines: str, name: str = "plugin") -> Path:
    """A program of the shell."""
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def saying(tmp_path: Path, status: Any, **answer: Any) -> Path:
    """A plugin that gives this status."""
    said = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status, **answer})
    return script(tmp_path, f"cat <<'END'\n{said}\nEND")


def spec(command: Path | str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "command": str(command), "interactiveMode": "Never", **more}


def ran(tmp_path: Path, command: Path | str, **more: Any) -> Any:
    return run_plugin("user u: exec", spec(command, **more), tmp_path, {"server": "https://api.example"})


def test_what_a_plugin_gives(tmp_path):
    """A token, a certificate with its key, or both; when they expire, if it says so."""
    given = ran(tmp_path, saying(tmp_path, {"token": "t", "expirationTimestamp": "2030-01-02T03:04:05Z"}))
    assert (given.token, given.certificate, given.key, given.expires) == ("t", None, None, 1893553445.0)
    given = ran(tmp_path, saying(tmp_path, {"clientCertificateData": "C", "clientKeyData": "K"}))
    assert (given.token, given.certificate, given.key, given.expires) == (None, b"C", b"K", None)
    assert SECRET not in repr(ran(tmp_path, saying(tmp_path, {"token": SECRET})))


def test_what_a_plugin_is_told(tmp_path):
    """Its arguments, the environment with its own variables, and about the cluster if it asks; no terminal."""
    plugin = script(tmp_path, 'env > "$1"; cat >> "$1"; echo "$2" >> "$1"; exit 1')
    seen = tmp_path / "seen"
    for asked in (True, False):
        with pytest.raises(ConfigurationError):
            ran(
                tmp_path,
                plugin,
                args=[str(seen), "two words"],
                env=[{"name": "REGION", "value": "eu"}],
                provideClusterInfo=asked,
            )
        lines = seen.read_text().splitlines()
        told_of = json.loads(next(line for line in lines if line.startswith("KUBERNETES_EXEC_INFO="))[21:])
        cluster = {"cluster": {"server": "https://api.example"}} if asked else {}
        assert told_of == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False, **cluster}}
        assert "REGION=eu" in lines
        assert f"PATH={os.environ['PATH']}" in lines
        assert lines[-1] == "two words"


def test_where_a_plugin_is_looked_for(tmp_path, monkeypatch):
    """A path counts from the kubeconfig's folder, a bare name from PATH."""
    (tmp_path / "bin").mkdir()
    saying(tmp_path / "bin", {"token": "t"})
    assert ran(tmp_path, "bin/plugin").token == "t"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert ran(tmp_path, "plugin").token == "t"


def test_a_plugin_that_does_not_end_is_stopped(tmp_path, monkeypatch):
    """And what it started does not hold anybody up either."""
    monkeypatch.setattr(execplugin, "LIMIT", 0.05)
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"not done after 0\.05 s"):
        ran(tmp_path, script(tmp_path, "sleep 5 & wait"))
    assert time.monotonic() - began < 4


BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "fails": (f"echo {SECRET} >&2; exit 3", {}, "exit code 3: run it by hand"),
    "is killed": ("kill -9 $$", {}, "exit code -9"),
    "says nothing": ("true", {}, "no ExecCredential"),
    "says no JSON": (f"echo {SECRET}", {}, "no ExecCredential"),
    "says a list": (f"echo '[\"{SECRET}\"]'", {}, "no ExecCredential"),
    "no bytes of text": (r"printf '\377\376'", {}, "no ExecCredential"),
    "of no known version": ("true", {"apiVersion": "v1"}, "exec.apiVersion"),
    "no command": ("true", {"command": ""}, "exec.command"),
    "arguments that are numbers": ("true", {"args": [7]}, "exec.args"),
    "arguments that are a string": ("true", {"args": SECRET}, "exec.args"),
    "variables without value": ("true", {"env": [{"name": SECRET}]}, "exec.env"),
    "variables that are a mapping": ("true", {"env": {"a": SECRET}}, "exec.env"),
    "wants a terminal": ("true", {"interactiveMode": "Always"}, "exec.interactiveMode"),
    "not there": ("true", {"command": f"/nowhere/{SECRET}"}, "can't be run: No such file or directory"),
    "not to be run": ("true", {"command": "/etc/passwd"}, "can't be run: Permission denied"),
    "no name of a program": ("true", {"command": f"a\0{SECRET}"}, "can't be run: ValueError"),
}


@pytest.mark.parametrize(("lines", "more", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_plugins_that_do_not_work(tmp_path, lines, more, says):
    """Told by their field and what to do; what they print is not repeated."""
    plugin = script(tmp_path, lines)
    with pytest.raises(ConfigurationError) as caught:
        run_plugin("user u: exec", {**spec(plugin), **more}, tmp_path, {})
    assert says in str(caught.value)
    assert SECRET not in told(caught.value)


ANSWERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no status": (None, {}, "no ExecCredential"),
    "another kind": ({"token": SECRET}, {"kind": "Token"}, "no ExecCredential"),
    "another version": ({"token": SECRET}, {"apiVersion": f"{V1}beta1"}, "no ExecCredential"),
    "nothing in it": ({}, {}, "must give a token, or a client certificate"),
    "certificate without key": ({"token": SECRET, "clientCertificateData": SECRET}, {}, "certificate with its key"),
    "token that is a number": ({"token": 7}, {}, "token must be a string"),
    "no time": ({"token": SECRET, "expirationTimestamp": SECRET}, {}, "expirationTimestamp is no time"),
}


@pytest.mark.parametrize(("status", "answer", "says"), ANSWERS.values(), ids=ANSWERS.keys())
def test_answers_that_are_none(tmp_path, status, answer, says):
    """Each is told for what it is."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        ran(tmp_path, saying(tmp_path, status, **answer))
    assert SECRET not in told(caught.value)


async def test_connecting_by_a_plugin(tmp_path):
    """Its token is what is sent; the cluster is described with its authority, and what its extension says."""
    said = f'{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"token":"from-plugin"}}}}'
    plugin = script(tmp_path, f"echo \"$KUBERNETES_EXEC_INFO\" > {tmp_path}/info\necho '{said}'")
    config = cluster_of(
        **{"insecure-skip-tls-verify": True},
        extensions=[{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}],
    )
    config["users"] = [{"name": "u", "user": {"exec": spec(plugin, provideClusterInfo=True)}}]
    async with Cluster.connect(written(tmp_path, config)) as cluster:
        assert await token_sent(cluster) == "Bearer from-plugin"
    info = json.loads((tmp_path / "info").read_text())["spec"]["cluster"]
    assert info == {"server": "https://api.example", "insecure-skip-tls-verify": True, "config": {"audience": "a"}}


async def test_a_plugin_that_fails_ends_connecting(tmp_path, caplog):
    """At once, and without what it printed."""
    caplog.set_level("DEBUG")
    user = {"exec": spec(script(tmp_path, f"echo {SECRET} >&2; exit 1"))}
    with pytest.raises(ConfigurationError, match=r"user u: exec=.*exit code 1") as caught:
        await Cluster.connect(written(tmp_path, kubeconfig(users=[{"name": "u", "user": user}]))).__aenter__()
    assert SECRET not in told(caught.value) + caplog.text


async def test_a_token_of_a_plugin_that_no_header_can_carry(tmp_path):
    """A line break in it would be a header of somebody else's."""
    user = {"exec": spec(saying(tmp_path, {"token": f"{SECRET}\r\nX-Evil: 1"}))}
    with pytest.raises(ConfigurationError, match=r"user u: exec=.*is no token") as caught:
        await Cluster.connect(written(tmp_path, kubeconfig(users=[{"name": "u", "user": user}]))).__aenter__()
    assert SECRET not in told(caught.value)


async def test_a_certificate_of_a_plugin_that_is_none(tmp_path):
    """Told without its key."""
    key = base64.b64encode(SECRET.encode()).decode()
    user = {"exec": spec(saying(tmp_path, {"clientCertificateData": SECRET, "clientKeyData": key}))}
    with pytest.raises(ConfigurationError, match="client certificate can't be loaded") as caught:
        await Cluster.connect(written(tmp_path, kubeconfig(users=[{"name": "u", "user": user}]))).__aenter__()
    assert SECRET not in told(caught.value)
    assert key not in told(caught.value)
