"""How a cluster is reached, and as whom: read from a kubeconfig or from a Pod's service account.

Everything here blocks (files, programs, certificates): call it in a thread. It is read whole each time, so that a
token, a client certificate or an authority that was replaced is seen by reading again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.execplugin import run_plugin
from asyncdispatch.kubernetes.kubeconfig import Section, Selected, read_kubeconfig

__all__ = ["SERVICE_ACCOUNT", "Access", "Certificates", "access_by_kubeconfig", "access_in_cluster"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a Pod finds its `token` and `ca.crt`."""


@dataclass(frozen=True, slots=True, repr=False)
class Certificates:
    """What TLS needs: whom to trust (None: the system's authorities), and with what to show who we are."""

    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    verify: bool = True

    def context(self, source: str) -> ssl.SSLContext:
        """A context for new connections. Raises `ConfigurationError`, in which `source` names where they are from."""
        try:
            # As PEM text; an authority in another form is refused with the rest.
            authority = None if self.authority is None else self.authority.decode("ascii")
            context = ssl.create_default_context(cadata=authority)
        except (ssl.SSLError, ValueError):
            remedy = "the certificate authority can't be loaded: it must be a certificate in PEM"
            raise ConfigurationError("kubeconfig", source, remedy) from None
        if self.certificate is not None:
            try:
                _load_pair(context, self.certificate, self.key or self.certificate)
            except (ssl.SSLError, OSError, ValueError):
                remedy = "the client certificate can't be loaded: it and its key must be a pair, in PEM, unencrypted"
                raise ConfigurationError("kubeconfig", source, remedy) from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """How to reach a cluster, and as whom. `authorization` is the header's whole value.

    `expires` is in seconds since 1970, where it is known. `rereads` says that it lies in files only, so that reading it
    again now and then costs nothing; else a program was run for it.
    """

    source: str
    server: str
    certificates: Certificates
    authorization: str | None = None
    expires: float | None = None
    rereads: bool = True
    server_name: str | None = None
    proxy: str | None = None


def access_in_cluster(environ: Mapping[str, str], folder: Path) -> Access:
    """The API server that a Pod is told of, with its service account. Raises `ConfigurationError`."""
    source = "the Pod's service account"
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not port.isdigit():
        raise ConfigurationError("KUBERNETES_SERVICE_PORT", port, "must be a port: it is set in every Pod")
    read: dict[str, bytes] = {}
    for name in ("token", "ca.crt"):
        try:
            read[name] = (folder / name).read_bytes()
        except OSError as error:
            remedy = (
                f"{folder / name} can't be read ({error.strerror}): mount the service account, or give a kubeconfig"
            )
            raise ConfigurationError("kubeconfig", source, remedy) from None
    token = _header_value(read["token"], f"{source}: {folder / 'token'}")
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    certificates = Certificates(authority=read["ca.crt"])
    return Access(source, server, certificates, f"Bearer {token}", expiry_of(token))


def access_by_kubeconfig(paths: Sequence[Path], context: str | None) -> Access:
    """What a context of a kubeconfig says. Reads files and may run the user's exec plugin.

    Raises `ConfigurationError`.
    """
    source = os.pathsep.join(map(str, paths))
    selected = read_kubeconfig(paths, context)
    cluster, user = selected.cluster, selected.user
    server = cluster.url("server")
    if server is None:
        raise cluster.error("server", "must be a URL: https://host:port")
    if "@" in urlsplit(server).netloc:
        raise cluster.error("server", "must hold no name or password: they belong to the context's user")
    proxy = cluster.url("proxy-url")  # of HTTP only: the HTTP client knows no other
    verify = not cluster.flag("insecure-skip-tls-verify")
    authority = cluster.data("certificate-authority")
    certificate, key = user.data("client-certificate"), user.data("client-key")
    if (certificate is None) != (key is None):
        raise user.error(
            "client-key" if key is None else "client-certificate", "must be there as well: they are a pair"
        )
    authorization, expires, rereads = _given(user), None, True
    if authorization is None and (spec := user.mapping("exec")) is not None:
        told = run_plugin(f"{user.name}: exec", spec, user.folder, _described(cluster, authority))
        if told.token is not None:
            authorization = "Bearer " + _header_value(told.token, f"{user.name}: exec")
        if told.certificate is not None:
            certificate, key = told.certificate, told.key
        expires, rereads = told.expires, False
    elif authorization is None and user.mapping("auth-provider") is not None:
        authorization, rereads = _by_provider(source, selected), False
    if authorization is not None and expires is None:
        expires = expiry_of(authorization.partition(" ")[2])
    certificates = Certificates(authority, certificate, key, verify)
    return Access(source, server, certificates, authorization, expires, rereads, cluster.text("tls-server-name"), proxy)


def _given(user: Section) -> str | None:
    """The Authorization header of a user who brings a token or a password; as kubectl does, the file wins."""
    token = user.file("tokenFile")
    if token is not None:
        return "Bearer " + _header_value(token, f"{user.name}: tokenFile")
    if (text := user.text("token")) is not None:
        return "Bearer " + _header_value(text, f"{user.name}: token")
    name, password = user.text("username"), user.text("password")
    if name is None:
        return None
    pair = f"{name}:{password or ''}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _header_value(given: str | bytes, field: str) -> str:
    """A token that a header can carry. Files often end with a newline."""
    text = given.decode("latin-1") if isinstance(given, bytes) else given
    token = text.strip()
    if not token or not token.isascii() or any(sign <= " " or sign == "\x7f" for sign in token):
        raise ConfigurationError(field, "…", "is no token: it must be one word of ASCII" if token else "is empty")
    return token


def _described(cluster: Section, authority: bytes | None) -> dict[str, Any]:
    """The cluster, as an exec plugin that asks for it is told."""
    described: dict[str, Any] = {
        name: cluster.fields[name]
        for name in ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
        if cluster.fields.get(name) is not None
    }
    if authority is not None:
        described["certificate-authority-data"] = base64.b64encode(authority).decode()
    for extension in cluster.fields.get("extensions") or []:
        if isinstance(extension, Mapping) and extension.get("name") == "client.authentication.k8s.io/exec":
            described["config"] = extension.get("extension")
    return described


def _by_provider(source: str, selected: Selected) -> str | None:
    """A token by one of the old auth providers (OIDC, GCP): the client library knows how, and keeps what they renew."""
    from kubernetes_asyncio import client, config

    settings: Any = type.__call__(client.Configuration)  # not a copy of a default that somebody has set
    try:
        asyncio.run(config.load_kube_config(source, selected.context, settings))
    except Exception as error:
        kind = type(error).__name__
        raise selected.user.error("auth-provider", f"gave no token ({kind}): log in anew, or use exec") from None
    found = settings.api_key.get("BearerToken")
    return found if isinstance(found, str) else None


def expiry_of(token: str) -> float | None:
    """When a token says that it expires, in seconds since 1970, if it is a JWT that says so. Nothing is verified."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    expires = claims.get("exp") if isinstance(claims, dict) else None
    return float(expires) if isinstance(expires, (int, float)) and not isinstance(expires, bool) else None


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key, which the ssl module takes from files only: they are there for a moment."""
    with tempfile.TemporaryDirectory(prefix="asyncdispatch-") as folder:
        shown, kept = Path(folder, "certificate"), Path(folder, "key")  # a folder that nobody else may enter
        shown.write_bytes(certificate)
        kept.write_bytes(key)
        # An encrypted key would have OpenSSL ask for its password on the terminal, and wait.
        context.load_cert_chain(shown, kept, password=lambda: "")
