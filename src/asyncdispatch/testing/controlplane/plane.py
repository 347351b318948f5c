"""A real control plane for tests: etcd, kube-apiserver and, where asked for, kube-scheduler."""

from __future__ import annotations

import asyncio
import base64
import logging
import shutil
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.testing.controlplane.access import ADMIN, SCHEDULER, Access, Role
from asyncdispatch.testing.controlplane.binaries import (
    ETCD,
    KUBE_APISERVER,
    KUBE_SCHEDULER,
    PROGRAMS,
    ControlPlaneError,
    find_programs,
    wanted_version,
)
from asyncdispatch.testing.controlplane.certificates import make_certificates
from asyncdispatch.testing.controlplane.folders import make_folder
from asyncdispatch.testing.controlplane.objects import ObjectHelpers
from asyncdispatch.testing.controlplane.part import Part, PortTaken, merge_flags
from asyncdispatch.testing.controlplane.ports import free_port

__all__ = ["ControlPlane"]

_LOGGER = logging.getLogger("asyncdispatch.testing")
_PORT_TRIES = 5
_LINE_LIMIT = 16 * 2**20
"""The longest event of a watch that is read, in bytes."""


class ControlPlane(ObjectHelpers):
    """etcd and kube-apiserver, and kube-scheduler with `scheduler=True`, on loopback ports of their own.

    Enter it with `async with`: it serves when that returns, after some three seconds, and leaves nothing behind. Use it
    in the event loop that it was entered in. There is no kubelet, no controller manager and no garbage collection:
    `end_pod` plays the kubelet, and what a controller would write, a test writes.

    `version` is the Kubernetes version to run; else K8S_VERSION, else the default. `roles` are users beside the
    standard ones: "admin" (may do all), "scheduler" (what kube-scheduler may) and "nobody" (nothing).
    `flags` are more flags by program, each like '--max-requests-inflight=10'; one that is set here already is replaced.
    `logs` is a folder to keep the logs in. Without it they are kept, and named in the error, only when it can't start
    or the body of the `async with` raises. `start_timeout` is what each program may take to start, in seconds.

    `etcd`, `apiserver` and `scheduler` are its parts, each of which can `stop`, `kill`, `start` and `restart`; data
    survives all of these. Raises `ConfigurationError` for options that can't be meant, `ControlPlaneError` where it
    can't be started.
    """

    etcd: Part
    apiserver: Part
    scheduler: Part
    """Made always; started with the others only if `scheduler=True`."""
    version: str
    """What the API server says it is."""

    def __init__(
        self,
        *,
        version: str | None = None,
        scheduler: bool = False,
        roles: Mapping[str, Role] | None = None,
        flags: Mapping[str, Iterable[str]] | None = None,
        logs: Path | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        self._wanted = wanted_version(version)
        self._with_scheduler = scheduler
        self._roles = dict(roles or {})
        self._flags = {name: list(given) for name, given in (flags or {}).items()}
        for name, given in self._flags.items():
            if name not in PROGRAMS:
                raise ConfigurationError("flags", name, f"is no program; give some of {', '.join(PROGRAMS)}")
            merge_flags({}, given)
        self._logs = logs
        self._start_timeout = start_timeout
        self._folder: Path | None = None
        self._http: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: list[Any] = []

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._folder is not None:
            raise RuntimeError("the control plane is running already; make another one")
        names = PROGRAMS if self._with_scheduler else (ETCD, KUBE_APISERVER)
        programs = find_programs(self._wanted, names)
        programs.setdefault(KUBE_SCHEDULER, programs[KUBE_APISERVER].with_name(KUBE_SCHEDULER))
        self._loop = asyncio.get_running_loop()
        self._folder, self._lock = make_folder()
        try:
            await self._start(self._folder, programs)
        except BaseException as error:
            await self._end(error)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end(error)

    async def _start(self, folder: Path, programs: Mapping[str, Path]) -> None:
        logs = self._logs or folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._certificates = make_certificates(folder)
        self._access = Access(folder, self._certificates.authority, self._roles)
        trust = ssl.create_default_context(cafile=str(self._certificates.authority))
        self._make_parts(programs, logs)
        for tries_left in reversed(range(_PORT_TRIES)):
            self._ports = {name: free_port() for name in (ETCD, "etcd peers", KUBE_APISERVER, KUBE_SCHEDULER)}
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trust, limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
                read_bufsize=_LINE_LIMIT,
            )
            try:
                await self.etcd.start()
                await self.apiserver.start()
                if self._with_scheduler:
                    await self.scheduler.start()
                break
            except PortTaken:
                if not tries_left:
                    raise
                self._kill_all()
                await self._http.close()
        told: dict[str, str] = await self.ask("GET", "/version")
        self.version = told["gitVersion"].removeprefix("v")
        if self._wanted not in (None, self.version):
            where = programs[KUBE_APISERVER].parent
            raise ConfigurationError("version", self._wanted, f"is not what is in {where}: that is {self.version}")

    def _make_parts(self, programs: Mapping[str, Path], logs: Path) -> None:
        def part(name: str, arguments: Any, ready: Any) -> Part:
            log = logs / f"{name}.log"
            flags = self._flags.get(name, ())
            return Part(programs[name], arguments, ready, flags=flags, log=log, start_timeout=self._start_timeout)

        self.etcd = part(ETCD, self._etcd_flags, self._etcd_ready)
        self.apiserver = part(KUBE_APISERVER, self._apiserver_flags, self._apiserver_ready)
        self.scheduler = part(KUBE_SCHEDULER, self._scheduler_flags, self._scheduler_ready)

    def _kill_all(self) -> None:
        for name in ("scheduler", "apiserver", "etcd"):
            part: Part | None = getattr(self, name, None)
            if part is not None:
                part.kill()

    async def _end(self, error: BaseException | None) -> None:
        """Everything is killed first, which does not wait: a second cancellation finds nothing left to do."""
        self._kill_all()
        folder, self._folder = self._folder, None
        if folder is not None:
            self._clear(folder, error)
            self._lock.close()
        clients, self._clients = self._clients, []
        for closable in [*clients, *([self._http] if self._http is not None else [])]:
            await closable.close()
        self._http = None

    def _clear(self, folder: Path, error: BaseException | None) -> None:
        """Remove all files, but for the logs if they may say why there is an error."""
        failed = isinstance(error, Exception)
        kept = self._logs or folder / "logs"
        if failed and self._logs is None and kept.exists():
            for path in folder.iterdir():
                if path != kept:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)
        if failed and error is not None and kept.exists():
            error.add_note(f"the control plane's logs are in {kept}")
            _LOGGER.warning("the control plane's logs are kept", extra={"logs": str(kept)})

    # -- access ------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://127.0.0.1:{self._port(KUBE_APISERVER)}"

    @property
    def etcd_url(self) -> str:
        """etcd's address, without TLS."""
        return f"http://127.0.0.1:{self._port(ETCD)}"

    @property
    def ca_file(self) -> Path:
        """The certificate authority that signed the API server's certificate."""
        self._port(KUBE_APISERVER)
        return self._certificates.authority

    def token(self, role: str = ADMIN) -> str:
        """The bearer token of that role."""
        return self._access.role(role).token

    def kubeconfig(self, role: str = ADMIN, *, server: str | None = None) -> Path:
        """The path of a kubeconfig of that role, for `Cluster.connect`; `server` may be a proxy's address."""
        return self._access.kubeconfig(role, server or self.url)

    def api_client(self, role: str = ADMIN, *, server: str | None = None) -> Any:
        """A new kubernetes_asyncio ApiClient of that role, which verifies TLS; closed when the control plane ends.

        `server` may be a proxy's address.
        """
        from kubernetes_asyncio import client

        settings: Any = client.Configuration(host=server or self.url)
        settings.ssl_ca_cert = str(self.ca_file)
        settings.api_key = {"BearerToken": f"Bearer {self.token(role)}"}
        made = client.ApiClient(settings)
        self._clients.append(made)
        return made

    def add_role(self, name: str, role: Role) -> None:
        """Let another user in, from the API server's next start on."""
        self._access.roles[name] = role
        self._access.write()

    def revoke(self, name: str) -> None:
        """Refuse that role's token, from the API server's next start on."""
        self._access.role(name)
        del self._access.roles[name]
        self._access.write()

    async def metrics(self, program: str = KUBE_APISERVER) -> str:
        """What kube-apiserver, or kube-scheduler, tells on its page of metrics.

        Raises `ControlPlaneError` if it answers with an error, and what a connection raises where it does not run.
        """
        url = f"https://127.0.0.1:{self._port(program)}/metrics"
        async with self._session().get(url, headers=self._headers(ADMIN)) as response:
            text = await response.text()
            if response.status >= 400:
                raise ControlPlaneError(f"GET {url}: {response.status} {text[:500]}")
            return text

    async def compact(self) -> int:
        """Make etcd forget all older versions; returns the one that it still knows.

        The API server's watch cache still serves some of what etcd has forgotten, until the API server is restarted.
        """
        everything = {"key": base64.b64encode(b"\0").decode(), "limit": "1"}
        async with aiohttp.ClientSession(self.etcd_url, raise_for_status=True) as http:
            async with http.post("/v3/kv/range", json=everything) as response:
                revision = int((await response.json())["header"]["revision"])
            async with http.post("/v3/kv/compaction", json={"revision": str(revision), "physical": True}):
                return revision

    # -- inside ------------------------------------------------------------------------------------------------------

    def _port(self, name: str) -> int:
        if self._folder is None:
            raise RuntimeError("the control plane is not running; enter it with 'async with'")
        return self._ports[name]

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("the control plane is not running; enter it with 'async with'")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "the control plane was entered in another event loop: give tests and fixture one loop_scope"
            )
        return self._http

    def _headers(self, role: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(role)}"}

    @property
    def _etcd_name(self) -> str:
        return self._folder.name if self._folder is not None else ""

    def _etcd_flags(self) -> dict[str, str]:
        peers = f"http://127.0.0.1:{self._port('etcd peers')}"
        return {
            "name": self._etcd_name,
            "data-dir": f"{self._folder}/etcd",
            "listen-client-urls": self.etcd_url,
            "advertise-client-urls": self.etcd_url,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"{self._etcd_name}={peers}",
            "unsafe-no-fsync": "true",
        }

    async def _etcd_ready(self) -> bool:
        # By its name, which is its own: another control plane's etcd may have been quicker to take the port.
        url = f"{self.etcd_url}/v3/cluster/member/list"
        async with self._session().post(url, json={}) as response:
            told = await response.json(content_type=None) if response.status == 200 else {}
            return any(member.get("name") == self._etcd_name for member in told.get("members", ()))

    def _apiserver_flags(self) -> dict[str, str]:
        files = self._certificates
        return {
            "etcd-servers": self.etcd_url,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(self._port(KUBE_APISERVER)),
            "tls-cert-file": str(files.certificate),
            "tls-private-key-file": str(files.key),
            "token-auth-file": str(self._access.token_file),
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(files.signing_key),
            "service-account-signing-key-file": str(files.signing_key),
            "service-cluster-ip-range": "10.0.0.0/24",
            "endpoint-reconciler-type": "none",
            # Without it an open watch holds up the end of a server that was asked to stop.
            "shutdown-watch-termination-grace-period": "1s",
            # No controller makes service accounts here.
            "disable-admission-plugins": "ServiceAccount",
        }

    async def _apiserver_ready(self) -> bool:
        # That namespace comes last, some time after the server says that it is ready.
        for path in ("/readyz", "/api/v1/namespaces/default"):
            if (await self.request("GET", path)).status != 200:
                return False
        return True

    def _scheduler_flags(self) -> dict[str, str]:
        kubeconfig = str(self.kubeconfig(SCHEDULER))
        files = self._certificates
        return {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": str(self._port(KUBE_SCHEDULER)),
            "tls-cert-file": str(files.certificate),
            "tls-private-key-file": str(files.key),
        }

    async def _scheduler_ready(self) -> bool:
        url = f"https://127.0.0.1:{self._port(KUBE_SCHEDULER)}/readyz"
        async with self._session().get(url) as response:
            return response.status == 200
