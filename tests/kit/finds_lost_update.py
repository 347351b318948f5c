from hypothesis import strategies as st

from asyncdispatch import ObjectRef
from asyncdispatch.testing import DispatcherMachine
from tests.kit.plugins.taints import AddTaint


class Machine(DispatcherMachine):
    """Nobody's taint is lost, whoever else writes to the node at the same time."""

    plugin = AddTaint
    objects = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {}}]

    def calls(self):
        node = st.just(ObjectRef("v1", "Node", None, "n"))
        return st.builds(self.plugin, cluster=st.just(self.cluster), target=node, key=st.sampled_from(["gpu", "slow"]))

    def changes(self):
        return st.just({"spec": {"taints": [{"key": "rival", "effect": "NoExecute"}]}})
