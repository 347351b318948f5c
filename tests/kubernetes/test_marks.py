"""The mark by which a create knows its own object again (rule R5)."""

import re

import pytest

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.marks import MARK, checked_key, is_dying, is_marked, label_of, marked, ours, selector

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


@pytest.mark.parametrize("key", ["spawn-ana", "a", "A.b_c-9", "x" * 63])
def test_a_legal_key_is_its_own_label(key):
    """So that people can select by it."""
    assert label_of(key) == key
    assert selector(key) == f"{MARK}={key}"


@pytest.mark.parametrize("key", ["x" * 64, "-a", "a-", "a/b", "ä", "a b", "a,b=c", "\n", "a\n"])
def test_other_keys_become_a_legal_label(key):
    """A digest stands for them; equal keys have equal labels, others do not."""
    label = label_of(key)
    assert LABEL_VALUE.fullmatch(label)
    assert len(label) <= 63
    assert label == label_of(key) != label_of(f"{key}!")


def test_marking_leaves_the_object_alone():
    """The annotation always, the label on demand, and nothing that was there is lost or changed in place."""
    obj = {"kind": "Pod", "metadata": {"name": "p", "annotations": {"a": "1"}, "labels": None}}
    result = marked(obj, "k/1", label=True)
    assert result["metadata"]["annotations"] == {"a": "1", MARK: "k/1"}
    assert result["metadata"]["labels"] == {MARK: label_of("k/1")}
    assert obj["metadata"] == {"name": "p", "annotations": {"a": "1"}, "labels": None}
    assert MARK not in (marked(obj, "k", label=False)["metadata"]["labels"] or {})
    assert is_marked(result, "k/1")
    assert not is_marked(result, "k/2")
    assert not is_marked(obj, "k/1")
    assert not is_marked({}, "k/1")


def test_ours_is_the_oldest_that_lives():
    """The annotation decides, not the label: a digest could be anybody's."""

    def made(time, key="k", **meta):
        return {"metadata": {"annotations": {MARK: key}, "creationTimestamp": time, **meta}}

    old, new, dying = made("2026-01-02"), made("2026-01-03"), made("2026-01-01", deletionTimestamp="2026-01-04")
    assert ours([new, dying, old, made("2025-01-01", key="other")], "k") is old
    assert ours([dying], "k") is dying
    assert ours([made("2025-01-01", key="other")], "k") is None
    assert is_dying(dying)
    assert not is_dying(old)


def test_keys_must_be_strings():
    """They are written into the object."""
    assert checked_key(None) is None
    assert checked_key("k") == "k"
    for key in (7, ("a", 1), "", b"k"):
        with pytest.raises(ConfigurationError, match="idempotency_key"):
            checked_key(key)
