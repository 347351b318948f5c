"""A real control plane for tests.

`binaries` (where its programs are), `build` (making them, a command), `certificates`, `folders`, `ports`, `access`
(roles), `part` (one program), `objects` (helpers) and `plane`, which puts them together.
"""

from asyncdispatch.testing.controlplane.access import Role
from asyncdispatch.testing.controlplane.binaries import ControlPlaneError
from asyncdispatch.testing.controlplane.objects import Answer
from asyncdispatch.testing.controlplane.part import Part
from asyncdispatch.testing.controlplane.plane import ControlPlane

__all__ = ["Answer", "ControlPlane", "ControlPlaneError", "Part", "Role"]
