"""Hints for the scheduler that help and cannot harm: `status.nominatedNodeName`, written, watched and taken back.

Tolerated, not supported by upstream since Kubernetes 1.35: see the page on nomination before you use it.
"""
