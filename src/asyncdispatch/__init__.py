"""Asynchronous API calls for Kubernetes schedulers, scheduler plugins and controllers."""

__all__: list[str] = []
