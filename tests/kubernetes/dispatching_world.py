"""Both generated clients under one roof: what differs between them, for tests that are alike."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flavour:
    """One client library: its modules, and its ways of asking for more or less than a model."""

    name: str

    @property
    def client(self) -> Any:
        return importlib.import_module(f"{self.name}.client")

    @property
    def watch(self) -> Any:
        return importlib.import_module(f"{self.name}.watch")

    @property
    def stream(self) -> Any:
        return importlib.import_module(f"{self.name}.stream")

    async def raw(self, api: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """The HTTP client's own response."""
        if self.name == "kubernetes_asyncio":
            return await getattr(api, method)(*args, _preload_content=False, **kwargs)
        return await getattr(api, f"{method}_without_preload_content")(*args, **kwargs)

    async def info(self, api: Any, method: str, *args: Any, **kwargs: Any) -> tuple[Any, int, Any]:
        """Model, status and headers."""
        found = await getattr(api, f"{method}_with_http_info")(*args, **kwargs)
        return found if isinstance(found, tuple) else (found.data, found.status_code, found.headers)


class Seen:
    """An observer that keeps the calls that were accepted."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def accepted(self, handle: Any) -> None:
        self.calls.append(handle.call)

    @property
    def types(self) -> list[str]:
        return [call.call_type for call in self.calls]

    @property
    def last(self) -> Any:
        return self.calls[-1]
