"""The vocabulary of calls: what a plugin author subclasses, what an attempt knows, what an error means.

`APICall` is the extension point: one subclass for each call type. A call is a frozen value. It is made once, may be
submitted once or often, and is never changed by the dispatcher (a merge, a rebase or `Again` makes a new one).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from asyncdispatch.config import RetryPolicy, check_seconds
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import ConfigurationError, MissingField

__all__ = [
    "APICall",
    "Again",
    "Applied",
    "Attempt",
    "Effect",
    "FunctionCall",
    "ObjectRef",
    "Reconciled",
    "Refused",
    "Unknown",
    "Verdict",
    "VerdictKind",
]

T = TypeVar("T")


# -- objects ------------------------------------------------------------------------------------------------------


class _Derived:
    """What follows from the fields of a ref, and is no field."""

    __slots__ = ("lane", "plain")

    lane: str
    plain: bool
    """True without a uid, and with a name that is known."""


@dataclass(frozen=True, slots=True)
class ObjectRef(_Derived):
    """Which object a call acts on: (group, kind, namespace, name). `uid` is a fence, not part of the identity.

    A name that ends with "*" stands for a name that the server will generate: each such call has a lane of its own.
    """

    api_version: str
    kind: str
    namespace: str | None
    name: str
    uid: str | None = None

    def __post_init__(self) -> None:
        for name in ("api_version", "kind", "name"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"ObjectRef.{name}", value, "must be a string that is not empty")
        for name in ("namespace", "uid"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigurationError(f"ObjectRef.{name}", value, "must be None or a string that is not empty")
        group, slash, _ = self.api_version.rpartition("/")
        object.__setattr__(self, "lane", f"{group if slash else ''}/{self.kind}/{self.namespace or ''}/{self.name}")
        object.__setattr__(self, "plain", self.uid is None and not self.generated)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectRef, dataclasses.astuple(self)

    @property
    def generated(self) -> bool:
        """True if the server will choose the name."""
        return self.name.endswith("*")

    @classmethod
    def of(cls, obj: Any) -> ObjectRef:
        """The ref of a JSON dict or a client model. Raises `ConfigurationError` if it lacks kind, version or name.

        A client model need not carry `kind` and `api_version`: then its class name says which (V1Pod, V1alpha1Foo).
        """
        if isinstance(obj, ObjectRef):
            return obj
        meta = metadata_of(obj)
        kind, api_version = _type_of(obj)
        name = _get(meta, "name") or (f"{prefix}*" if (prefix := _get(meta, "generate_name", "generateName")) else None)
        for what, value in (("kind", kind), ("apiVersion", api_version), ("metadata.name", name)):
            if not value:
                raise ConfigurationError(what, value, f"a {type(obj).__name__} without it can't be told apart: set it")
        return cls(str(api_version), str(kind), _get(meta, "namespace") or None, str(name), _get(meta, "uid") or None)

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {place}" + (f" ({self.uid})" if self.uid else "")


def metadata_of(obj: Any) -> Any:
    """The metadata of a JSON dict or a client model, or None."""
    return obj.get("metadata") if isinstance(obj, dict) else getattr(obj, "metadata", None)


def version_of(obj: Any) -> str | None:
    """The resourceVersion of a JSON dict or a client model, or None."""
    version: str | None = _get(metadata_of(obj), "resource_version", "resourceVersion")
    return version


def identity_in(answer: Any) -> tuple[str, str, str | None] | None:
    """Name, uid and resourceVersion of an object that a server has answered with; None if it is no object.

    The answer may be anything that user code returned, also what can't be looked at (law L14).
    """
    try:
        meta = metadata_of(answer)
        name, uid, version = _get(meta, "name"), _get(meta, "uid"), version_of(answer)
    except Exception:
        return None
    return (name, uid, version) if isinstance(name, str) and isinstance(uid, str) else None


def _get(meta: Any, *names: str) -> Any:
    if isinstance(meta, dict):
        return next((meta[name] for name in reversed(names) if name in meta), None)
    return getattr(meta, names[0], None)


# Client models are named after version and kind, and leave both empty when they come out of a typed list.
_CORE_KINDS = frozenset(
    {
        "Binding",
        "ConfigMap",
        "Event",
        "LimitRange",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "ReplicationController",
        "ResourceQuota",
        "Secret",
        "Service",
        "ServiceAccount",
    }
)
_MODEL_GROUPS = {
    "Lease": "coordination.k8s.io",
    "PriorityClass": "scheduling.k8s.io",
    "Job": "batch",
    "CronJob": "batch",
    "Deployment": "apps",
    "ReplicaSet": "apps",
    "StatefulSet": "apps",
    "DaemonSet": "apps",
    "PodDisruptionBudget": "policy",
    "StorageClass": "storage.k8s.io",
}


def _type_of(obj: Any) -> tuple[str | None, str | None]:
    if isinstance(obj, dict):
        return obj.get("kind"), obj.get("apiVersion")
    kind, api_version = getattr(obj, "kind", None), getattr(obj, "api_version", None)
    name = type(obj).__name__
    if (kind and api_version) or not name.startswith("V"):
        return kind, api_version
    cut = next((i for i, letter in enumerate(name) if i and letter.isupper()), len(name))
    version, model_kind = name[:cut].lower(), name[cut:]
    if model_kind in _CORE_KINDS or model_kind == "CoreEvent":
        return kind or model_kind.removeprefix("Core"), api_version or version
    group = _MODEL_GROUPS.get(model_kind)
    return kind or model_kind, api_version or (f"{group}/{version}" if group else None)


# -- what a call does and what came of it -------------------------------------------------------------------------


class Effect(enum.Enum):
    """What a call does to its object. Decides what may be repeated, joined and merged."""

    READ = "read"
    IDEMPOTENT_WRITE = "idempotent_write"
    CREATE = "create"


class VerdictKind(enum.Enum):
    """What an error means for its call (design section 6, "Verdicts")."""

    RETRY = "retry"
    LATER = "later"
    HOLD = "hold"
    RECONCILE = "reconcile"
    GONE = "gone"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an error was classified.

    `maybe_applied`: the request may have changed the object. `retry_after`: seconds that the server asked for.
    `scope`: what LATER and HOLD wait by (a quota in a namespace, a cluster's credentials). None: LATER waits alone,
    HOLD by the call's own scope, or with its flow if it has none.
    """

    kind: VerdictKind
    maybe_applied: bool = False
    retry_after: float | None = None
    scope: Hashable | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, VerdictKind):
            raise ConfigurationError("Verdict.kind", self.kind, "must be a VerdictKind")
        if self.retry_after is not None:
            check_seconds("Verdict.retry_after", self.retry_after, zero=True)


@dataclass(frozen=True)  # no slots, so that Applied[T](…) works on Python 3.11
class Applied(Generic[T]):
    """Answer of `reconcile`: the write is there; `value` is the call's result."""

    value: T


@dataclass(frozen=True)  # no slots, so that Again[T](…) works on Python 3.11
class Again(Generic[T]):
    """Answer of `reconcile`: it is not there; send `call` (of the same type and object) instead."""

    call: APICall[T]


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer of `reconcile`: it is not there and can't be any more, because of `error`."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Unknown:
    """Answer of `reconcile`: nothing could be found out. The class itself is accepted as well.

    `maybe_applied`: a request of this call that an earlier `Again` took for not applied may have been, after all.
    """

    maybe_applied: bool = field(default=False, compare=False)


Reconciled = Applied[T] | Again[T] | Refused | Unknown | type[Unknown]


class Attempt:
    """What `execute` and `reconcile` know of the try that they make. Valid until they return.

    `sent` says whether a request may have left: True once `execute` is entered, unless the call sets it to False first
    and to True as its bytes leave (a write that was never sent is not maybe applied, law L10).
    """

    __slots__ = ("_clock", "call", "deadline", "last_error", "number", "sent", "ticket")

    def __init__(
        self,
        clock: Callable[[], float],
        call: APICall[Any],
        ticket: int,
        number: int,
        deadline: float,
        last_error: BaseException | None,
    ) -> None:
        self._clock = clock
        self.call = call
        self.ticket = ticket
        self.number = number
        self.deadline = deadline
        self.last_error = last_error
        self.sent = True

    @property
    def now(self) -> float:
        """Seconds, by the clock that `deadline` is measured by."""
        return self._clock()

    @property
    def remaining(self) -> float:
        """Seconds until this try is cut off, never below 0."""
        return max(0.0, self.deadline - self._clock())

    @property
    def context(self) -> SchedulingContext | None:
        return self.call.context

    @property
    def idempotency_key(self) -> Hashable | None:
        return self.call.idempotency_key

    def __repr__(self) -> str:
        return f"<Attempt {self.ticket}-{self.number} of {self.call.call_type} {self.call.target}>"


# -- calls --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class APICall(Generic[T]):
    """One call to the API server, as a value. Subclass it for each call type and write `execute`.

    `call_type`, `effect` and any other field may be given as class attributes of the subclass. Times are seconds from
    submission. The hooks other than `execute` and `reconcile` are synchronous, are called on the event loop, and must
    neither block nor change anything.
    """

    if TYPE_CHECKING:
        call_type: str = ""  # a type checker knows no field that is given as a class attribute
    else:
        call_type: str
    target: ObjectRef
    effect: Effect = Effect.IDEMPOTENT_WRITE
    idempotency_key: Hashable | None = None
    version: str | None = None
    priority: int = 0
    flow: str = "default"
    timeout: float | None = None
    not_before: float | None = None
    context: SchedulingContext | None = None
    prerequisite: str | None = None
    awaits_prerequisites: bool = False
    sheddable: bool = False
    ordered: bool = False
    depends_on: tuple[ObjectRef, ...] = ()
    fresh: bool = False
    scope: Hashable | None = None
    retry: RetryPolicy | None = None

    _hooks: ClassVar[frozenset[str]] = frozenset()
    """Which of the optional hooks this class defines; kept by `__init_subclass__`."""
    _free: ClassVar[bool] = True
    """True for writes of a class without optional hooks and class-wide values that bind; kept likewise."""
    _common: ClassVar[bool] = False
    """True for a call of a free class that is given no field that binds it: set in the instance as it is made."""
    _stated: ClassVar[Mapping[str, Any]] = {}
    """Values of fields that the class states as attributes, and plain classes between it and the next dataclass."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._hooks = frozenset(name for name in _HOOKS if getattr(cls, name) is not getattr(APICall, name))
        annotations = inspect.get_annotations(cls)
        above = next(base for base in cls.__mro__[1:] if "__dataclass_fields__" in vars(base))
        stated = _stated_by(cls, above)
        for name in stated.keys() - annotations.keys():
            _check_field(f"{cls.__name__}.{name}", name, stated[name])
            # @dataclass takes for a default what is annotated, in the class itself.
            annotations[name] = APICall.__annotations__[name]
            setattr(cls, name, stated[name])
        cls.__annotations__ = annotations
        cls._stated = stated
        if stated and above not in (APICall, FunctionCall):  # those two store what they are given and nothing else
            _let_state(above)
        given = {name for base in cls.__mro__ if base is not APICall for name in vars(base)}
        cls._free = not cls._hooks and not given & _BINDING and cls.effect is not Effect.READ

    async def execute(self, attempt: Attempt) -> T:
        """Do it. Runs on the event loop, may be called again after an error; cancelled at its time-out."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute")

    def merge(self, pending: Any) -> Self | None:
        """One call that does what `pending`, then this call, would do; None: keep both, in order (law L13)."""
        return None

    def is_noop(self) -> bool:
        """True if nothing needs to be done. Asked when nothing else of the object waits, flies or is unobserved."""
        return False

    def rebase_onto(self, observed: Any) -> Self:
        """This call, decided anew on the object as just observed. Only `version` and own fields may differ."""
        return self

    def apply(self, obj: Any) -> Any:
        """A copy of `obj` as it looks once this call is done. None in: a create. None out: a delete (law L18)."""
        return obj

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[T]:
        """Find out by one fresh read what became of the last request (law L10). Has its own short time-out."""
        return Unknown()


_HOOKS = ("merge", "is_noop", "rebase_onto", "apply", "reconcile")
_FIELDS = frozenset(field.name for field in dataclasses.fields(APICall))
_COMMON = frozenset({"call_type", "target", "priority", "flow", "timeout"})
"""What a call may be given and still be a common one: which it is and when it is urgent."""
_BINDING = _FIELDS - _COMMON - {"effect"}
_INT32 = range(-(2**31), 2**31)


def _stated_by(cls: type, above: type) -> dict[str, Any]:
    """Fields that are attributes of a class, and of plain classes and mixins between it and the dataclass `above`."""
    stated: dict[str, Any] = {}
    for base in cls.__mro__[: cls.__mro__.index(above)]:
        for name in _FIELDS & vars(base).keys() - stated.keys():
            stated[name] = vars(base)[name]
    # With slots=True a class is made twice, the second time with slots where the values were.
    return {name: value for name, value in stated.items() if not inspect.ismemberdescriptor(value)}


def _let_state(above: type) -> None:
    """Have the generated `__init__` of a dataclass store what a plain class below it states, unless it is given."""
    init = vars(above).get("__init__")
    if init is None or getattr(init, "lets_state", False):
        return

    @functools.wraps(init)
    def stating(self: APICall[Any], *args: Any, **fields: Any) -> None:
        placed = inspect.signature(init).bind_partial(self, *args).arguments if args else {}
        init(self, *args, **{name: value for name, value in self._stated.items() if name not in placed} | fields)

    stating.lets_state = True  # type: ignore[attr-defined]
    above.__init__ = stating  # type: ignore[misc]


def _check_field(label: str, name: str, value: Any) -> None:
    if name in _OPTIONAL and value is None:
        return
    expected = _EXACT.get(name)
    if name == "priority":
        if isinstance(value, bool) or not isinstance(value, int) or value not in _INT32:
            raise ConfigurationError(label, value, "must be a 32-bit integer, as a Pod's priority is")
    elif name in ("timeout", "not_before"):
        check_seconds(label, value, zero=name == "not_before")
    elif name == "depends_on":
        if not isinstance(value, tuple) or not all(isinstance(ref, ObjectRef) for ref in value):
            raise ConfigurationError(label, value, "must be a tuple of ObjectRef")
    elif name in ("idempotency_key", "scope"):
        try:
            hash(value)
        except Exception as error:
            raise ConfigurationError(label, type(value), "must be hashable") from error
    elif expected is not None and (not isinstance(value, expected) or (expected is str and not value)):
        article = "a string that is not empty" if expected is str else f"of type {expected.__name__}"
        raise ConfigurationError(label, value, f"must be {article}")


_EXACT: dict[str, type] = {
    "call_type": str,
    "target": ObjectRef,
    "effect": Effect,
    "version": str,
    "flow": str,
    "context": SchedulingContext,
    "prerequisite": str,
    "awaits_prerequisites": bool,
    "sheddable": bool,
    "ordered": bool,
    "fresh": bool,
    "retry": RetryPolicy,
}
_OPTIONAL = frozenset(field.name for field in dataclasses.fields(APICall) if field.default is None)


@dataclass(frozen=True, kw_only=True)
class FunctionCall(APICall[T]):
    """A call made of an async function: `FunctionCall(fn, call_type=..., target=...)`, `fn(attempt)` awaitable."""

    fn: Callable[[Attempt], Awaitable[T]] = field(kw_only=False)
    if TYPE_CHECKING:
        call_type: str  # pyright: ignore[reportGeneralTypeIssues]  # no class of its own states it

    def execute(self, attempt: Attempt) -> Awaitable[T]:  # type: ignore[override]
        return self.fn(attempt)  # one frame less than awaiting it; the dispatcher awaits any awaitable


# A generated __init__ stores all eighteen fields by object.__setattr__, which costs as much as the whole queue. These
# two store what was given; the rest is read from the class. Subclasses that are dataclasses keep their generated one.
# Naming the fields that most calls are given saves one of two dictionaries.

_fill: Callable[[Any, dict[str, Any]], None] = vars(APICall)["__dict__"].__set__
_is_common = _COMMON.issuperset
_ABSENT: Any = object()


def _init_call(self: APICall[Any], /, **fields: Any) -> None:
    for name in ("call_type", "target"):
        if name not in fields:
            _check_stated(self, name)
    _keep(self, fields)


def _keep(call: APICall[Any], fields: dict[str, Any]) -> None:
    if _is_common(fields):
        fields["_common"] = call._free
    elif not fields.keys() <= _FIELDS:
        raise TypeError(f"{type(call).__name__} has no field {min(fields.keys() - _FIELDS)!r}")
    call.__dict__.update(fields)  # beside what a subclass has set of its own before


def _check_stated(call: APICall[Any], name: str) -> None:
    if not hasattr(call, name):
        raise MissingField(name, None, f"{type(call).__name__} needs it, as a field or class attribute")


def _init_function_call(
    self: FunctionCall[Any],
    fn: Any,
    *,
    call_type: Any = _ABSENT,
    target: Any = _ABSENT,
    priority: Any = _ABSENT,
    flow: Any = _ABSENT,
    **others: Any,
) -> None:
    fields = {"fn": fn}
    if call_type is not _ABSENT:
        fields["call_type"] = call_type
    else:
        _check_stated(self, "call_type")
    if target is not _ABSENT:
        fields["target"] = target
    else:
        _check_stated(self, "target")
    if priority is not _ABSENT:
        fields["priority"] = priority
    if flow is not _ABSENT:
        fields["flow"] = flow
    if others or type(self) is not FunctionCall:
        _keep(self, others)
        self.__dict__.update(fields)
    else:
        fields["_common"] = self._free
        _fill(self, fields)


if not TYPE_CHECKING:
    for _class, _init in ((APICall, _init_call), (FunctionCall, _init_function_call)):
        _init.__signature__ = inspect.signature(_class.__init__)
        _class.__init__ = _init


def validate_call(call: APICall[Any]) -> None:
    """Raise `ConfigurationError` for what is no call, and for the first field of `call` whose value can't be meant."""
    if not isinstance(call, APICall):
        raise ConfigurationError("call", call, "must be an APICall: subclass it, or use FunctionCall")
    values = call.__dict__
    if "target" not in values or "call_type" not in values:  # stated by its class, in slots, or never given
        values = {name: getattr(call, name, None) for name in _FIELDS}
    for name, value in values.items():
        # The common, good values are told by their exact type alone.
        if (_EXACT.get(name) is not type(value) or not value) and name in _FIELDS:
            _check_field(name, name, value)
    if call.prerequisite is not None and call.context is None:
        raise ConfigurationError("prerequisite", call.prerequisite, "needs the context that requires it")
    if call.ordered and call.effect is not Effect.READ:
        raise ConfigurationError("ordered", True, "is for reads; writes on one object are in order by themselves")
