from hypothesis import strategies as st

from asyncdispatch import ObjectRef
from asyncdispatch.testing import DispatcherMachine, strategies
from tests.kit.plugins.binding import Bind


class Machine(DispatcherMachine):
    """A decision binds the Pod that it was taken for, and no other."""

    plugin = Bind
    objects = [strategies.pod("p")]

    def calls(self):
        pods = st.sampled_from(self.stored).map(ObjectRef.of)
        return st.builds(self.plugin, cluster=st.just(self.cluster), target=pods, node=st.sampled_from(["n1", "n2"]))
