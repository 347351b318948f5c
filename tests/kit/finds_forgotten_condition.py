from hypothesis import strategies as st

from asyncdispatch import ObjectRef
from asyncdispatch.testing import DispatcherMachine
from tests.kit.plugins.conditions import Report


class Machine(DispatcherMachine):
    """What was reported is on the node in the end."""

    plugin = Report
    objects = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}]

    def calls(self):
        said = st.dictionaries(st.sampled_from(["Ready", "Disk"]), st.sampled_from(["True", "False"]), min_size=1)
        node = ObjectRef("v1", "Node", None, "n")
        return st.builds(self.plugin, cluster=st.just(self.cluster), target=st.just(node), conditions=said)
