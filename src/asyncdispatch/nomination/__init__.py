"""Hints for the scheduler that help and cannot harm: `status.nominatedNodeName`, written, watched and taken back.

Tolerated, not supported by upstream since Kubernetes 1.35: see the page on nomination before you use it.
"""

from asyncdispatch.nomination.calls import PodNomination
from asyncdispatch.nomination.decisions import Decision, NominationOutcome, NominationPolicy
from asyncdispatch.nomination.handles import NominationHandle
from asyncdispatch.nomination.manifests import manifests
from asyncdispatch.nomination.nominator import Nominator
from asyncdispatch.nomination.states import NominationState
from asyncdispatch.nomination.study import NominationReport, RollbackRule

__all__ = [
    "Decision",
    "NominationHandle",
    "NominationOutcome",
    "NominationPolicy",
    "NominationReport",
    "NominationState",
    "Nominator",
    "PodNomination",
    "RollbackRule",
    "manifests",
]
