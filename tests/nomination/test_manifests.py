"""The manifests: what is shipped is what the function gives, and it grants what is used and nothing else."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.nomination import manifests
from asyncdispatch.nomination.manifests import FILES

FOLDER = Path(__file__).parents[2] / "deploy" / "nomination"


def of(kind: str, **options: Any) -> Any:
    [found] = [each for each in manifests(**options) if each["kind"] == kind]
    return found


def test_shipped_files_are_up_to_date() -> None:
    """`python deploy/nomination/generate.py` writes them anew."""
    pages = runpy.run_path(str(FOLDER / "generate.py"))["pages"]()
    assert pages == {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yaml")}
    shipped = [obj for name in FILES for obj in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))]
    assert shipped == manifests()
    assert set(yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]) == {"namespace.yaml", *FILES}


def test_rights() -> None:
    """No right on `pods/binding`, none to patch, update or delete a Pod; no wildcard."""
    granted = {
        (resource, verb)
        for rule in of("ClusterRole")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        *(("pods", verb) for verb in ("get", "list", "watch")),
        *(("nodes", verb) for verb in ("get", "list", "watch")),
        ("pods/status", "patch"),
        ("events", "create"),
        ("events", "patch"),
    }


def test_prefix_and_namespace() -> None:
    """They are in all that depends on them."""
    options = {"prefix": "hints.example.com", "namespace": "batch", "name": "planner"}
    text = str(manifests(**options))
    assert "nomination.asyncdispatch.dev" not in text
    policy = of("ValidatingAdmissionPolicy", **options)["spec"]
    assert "system:serviceaccount:batch:planner" in policy["matchConditions"][0]["expression"]
    assert any("k.startsWith('hints.example.com/')" in each["expression"] for each in policy["validations"])
    assert of("ClusterRoleBinding", **options)["subjects"][0] == {
        "kind": "ServiceAccount",
        "name": "planner",
        "namespace": "batch",
    }


@pytest.mark.parametrize(
    "options", [{"prefix": "x/y"}, {"prefix": "'||true||'"}, {"namespace": "A"}, {"name": "a.b"}, {"name": ""}]
)
def test_bad_input(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        manifests(**options)
