"""The vocabulary of calls: refs, effects, verdicts, attempts, and how call types are written."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from asyncdispatch import (
    Again,
    APICall,
    Applied,
    Attempt,
    ConfigurationError,
    Effect,
    FunctionCall,
    MissingField,
    ObjectRef,
    Refused,
    Unknown,
    Verdict,
    VerdictKind,
)
from asyncdispatch.calls import identity_in, validate_call, version_of
from tests.shell import at_once, call, pod, pod_dict, running

# -- refs -------------------------------------------------------------------------------------------------------------


def test_the_lane_of_a_ref_is_group_kind_namespace_and_name():
    """Neither the version of the API nor the uid makes it another object (rule R6)."""
    one = ObjectRef("apps/v1", "Deployment", "ns", "web")
    assert one.lane == ObjectRef("apps/v1beta1", "Deployment", "ns", "web", "u").lane
    others = [
        ObjectRef("batch/v1", "Deployment", "ns", "web"),
        ObjectRef("apps/v1", "StatefulSet", "ns", "web"),
        ObjectRef("apps/v1", "Deployment", "other", "web"),
        ObjectRef("apps/v1", "Deployment", "ns", "db"),
        ObjectRef("apps/v1", "Deployment", None, "web"),
    ]
    assert len({one.lane, *(other.lane for other in others)}) == 6


def test_the_core_group_has_no_name():
    assert ObjectRef("v1", "Pod", "ns", "p").lane == "/Pod/ns/p"


@pytest.mark.parametrize(("field", "value"), [(f, v) for f in ("api_version", "kind", "name") for v in ("", None, 3)])
def test_a_ref_names_the_field_that_is_missing(field: str, value: Any):
    fields: dict[str, Any] = {"api_version": "v1", "kind": "Pod", "namespace": "ns", "name": "p", field: value}
    with pytest.raises(ConfigurationError, match=f"ObjectRef.{field}=.*must be a string that is not empty"):
        ObjectRef(**fields)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f in ("namespace", "uid") for v in ("", 3, b"x")])
def test_what_may_be_none_may_not_be_empty(field: str, value: Any):
    fields: dict[str, Any] = {"api_version": "v1", "kind": "Pod", "namespace": "ns", "name": "p", field: value}
    with pytest.raises(ConfigurationError, match=f"ObjectRef.{field}=.*None or a string"):
        ObjectRef(**fields)


def test_a_ref_is_a_frozen_value():
    assert pod("p", "u") == pod("p", "u")
    assert hash(pod("p", "u")) == hash(pod("p", "u"))
    assert pod("p", "u") != pod("p")
    with pytest.raises(FrozenInstanceError):
        pod().name = "q"  # type: ignore[misc]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda ref: pickle.loads(pickle.dumps(ref))])
def test_a_ref_is_its_five_fields(copied: Any):
    ref = ObjectRef("apps/v1", "Deployment", "ns", "web", "u")
    assert [field.name for field in dataclasses.fields(ref)] == ["api_version", "kind", "namespace", "name", "uid"]
    for again in (copied(ref), ObjectRef(**dataclasses.asdict(ref)), replace(ref, uid=None)):
        assert again == replace(ref, uid=again.uid)
        assert (again.lane, again.plain) == (ref.lane, again.uid is None)


def test_a_ref_of_a_dict():
    assert ObjectRef.of(pod_dict("p", "u1")) == pod("p", "u1")
    assert ObjectRef.of(pod("p")) == pod("p")
    cluster_wide = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "namespace": ""}}
    assert ObjectRef.of(cluster_wide) == ObjectRef("v1", "Node", None, "n")


def test_a_ref_of_a_generated_name_ends_with_a_star():
    ref = ObjectRef.of({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "web-", "namespace": "ns"}})
    assert ref.name == "web-*"
    assert ref.generated
    assert not pod().generated


def _model(name: str, **fields: Any) -> Any:
    return type(name, (SimpleNamespace,), {})(**{"kind": None, "api_version": None, **fields})


@pytest.mark.parametrize(
    ("model", "api_version", "kind"),
    [
        ("V1Pod", "v1", "Pod"),
        ("V1Node", "v1", "Node"),
        ("CoreV1Event", None, None),
        ("V1Deployment", "apps/v1", "Deployment"),
        ("V1Lease", "coordination.k8s.io/v1", "Lease"),
        ("V1beta1PodDisruptionBudget", "policy/v1beta1", "PodDisruptionBudget"),
        ("V1alpha1Foo", None, None),
        ("Pod", None, None),
    ],
)
def test_a_model_is_told_by_its_class_if_it_does_not_say(model: str, api_version: str | None, kind: str | None):
    """Items of a typed list carry neither kind nor version; a kind of an unknown group is not guessed."""
    item = _model(model, metadata=SimpleNamespace(name="x", namespace="ns", uid="u"))
    if api_version is None:
        with pytest.raises(ConfigurationError, match=r"kind|apiVersion"):
            ObjectRef.of(item)
    else:
        assert ObjectRef.of(item) == ObjectRef(api_version, str(kind), "ns", "x", "u")


def test_what_a_model_says_counts_more_than_its_class():
    item = _model("V1Pod", kind="Special", api_version="x.y/v2", metadata=SimpleNamespace(name="x", namespace=None))
    assert ObjectRef.of(item) == ObjectRef("x.y/v2", "Special", None, "x")


@pytest.mark.parametrize(
    ("obj", "missing"),
    [
        ({}, "kind"),
        ({"kind": "Pod", "metadata": {"name": "p"}}, "apiVersion"),
        ({"apiVersion": "v1", "metadata": {"name": "p"}}, "kind"),
        ({"apiVersion": "v1", "kind": "Pod"}, "metadata.name"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": None}, "metadata.name"),
        (None, "kind"),
        ("Pod p", "kind"),
    ],
)
def test_what_is_no_object_is_refused_and_says_what_is_missing(obj: Any, missing: str):
    with pytest.raises(ConfigurationError, match=missing):
        ObjectRef.of(obj)


def test_reprs_help_in_a_debugger():
    assert str(pod("p", "u1")) == "Pod ns/p (u1)"
    assert str(ObjectRef("v1", "Node", None, "n")) == "Node n"
    assert "name='p'" in repr(pod("p"))
    assert "lane" not in repr(pod("p"))


def test_what_an_answer_tells_of_its_object():
    assert identity_in(pod_dict("p", "u1", 7)) == ("p", "u1", "7")
    assert identity_in(pod_dict("p", None)) is None
    assert identity_in("an answer") is None
    model = SimpleNamespace(metadata=SimpleNamespace(name="p", uid="u", resource_version="8"))
    assert identity_in(model) == ("p", "u", "8")
    assert version_of({}) is None


# -- calls ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decorated(APICall[str]):
    call_type: str = "decorated"
    effect: Effect = Effect.READ
    payload: int = 0

    async def execute(self, attempt: Attempt) -> str:
        return f"{self.call_type} {self.payload}"


@dataclass(frozen=True, kw_only=True)
class Unannotated(APICall[str]):
    call_type = "unannotated"
    effect = Effect.CREATE
    awaits_prerequisites = True
    payload: int = 0

    async def execute(self, attempt: Attempt) -> str:
        return f"{self.call_type} {self.payload}"  # type: ignore[operator]


class Plain(APICall[str]):
    call_type = "plain"
    effect = Effect.READ
    flow = "mine"

    async def execute(self, attempt: Attempt) -> str:
        return self.call_type


class Child(Plain):
    call_type = "child"


@dataclass(frozen=True, kw_only=True)
class DecoratedChild(Unannotated):
    call_type = "decorated_child"


class Creates:
    """A mixin, which is no call."""

    effect = Effect.CREATE


@dataclass(frozen=True, kw_only=True)
class BelowPlain(Creates, Plain):
    payload: int = 0

    async def execute(self, attempt: Attempt) -> str:
        return f"{self.call_type} {self.payload}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slotted(APICall[str]):
    call_type = "slotted"
    timeout = 4.0
    payload: int = 0

    async def execute(self, attempt: Attempt) -> str:
        return f"{self.call_type} {self.payload} {self.timeout}"  # type: ignore[operator]


class OwnInit(Plain):
    def __init__(self, payload: int, **fields: Any) -> None:
        object.__setattr__(self, "payload", payload)
        super().__init__(**fields)

    async def execute(self, attempt: Attempt) -> str:
        return f"{self.call_type} {self.payload}"  # type: ignore[attr-defined]


class OwnFunction(FunctionCall[str]):
    def __init__(self, payload: int, **fields: Any) -> None:
        object.__setattr__(self, "payload", payload)
        super().__init__(self.say, **fields)

    async def say(self, attempt: Attempt) -> str:
        return f"{self.call_type} {self.payload}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("made", "call_type", "effect", "value"),
    [
        (Decorated(target=pod(), payload=1), "decorated", Effect.READ, "decorated 1"),
        (Unannotated(target=pod(), payload=2), "unannotated", Effect.CREATE, "unannotated 2"),
        (Plain(target=pod()), "plain", Effect.READ, "plain"),
        (Child(target=pod()), "child", Effect.READ, "child"),
        (DecoratedChild(target=pod(), payload=3), "decorated_child", Effect.CREATE, "decorated_child 3"),
        (BelowPlain(target=pod(), payload=4), "plain", Effect.CREATE, "plain 4"),
        (Slotted(target=pod(), payload=5), "slotted", Effect.IDEMPOTENT_WRITE, "slotted 5 4.0"),
        (OwnInit(6, target=pod()), "plain", Effect.READ, "plain 6"),
        (OwnFunction(7, target=pod(), call_type="own"), "own", Effect.IDEMPOTENT_WRITE, "own 7"),
    ],
)
async def test_call_types_are_subclasses_decorated_or_not(made: Any, call_type: str, effect: Effect, value: str):
    """`call_type` and `effect` may be class attributes, with an annotation or without, of a plain class, a mixin or a
    dataclass, with slots and with an `__init__` of its own."""
    assert (made.call_type, made.effect) == (call_type, effect)
    async with running() as dispatcher:
        assert await dispatcher.run(made) == value


def test_class_attributes_are_defaults_and_fields_win():
    assert Plain(target=pod()).flow == "mine"
    assert Plain(target=pod(), flow="other").flow == "other"
    assert Unannotated(target=pod(), effect=Effect.READ).effect is Effect.READ  # type: ignore[operator]
    assert Unannotated(target=pod()).awaits_prerequisites is True  # type: ignore[operator]


def test_a_wrong_class_attribute_is_refused_when_the_class_is_made():
    with pytest.raises(ConfigurationError, match=r"Wrong.priority='high': must be a 32-bit integer"):

        class Wrong(APICall[None]):
            call_type = "wrong"
            priority = "high"  # type: ignore[assignment]


@pytest.mark.parametrize("base", [Decorated, DecoratedChild, Slotted, OwnFunction, BelowPlain])
def test_what_a_plain_class_below_a_dataclass_states_counts(base: Any):
    """Its `__init__` was generated with other defaults; a create that is taken for an update might be sent twice."""

    class Below(base):
        call_type = "below"
        effect = Effect.CREATE
        priority = 7

    class FarBelow(Below):
        priority = 8

        def __init__(self, **fields: Any) -> None:
            super().__init__(payload=3, **fields)

    for made, priority in ((Below(target=pod(), payload=1), 7), (FarBelow(target=pod()), 8)):
        validate_call(made)
        assert (made.call_type, made.effect, made.priority) == ("below", Effect.CREATE, priority)
    assert FarBelow(target=pod(), priority=0, effect=Effect.READ).priority == 0
    assert base(target=pod(), payload=1, call_type="own").priority == 0
    if base is not OwnFunction:  # which is no dataclass, so that its `__init__` would be lost
        decorated: Any = dataclass(frozen=True, kw_only=True)(Below)
        assert decorated(target=pod(), payload=1).priority == 7


def test_a_statement_and_an_argument_in_its_place():
    @dataclass(frozen=True)
    class Placed(APICall[None]):
        priority: int = 3

    class Below(Placed):
        priority = 5

    make: Any = Below
    assert [make(call_type="w", target=pod()).priority, make(4, call_type="w", target=pod()).priority] == [5, 4]


def test_a_field_in_a_slot_is_checked_as_well():
    with pytest.raises(ConfigurationError, match="priority='high'"):
        validate_call(Slotted(target=pod(), priority="high"))  # type: ignore[arg-type]


def test_calls_are_frozen_values():
    one = call(name="p")
    with pytest.raises(FrozenInstanceError):
        one.priority = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del one.priority
    decorated = Decorated(target=pod(), payload=1)
    assert decorated == Decorated(target=pod(), payload=1)
    assert hash(decorated) == hash(Decorated(target=pod(), payload=1))
    assert decorated != replace(decorated, payload=2)


def test_equal_function_calls_are_equal():
    assert call(at_once, priority=3) == call(at_once, priority=3)
    assert call(at_once, priority=3) != call(at_once, priority=4)
    assert hash(call(at_once)) == hash(call(at_once))


async def test_replace_works_on_function_calls():
    """`dataclasses.replace` makes a new one, with defaults and given fields alike."""
    one = call(name="p", priority=3)
    other = replace(one, priority=5, target=pod("q"), timeout=2.0)
    assert (other.priority, other.target, other.timeout, other.fn) == (5, pod("q"), 2.0, at_once)
    assert (one.priority, one.target, one.timeout) == (3, pod("p"), None)
    async with running() as dispatcher:
        assert await dispatcher.run(other) == "done"


def test_a_function_call_takes_every_field_and_has_every_default():
    names = {field.name for field in dataclasses.fields(FunctionCall)}
    promised = {
        *("call_type", "target", "effect", "idempotency_key", "version", "priority", "flow", "timeout", "not_before"),
        *("context", "prerequisite", "awaits_prerequisites", "sheddable", "ordered", "depends_on", "fresh", "scope"),
        *("retry", "fn"),
    }
    assert names == promised
    made = call()
    for field in dataclasses.fields(FunctionCall):
        if field.name not in ("fn", "call_type", "target"):
            assert getattr(made, field.name) == field.default
    assert "call_type='write'" in repr(made)


@pytest.mark.parametrize("make", [lambda **f: FunctionCall(at_once, **f), Plain])
def test_an_unknown_field_is_a_type_error_that_names_it(make: Any):
    with pytest.raises(TypeError, match="urgency"):
        make(call_type="write", target=pod(), urgency=3)


@pytest.mark.parametrize("missing", ["call_type", "target"])
def test_a_call_needs_a_type_and_a_target(missing: str):
    fields: dict[str, Any] = {"call_type": "write", "target": pod()}
    del fields[missing]
    extra: dict[str, Any] = {"timeout": 3.0}
    for more in ({}, extra):
        with pytest.raises(MissingField, match=rf"{missing}=None: FunctionCall needs it"):
            FunctionCall(at_once, **fields, **more)


async def test_a_call_type_without_execute_says_so():
    class Empty(APICall[None]):
        call_type = "empty"

    empty: Any = Empty
    async with running() as dispatcher:
        handle = dispatcher.submit(empty(target=pod()))
        outcome = await handle.outcome()
        assert "Empty does not define execute" in repr(outcome)


async def test_the_optional_hooks_have_defaults():
    """Nothing is merged, nothing is a no-op, nothing changes, and nothing is known of an error."""
    made: APICall[Any] = Plain(target=pod())
    obj = pod_dict()
    assert made.merge(made) is None
    assert made.is_noop() is False
    assert made.rebase_onto(obj) is made
    assert made.apply(obj) is obj
    attempt = Attempt(lambda: 0.0, made, 1, 1, 5.0, None)
    assert await made.reconcile(attempt, OSError()) == Unknown()
    assert Plain._hooks == frozenset()


def test_a_class_knows_which_hooks_it_defines():
    class Merging(Plain):
        def merge(self, pending: Any) -> Any:
            return self

    assert Merging._hooks == {"merge"}
    grandchild: Any = type("Grandchild", (Merging,), {})
    assert grandchild._hooks == {"merge"}


# -- attempts, verdicts, answers --------------------------------------------------------------------------------------


def test_an_attempt_counts_down_to_its_deadline():
    clock = [10.0]
    made = call(idempotency_key="k")
    attempt = Attempt(lambda: clock[0], made, 7, 2, 12.5, None)
    assert (attempt.ticket, attempt.number, attempt.deadline, attempt.remaining) == (7, 2, 12.5, 2.5)
    assert (attempt.idempotency_key, attempt.context, attempt.last_error, attempt.sent) == ("k", None, None, True)
    clock[0] = 13.0
    assert attempt.remaining == 0.0
    assert repr(attempt) == "<Attempt 7-2 of write Pod ns/p>"


def test_a_verdict_is_checked():
    with pytest.raises(ConfigurationError, match=r"Verdict.kind='retry': must be a VerdictKind"):
        Verdict("retry")  # type: ignore[arg-type]
    for wrong in (-1.0, float("nan"), "soon", True):
        with pytest.raises(ConfigurationError, match=r"Verdict.retry_after"):
            Verdict(VerdictKind.RETRY, retry_after=wrong)  # type: ignore[arg-type]
    assert Verdict(VerdictKind.RETRY, retry_after=0).retry_after == 0
    promised = {"RETRY", "LATER", "HOLD", "RECONCILE", "GONE", "PERMANENT"}
    assert set(VerdictKind.__members__) == promised
    assert set(Effect.__members__) == {"READ", "IDEMPOTENT_WRITE", "CREATE"}


def test_the_answers_of_reconcile_are_values():
    error = OSError()
    assert Applied(3) == Applied(3)
    assert Again(call()) == Again(call())
    assert Refused(error) == Refused(error)
    assert Unknown() == Unknown()


def test_a_call_type_may_name_its_own_fields_as_it_likes():
    """What the library keeps of a class has names of its own: no field of a user's is taken for it."""

    @dataclass(frozen=True, kw_only=True)
    class Own(APICall[None]):
        call_type = "own"
        hooks: tuple[str, ...] = ("post-start",)
        free: int = 7
        common: str = "name"
        stated: bool = False

        def is_noop(self) -> bool:
            return True

    made = Own(target=pod())
    assert (made.hooks, made.free, made.common, made.stated) == (("post-start",), 7, "name", False)
    assert made._hooks == {"is_noop"}
    public = {name for name in dir(APICall) if not name.startswith("_")}
    promised = {"execute", "merge", "is_noop", "rebase_onto", "apply", "reconcile"}
    assert public - promised <= {field.name for field in dataclasses.fields(APICall)}
