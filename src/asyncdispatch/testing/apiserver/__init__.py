"""A Kubernetes API server for tests, in the test's own event loop.

The parts, each of which imports only those before it: `status` (refusals), `query`, `kinds` (rules of single kinds),
`resources` (what is served), `selectors`, `patches`, `store` (objects, versions, past changes), `metadata`,
`admission`, `writing` and `reading` (the verbs), `watch`; then `audit` and `faults`; `routing`, `discovery` and `api`
(a request without connections), `handler` (connections), `direct` (Python access) and `server`.

Not here: authentication, server-side apply (415), garbage collection, controllers, YAML and protobuf bodies.
"""

from asyncdispatch.testing.apiserver import answers
from asyncdispatch.testing.apiserver.admission import Admission, AdmissionStep, service_account
from asyncdispatch.testing.apiserver.audit import AuditRecord
from asyncdispatch.testing.apiserver.faults import Fault
from asyncdispatch.testing.apiserver.server import EmbeddedAPIServer
from asyncdispatch.testing.apiserver.status import StatusError

__all__ = [
    "Admission",
    "AdmissionStep",
    "AuditRecord",
    "EmbeddedAPIServer",
    "Fault",
    "StatusError",
    "answers",
    "service_account",
]
