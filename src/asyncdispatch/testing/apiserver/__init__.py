"""A Kubernetes API server for tests, in the test's own event loop.

The parts, each of which imports only those before it:

- what is said and served: `status` (refusals), `query`, `kinds` (rules of single kinds), `resources`, `selectors`,
  `patches`, `store` (objects, versions, past changes), `answers` (as they are sent, and by name);
- the verbs, without HTTP: `metadata`, `admission`, `quotas`, `writing`, `reading`, `eviction`, `controllers`;
- who asks and what goes wrong: `audit`, `access`, `faults` (of which requests), `lies` (about which events), `watch`,
  `connections`, `tls`;
- requests: `routing`, `discovery`, `api` (without connections), `handler` (with them);
- what tests take hold of: `direct` (objects), `controls` (faults of requests), `watching`, `wires` (connections),
  `server`.

Not here: server-side apply (415), garbage collection, YAML and protobuf bodies.
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
