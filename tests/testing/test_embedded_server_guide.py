"""The guide to the embedded server: every snippet of it runs."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client

from asyncdispatch.testing import EmbeddedAPIServer, answers

GUIDE = Path(__file__).parents[2] / "docs" / "embedded-server.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
POD["spec"] = {"containers": [{"name": "main", "image": "app:1"}]}
NAMES = {"EmbeddedAPIServer": EmbeddedAPIServer, "answers": answers, "client": client, "pytest": pytest, "POD": POD}


def compiled(snippet: str) -> Any:
    names: dict[str, Any] = dict(NAMES)
    code = f"async def play(server, core):\n{textwrap.indent(snippet, '    ')}"
    exec(compile(code, str(GUIDE), "exec"), names)
    return names["play"]


@pytest.mark.looptime
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
async def test_snippet(number: int) -> None:
    async with EmbeddedAPIServer() as server:
        server.put(POD)
        await compiled(SNIPPETS[number])(server, client.CoreV1Api(server.api_client()))


def test_the_guide_names_what_there_is() -> None:
    """Every answer and every method that it speaks of exists, and no answer is left out."""
    text = GUIDE.read_text(encoding="utf-8")
    functions = set(answers.__all__) - {"Answer"}
    assert [name for name in sorted(functions) if f"`{name}`" not in text and f"answers.{name}" not in text] == []
    for name in re.findall(r"(?<!api)server\.(\w+)", text):
        assert hasattr(EmbeddedAPIServer, name), name
