"""Objects and patches that the tests of writes share."""

from typing import Any

Json = dict[str, Any]
LABEL = {"metadata": {"labels": {"a": "1"}}}


def config_map(name: str = "c", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns"}, "data": data}


def widget(name: str = "w", **spec: Any) -> Json:
    """A custom object."""
    metadata = {"name": name, "namespace": "ns"}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": spec}


def without(*names: str) -> Any:
    """A function patch: no finalizer of these names."""

    def decide(obj: Json) -> Json | None:
        held = obj["metadata"].get("finalizers", [])
        left = [name for name in held if name not in names]
        return None if left == held else {"metadata": {"finalizers": left}}

    return decide


def writes(server: Any) -> list[Any]:
    """The audit's requests that could change something."""
    return [record for record in server.audit if record.method != "GET"]
