"""Writes the manifests beside it from asyncdispatch.nomination.manifests: `python deploy/nomination/generate.py`."""

from pathlib import Path

import yaml  # type: ignore[import-untyped,unused-ignore]

from asyncdispatch.nomination.decisions import PREFIX
from asyncdispatch.nomination.manifests import FILES, files

HERE = Path(__file__).parent
NAMESPACE, NAME = "nomination", "asyncdispatch-nominator"
HEAD = "# Written by generate.py from asyncdispatch.nomination.manifests; a test fails when it is out of date.\n"


def pages() -> dict[str, str]:
    """The text of each file."""
    found = {"kustomization.yaml": _text([_kustomization()])}
    for name, objects in files(prefix=PREFIX, namespace=NAMESPACE, name=NAME).items():
        found[name] = _text(objects)
    found["namespace.yaml"] = _text([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    return found


def _kustomization() -> dict[str, object]:
    resources = ["namespace.yaml", *FILES]
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}


def _text(objects: list[dict[str, object]]) -> str:
    return HEAD + str(yaml.safe_dump_all(objects, sort_keys=False, width=120, allow_unicode=True))


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
