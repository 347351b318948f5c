"""Certificates of a server that speaks TLS: an authority of its own, rotation, and what can be wrong with them."""

from __future__ import annotations

import shutil
import ssl
import tempfile
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HOSTS = ("127.0.0.1", "localhost")
_LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


class Certificates:
    """An authority, the server's certificate by it, and the context that shows it to every new connection."""

    def __init__(self) -> None:
        try:
            import trustme
        except ImportError as error:  # pragma: no cover - the extra is installed where tests run
            raise RuntimeError("tls: needs trustme; install asyncdispatch[testing]") from error
        self._trustme: Any = trustme
        self._folder = tempfile.mkdtemp(prefix="asyncdispatch-")
        # Not when the server is left: it may come back, and clients read the file late.
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._count = 0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.ca_file = Path(self._folder, "ca.pem")
        self._new_authority()
        self.publish()
        self.rotate(new_ca=False, hosts=HOSTS, expired=False)

    @property
    def ca_pem(self) -> bytes:
        """The certificate of the authority that signs now."""
        return bytes(self._authority.cert_pem.bytes())

    def publish(self) -> None:
        """Write the authority's certificate to `ca_file`, in one go."""
        fresh = self.ca_file.with_suffix(".new")
        fresh.write_bytes(self.ca_pem)
        fresh.replace(self.ca_file)

    def rotate(self, *, new_ca: bool, hosts: tuple[str, ...], expired: bool) -> None:
        """Show another certificate from the next handshake on."""
        if new_ca:
            self._new_authority()
        dates = {"not_before": _LONG_AGO, "not_after": _LONG_AGO + timedelta(days=1)} if expired else {}
        self._authority.issue_cert(*hosts, **dates).configure_cert(self.context)

    def for_client(self, user: str) -> Path:
        """A file with a client's certificate and key; its common name is the user."""
        self._count += 1
        made = self._authority.issue_cert(f"{self._count}.client.invalid", common_name=user)
        path = Path(self._folder, f"client-{self._count}.pem")
        made.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def _new_authority(self) -> None:
        self._authority = self._trustme.CA()
        self.context.load_verify_locations(cadata=self.ca_pem.decode())


class CertificateControls:
    """What a test does to the certificates of a server made with `tls=True`; RuntimeError for one without."""

    def __init__(self, certificates: Certificates | None) -> None:
        self._maybe_certificates = certificates

    @property
    def ca_file(self) -> str:
        """Path of the file with the authority's certificate, for clients; it goes with this object."""
        return str(self._certificates.ca_file)

    @property
    def ca_pem(self) -> bytes:
        """The certificate of the authority that signs now, published or not."""
        return self._certificates.ca_pem

    def rotate_certificate(
        self, *, new_ca: bool = False, publish: bool = True, hostname: str | None = None, expired: bool = False
    ) -> None:
        """Show another certificate to every new connection; those that are open stay (see `close_connections`).

        `new_ca`: by a new authority, whose certificate is written to `ca_file`; with `publish` False only once
        `publish_ca` is called. `hostname`: for that host and not for this one. `expired`: long since.
        """
        hosts = HOSTS if hostname is None else (hostname,)
        self._certificates.rotate(new_ca=new_ca, hosts=hosts, expired=expired)
        if publish:
            self._certificates.publish()

    def publish_ca(self) -> None:
        """Write the certificate of the authority that signs now to `ca_file`."""
        self._certificates.publish()

    def client_certificate(self, user: str) -> str:
        """Path of a new file with certificate and key, by which a client is `user` without a token."""
        return str(self._certificates.for_client(user))

    @property
    def _certificates(self) -> Certificates:
        if self._maybe_certificates is None:
            raise RuntimeError("the server speaks no TLS; make it with EmbeddedAPIServer(tls=True)")
        return self._maybe_certificates
