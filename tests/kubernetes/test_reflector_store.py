"""Which events are news to a store, and what a new list changes."""

from __future__ import annotations

from typing import Any

import pytest

from asyncdispatch.apierrors import TransportError
from asyncdispatch.kubernetes._store import MAX_TOMBSTONES, Listing, Store
from asyncdispatch.kubernetes._stream import Lines

Json = dict[str, Any]


def obj(name: str, version: int | str, uid: str = "u1", namespace: str = "ns", **fields: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, **fields}


def listed(store: Store, version: int | str, *objs: Json) -> list[tuple[str, str]]:
    """The differences that a list makes."""
    listing = Listing(store)
    listing.add(objs)
    return told(store.replace(listing, str(version)))


def told(events: Any) -> list[tuple[str, str]]:
    return [(event.type, event.object["metadata"]["uid"]) for event in events]


def held(store: Store) -> dict[str, str]:
    return {name: found["metadata"]["resourceVersion"] for (_, name), found in store.objects.items()}


@pytest.fixture
def store() -> Store:
    made = Store("v1", "Pod")
    listed(made, 10, obj("a", 5), obj("b", 7))
    return made


def test_a_list_is_the_store_and_tells_the_differences(store: Store) -> None:
    """What is gone with its last state, what is new, what has changed; what is as it was is not told."""
    listing = Listing(store)
    listing.add([obj("b", 12), obj("c", 13)])
    assert held(store) == {"a": "5", "b": "7"}, "the old store is kept until the new list is whole"
    gone, changed, new = store.replace(listing, "14")
    assert (gone.type, gone.object, gone.old) == (
        "DELETED",
        obj("a", 5) | {"apiVersion": "v1", "kind": "Pod"},
        gone.object,
    )
    assert changed.old is not None
    assert (changed.type, changed.old["metadata"]["resourceVersion"]) == ("MODIFIED", "7")
    assert (new.type, new.old) == ("ADDED", None)
    assert held(store) == {"b": "12", "c": "13"}
    assert store.version == "14"
    before = dict(store.objects)
    assert listed(store, 15, obj("b", 12), obj("c", 13)) == []
    assert all(store.objects[key] is kept for key, kept in before.items()), "what has not changed stays the same object"


def test_a_list_with_another_uid_of_a_name(store: Store) -> None:
    """Two objects: the old one went, the new one came."""
    assert listed(store, 20, obj("a", 15, "u2"), obj("b", 7)) == [("DELETED", "u1"), ("ADDED", "u2")]


def test_a_list_counts_even_if_its_versions_are_older(store: Store) -> None:
    """The server was restored from a backup: what it says now is what is true."""
    assert listed(store, 3, obj("a", 2)) == [("DELETED", "u1"), ("MODIFIED", "u1")]
    assert store.version == "3"
    assert told(store.take("MODIFIED", obj("a", 4))) == [("MODIFIED", "u1")]


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
def test_events_in_order(store: Store, kind: str) -> None:
    """Whatever the server calls it, an object that was not there is ADDED, one that was is MODIFIED."""
    assert told(store.take(kind, obj("a", 11))) == [("MODIFIED", "u1")]
    assert told(store.take(kind, obj("c", 12))) == [("ADDED", "u1")]
    (event,) = store.take("DELETED", obj("c", 13))
    assert event.old is not None
    assert (event.type, event.object["metadata"]["resourceVersion"]) == ("DELETED", "13")
    assert held(store) == {"a": "11", "b": "7"}
    assert (store.version, store.late) == ("13", 0)


@pytest.mark.parametrize("version", [3, 5, 10])
@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
@pytest.mark.parametrize("name", ["a", "new"])
def test_nothing_up_to_the_list_is_news(store: Store, kind: str, name: str, version: int) -> None:
    assert store.take(kind, obj(name, version)) == []
    assert held(store) == {"a": "5", "b": "7"}
    assert (store.version, store.late) == ("10", 1)


def test_an_event_that_was_overtaken(store: Store) -> None:
    """A change of before the one that is held, the same one again, a deletion of before."""
    store.take("MODIFIED", obj("a", 20))
    for kind, version in [("MODIFIED", 15), ("MODIFIED", 20), ("DELETED", 19)]:
        assert store.take(kind, obj("a", version)) == []
    assert held(store)["a"] == "20"
    assert store.version == "20"


def test_a_late_change_does_not_bring_back_what_is_gone(store: Store) -> None:
    """But a new object of the name comes, also one of the same uid that enters a selection again."""
    store.take("DELETED", obj("a", 20))
    assert store.take("MODIFIED", obj("a", 19)) == []
    assert store.take("DELETED", obj("a", 20)) == []
    assert "a" not in held(store)
    assert told(store.take("ADDED", obj("a", 21))) == [("ADDED", "u1")]


def test_late_events_of_an_older_uid_change_nothing(store: Store) -> None:
    """Case F1: ADDED of the new one, then MODIFIED and DELETED of the old one."""
    assert told(store.take("ADDED", obj("a", 30, "u2"))) == [("DELETED", "u1"), ("ADDED", "u2")]
    assert store.take("MODIFIED", obj("a", 28, "u1")) == []
    assert store.take("DELETED", obj("a", 29, "u1")) == []
    assert held(store)["a"] == "30"


def test_a_deletion_of_one_that_was_never_seen(store: Store) -> None:
    """Both it and the one that held its name before are gone."""
    assert told(store.take("DELETED", obj("a", 30, "u2"))) == [("DELETED", "u1"), ("DELETED", "u2")]
    assert told(store.take("DELETED", obj("x", 31, "u3"))) == [("DELETED", "u3")]
    assert held(store) == {"b": "7"}


def test_a_fresh_read_that_finds_nothing(store: Store) -> None:
    """It is gone as of the read; what the stream says up to there is no news any more."""
    assert told(store.absent(("ns", "a"), "20")) == [("DELETED", "u1")]
    assert store.absent(("ns", "a"), "20") == []
    assert store.take("MODIFIED", obj("a", 19)) == []
    store.take("MODIFIED", obj("b", 25))
    assert store.absent(("ns", "b"), "24") == []
    assert held(store) == {"b": "25"}


def test_versions_that_are_no_numbers() -> None:
    """A server whose versions can't be compared is believed, but for what it says twice."""
    store = Store("example.io/v1", "Widget")
    listed(store, "abc", obj("a", "x"))
    assert store.take("MODIFIED", obj("a", "x")) == []
    assert told(store.take("MODIFIED", obj("a", "w"))) == [("MODIFIED", "u1")]
    assert told(store.take("DELETED", obj("a", "v"))) == [("DELETED", "u1")]
    assert store.version == "v"
    assert (store.number, len(store.objects)) == (None, 0)


def test_deletions_are_remembered_within_bounds(store: Store) -> None:
    for number in range(MAX_TOMBSTONES + 10):
        store.take("DELETED", obj(f"x{number}", 100 + number))
    assert len(store._gone) == MAX_TOMBSTONES
    listed(store, 10_000)
    assert not store._gone


def test_what_is_held_says_its_kind_and_not_who_manages_it() -> None:
    """Items of a list leave out their kind; managedFields are dropped."""
    store = Store("apps/v1", "Deployment")
    item = obj("a", 5)
    item["metadata"]["managedFields"] = [{"manager": "x"}]
    listed(store, 10, item)
    assert store.objects["ns", "a"] == obj("a", 5) | {"apiVersion": "apps/v1", "kind": "Deployment"}


@pytest.mark.parametrize("thing", [None, [], "x", {}, {"metadata": None}, {"metadata": {}}, {"metadata": {"name": 5}}])
def test_what_is_no_object_is_refused(store: Store, thing: Any) -> None:
    with pytest.raises(ValueError, match="no object"):
        store.take("ADDED", thing)
    assert (held(store), store.version) == ({"a": "5", "b": "7"}, "10")


# -- lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 20))
def test_lines_are_whole_however_the_bytes_come(size: int) -> None:
    """Also where a chunk ends within a character, at a line's end, or between \\r and \\n."""
    text = '{"a":"\U0001f600"}\n\n{"b":"ä"}\r\n{"c":1}\n{"cut'.encode()
    lines = Lines(100)
    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]
    assert [line.strip().decode() for line in found] == ['{"a":"\U0001f600"}', '{"b":"ä"}', '{"c":1}']


def test_a_line_without_end_is_refused() -> None:
    """Memory is bounded whatever the peer sends."""
    lines = Lines(10)
    assert lines.feed(b"12345\n67890") == [b"12345"]
    assert lines.feed(b"12345\n") == [b"6789012345"]
    with pytest.raises(TransportError, match="more than 10 bytes"):
        lines.feed(b"12345678901")
