"""Asynchronous API calls for Kubernetes schedulers, scheduler plugins and controllers."""
