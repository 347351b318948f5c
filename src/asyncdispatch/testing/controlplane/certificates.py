"""A certificate authority for one control plane, and what it signs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asyncdispatch.testing.controlplane.binaries import ControlPlaneError

__all__ = ["Certificates", "make_certificates"]


@dataclass(frozen=True)
class Certificates:
    """Files: the authority that clients trust, the servers' certificate and key, the key that signs tokens."""

    authority: Path
    certificate: Path
    key: Path
    signing_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Write a new authority and what it signs into `folder`. Valid for the loopback interface only.

    Raises `ControlPlaneError` where the library for it is not installed.
    """
    try:
        # Imported here: only who starts a control plane needs it.
        import trustme
    except ImportError as error:
        raise ControlPlaneError("certificates are made by trustme: pip install 'asyncdispatch[testing]'") from error
    authority = trustme.CA(organization_name="asyncdispatch control plane for tests")
    server = authority.issue_cert("127.0.0.1", "localhost")
    made = Certificates(*(folder / name for name in ("ca.crt", "server.crt", "server.key", "tokens.key")))
    authority.cert_pem.write_to_path(str(made.authority))
    made.certificate.write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    server.private_key_pem.write_to_path(str(made.key))
    # The API server takes any key for signing tokens; this one's certificate is not used.
    authority.issue_cert("localhost").private_key_pem.write_to_path(str(made.signing_key))
    return made
