"""Helpers for the tests of code that uses asyncdispatch."""

from asyncdispatch.testing.apiserver import AuditRecord, EmbeddedAPIServer, Fault, StatusError

__all__ = ["AuditRecord", "EmbeddedAPIServer", "Fault", "StatusError"]
