"""Conditions as values, and what a status patch does to a Pod's status."""

import copy
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_asyncio.client import V1PodCondition

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.conditions import KEEP, checked, merged, patched_status, status_fields, timed
from asyncdispatch.testing.apiserver import patches

NOW = datetime(2026, 10, 21, 7, 28, tzinfo=UTC)
NOW_TEXT = "2026-10-21T07:28:00Z"


def cond(kind, status="True", **fields):
    return {"type": kind, "status": status, **fields}


def test_models_and_dicts_are_taken():
    """A client's model of a condition is read like a dict; the caller's own dict is not kept."""
    mine = cond("B", reason="Why")
    model = V1PodCondition(type="A", status="False", last_transition_time=NOW)
    result = checked([model, mine])
    assert result == ({"type": "A", "status": "False", "lastTransitionTime": NOW_TEXT}, mine)
    mine["reason"] = "changed"
    assert result[1]["reason"] == "Why"


@pytest.mark.parametrize(
    ("conditions", "field"),
    [
        ("Ready", "conditions"),
        ({"type": "A", "status": "True"}, "conditions"),
        (7, "conditions"),
        (["Ready"], r"conditions\[0\]"),
        ([cond("A"), {"status": "True"}], r"conditions\[1\]\.type"),
        ([{"type": "", "status": "True"}], r"conditions\[0\]\.type"),
        ([{"type": "A", "status": True}], r"conditions\[0\]\.status"),
        ([{"type": "A"}], r"conditions\[0\]\.status"),
        ([cond("A"), cond("A", "False")], r"conditions\[1\]\.type"),
        ([cond("A", reason=object())], r"conditions\[0\]"),
    ],
)
def test_what_is_no_condition_is_refused(conditions, field):
    """By an error that says where it stands."""
    with pytest.raises(ConfigurationError, match=f"^{field}="):
        checked(conditions)


def test_transition_times():
    """A status that stays keeps its time; one that changes has the time it was given, or now."""
    current = [cond("Same", lastTransitionTime="t0"), cond("Other", "False", lastTransitionTime="t0"), cond("Bare")]
    new = [
        cond("Same", reason="r", lastTransitionTime="mine"),
        cond("Other"),
        cond("New", lastTransitionTime="mine"),
        cond("Bare"),
    ]
    times = [condition.get("lastTransitionTime") for condition in timed(new, current, NOW)]
    assert times == ["t0", NOW_TEXT, "mine", None]
    assert [c.get("lastTransitionTime") for c in timed(new, current)] == ["t0", None, "mine", None]


def test_a_patch_says_only_what_it_sets():
    """KEEP leaves the nominated node out; None clears it."""
    assert status_fields([cond("A")], KEEP) == {"conditions": [cond("A")]}
    assert status_fields([], None) == {"nominatedNodeName": None}
    assert status_fields([], "n1") == {"nominatedNodeName": "n1"}
    assert repr(KEEP) == "KEEP"


def test_a_condition_with_other_transition_time_is_already_so():
    """Its status is there already, so the server's time is right and ours is not wanted."""
    status = {"conditions": [cond("A", reason="r", lastProbeTime=None, lastTransitionTime="server")]}
    wanted = [cond("A", reason="r", lastProbeTime=None, lastTransitionTime="ours")]
    assert patched_status(status, wanted, KEEP) == status
    assert patched_status(status, [cond("A", reason="other")], KEEP) != status


def test_an_empty_text_is_one_that_is_not_there():
    """The server leaves it out: a patch that sets it is done where it is not shown, and clears what was there."""
    assert patched_status({"conditions": [cond("A")]}, [cond("A", message="", reason="")], KEEP) == {
        "conditions": [cond("A")]
    }
    assert patched_status({"conditions": [cond("A", message="m")]}, [cond("A", message="")], KEEP) == {
        "conditions": [cond("A")]
    }
    kept = {"conditions": [cond("A", message="")]}
    assert patched_status(kept, [cond("A", message="")], KEEP) == kept


types = st.sampled_from(["Ready", "PodScheduled", "DisruptionTarget"])
texts = st.one_of(st.none(), st.sampled_from(["x", "y"]))
condition = st.builds(
    lambda kind, status, more: {"type": kind, "status": status, **more},
    types,
    st.sampled_from(["True", "False", "Unknown"]),
    st.dictionaries(st.sampled_from(["reason", "message", "observedGeneration"]), texts),
)
condition_lists = st.lists(condition, max_size=3, unique_by=lambda c: c["type"])
nominations = st.sampled_from([KEEP, None, "n1", "n2"])
statuses = st.builds(
    lambda conditions, node: {
        "phase": "Pending",
        **({"conditions": conditions} if conditions else {}),
        **({"nominatedNodeName": node} if node else {}),
    },
    condition_lists.map(lambda items: [{k: v for k, v in item.items() if v is not None} for item in items]),
    st.sampled_from([None, "n1", "n2"]),
)


def sent(status, conditions, nomination):
    """What a server makes of the patch that is sent: the embedded one's own strategic merge."""
    result = patches.strategic({"status": status}, {"status": status_fields(conditions, nomination)})
    return patches.without_nulls(result["status"])


def by_type(status):
    """The order of conditions means nothing, and the server's puts new ones first."""
    conditions = status.get("conditions")
    return status if conditions is None else {**status, "conditions": sorted(conditions, key=lambda one: one["type"])}


@given(statuses, condition_lists, nominations)
def test_applying_is_what_the_server_does(status, conditions, nomination):
    """`apply` shows the Pod as the patch leaves it: the same as the server's strategic merge; nothing in place."""
    before = copy.deepcopy((status, conditions))
    result = patched_status(status, conditions, nomination)
    assert by_type(patches.without_nulls(result)) == by_type(sent(status, conditions, nomination))
    assert patched_status(result, conditions, nomination) == result
    assert (status, conditions) == before


@given(statuses, condition_lists, condition_lists, nominations, nominations)
def test_merging_is_sending_both(status, first, second, before, after):
    """L13: one merged patch leaves what the two would leave, sent one after the other."""
    both = sent(sent(status, first, before), second, after)
    assert by_type(sent(status, merged(first, second), before if after is KEEP else after)) == by_type(both)
