"""Tests that values of wrong types are refused. The message names the argument and the type, and says what to
do instead.

Introspection finds every parameter of every public function, class and method, and each parameter gets values
of all wrong types. Therefore, a new parameter is tested automatically. If the call of a new function needs a
value that this test does not know, the test says so.
"""

import collections.abc
import importlib
import inspect
import re
import types
import typing
from datetime import UTC, datetime, timedelta
from enum import Enum

import attrs
import pyspark.sql
import pyspark.sql.streaming
import pyspark.sql.types
import pytest

import multiclouddb_api as api
import multiclouddb_mongo
import multiclouddb_postgres
import multiclouddb_tables.sqlite
import multiclouddb_verify
import pyspark_multiclouddb
from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_api.handling import Handling
from multiclouddb_embedded import EmbeddedStore, SqliteCheckpointStore

PACKAGES = [
    "multiclouddb_api",
    "multiclouddb_embedded",
    "multiclouddb_mongo",
    "multiclouddb_cosmos",
    "multiclouddb_dynamo",
    "multiclouddb_postgres",
    "multiclouddb_tables.sqlite",
    "multiclouddb_verify",
    "pyspark_multiclouddb",
]


class Odd:
    """A type that no function accepts."""


class Duck:
    """An object with the methods of a protocol, without the protocol as base class."""

    read_changes = load = save = createDataFrame = sparkSession = print  # noqa: N815 - as Spark calls it
    rows = columns = position = found = complete = fix = parts = print
    answered = waits = must_stop = print
    name = "a table"


WRONG = [
    Odd(), Odd, 17, 1.5, True, "text", b"bytes", None, [Odd()], (Odd(),), {"odd": Odd()}, {3: 4},
    api.Beginning,
]  # fmt: skip


def takes(hint, value):
    """Return whether a type hint allows a value."""
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if hint in (typing.Any, object, inspect.Parameter.empty):
        return True
    if hint is None:
        return value is None
    if origin is typing.Literal:
        return value in given
    if origin in (typing.Union, types.UnionType):
        return any(takes(each, value) for each in given)
    if origin is collections.abc.Callable:
        return callable(value)
    if isinstance(value, bool) and hint in (int, float):
        return False
    if hint is float:
        return isinstance(value, int | float)
    if isinstance(hint, typing.TypeVar):
        return takes(hint.__bound__, value)
    if isinstance(hint, typing.ForwardRef):
        return True
    if isinstance(hint, type) and getattr(hint, "_is_protocol", False):
        return isinstance(value, Duck)
    if origin in (tuple, list, collections.abc.Sequence, collections.abc.Iterable):
        kind = (list, tuple) if origin is collections.abc.Sequence else origin
        return isinstance(value, kind) and (not given or all(takes(given[0], each) for each in value))
    if origin in (collections.abc.Mapping, dict):
        return isinstance(value, collections.abc.Mapping)  # the code that receives the names checks them
    return isinstance(value, origin or hint)


EVENT = api.ChangeEvent(
    "e", api.MulticloudDbKey({"id": "a"}), api.ChangeType.CREATE, datetime(2026, 1, 1, tzinfo=UTC), {}, None,
    "1", None, False, api.ResourceAddress("main", "orders"), "p0",
)  # fmt: skip
DETAIL = api.ErrorDetail(ErrorCategory.CONFLICT)
# A valid value for each type that a parameter may require, in the order of preference.
GOOD = [
    None, "orders", 1, False, b"{}", {"id": "a"}, timedelta(days=1), datetime(2026, 1, 1, tzinfo=UTC), [], (),
    api.ResourceAddress("main", "orders"), api.Beginning(), api.MulticloudDbKey({"id": "a"}), api.Snapshot(),
    api.SnapshotOrder.AUTO, api.Support.NATIVE, api.Capability.CHANGE_FEED, api.ChangeType.CREATE, EVENT,
    api.ScanFloor.ROW,
    api.ChangeFeedPage((), "token"), DETAIL, ErrorCategory.CONFLICT, datetime.now, api.Observer(),
    Duck(),
    api.ChangeFeedRequest(api.ResourceAddress("main", "orders"), api.Beginning()),
]  # fmt: skip
FUNCTIONS = ("verify", "verify_every", "verify_with_spark", "spark_position", "estimate")
# Values for parameters whose type does not determine a valid value.
GOOD_FOR = {
    "MulticloudDbKey.partition_components": 1,
    "CapabilitySet.notes": {},
    "connect.source": "embedded:///tmp/none.db",
    "follow.source": "mongodb://127.0.0.1:1",
    "merge.a": "p0",
    "events_from_function.container": "shop/orders",
    "events_from_function.key": "/pk",
    "merge_into_delta.batch": api.ChangeFeedPage((), "token"),
    "merge_into_postgres.batch": api.ChangeFeedPage((), "token"),
    "merge_into_postgres.dsn": "dbname=none",
    "merge_into_sqlite.batch": api.ChangeFeedPage((), "token"),
    "PostgresCheckpointStore.dsn": "dbname=none",
    "merge_into_table.batch": Duck(),
    "pages_to_dataframe.spark": Duck(),
    "merge.b": "p1",
    "split.partition_id": "p0",
    **{f"{name}.client": Duck() for name in FUNCTIONS},
    "verify_with_spark.spark": Duck(),
    "MulticloudDbClient.config": api.ClientConfig.from_url("embedded:///tmp/none.db"),
    "from_url.url": "embedded:///tmp/store.db",
}
# These are left out: the library or Spark makes and calls them, or they accept any value.
LEFT_OUT = {
    api.ChangeFeedPage: "the library makes one in every call, and its checks would cost more than they find",
    api.OperationDiagnostics: "as a page",
    api.TokenPartition: "inspect makes one",
    api.TokenReport: "inspect makes one",
    multiclouddb_mongo.RunCommandCursor: "run_cursor_command makes it",
    pyspark_multiclouddb.DefaultSource: "Spark makes it and calls its methods",
    api.ErrorCategory: "it is text: a later version, or another process, may have a category of its own",
    multiclouddb_verify.Cost: "verify makes it",
    multiclouddb_verify.Counts: "verify makes it",
    multiclouddb_verify.Difference: "verify makes it",
    multiclouddb_verify.Estimate: "estimate makes it",
    multiclouddb_verify.Progress: "verify makes it",
    multiclouddb_verify.Report: "verify makes it",
    multiclouddb_verify.Standing: "verify_every makes it",
    pyspark_multiclouddb.TableTarget: "verify calls its methods",
    multiclouddb_postgres.PostgresTarget: "as TableTarget",
    api.Observer: "the library calls its methods; an application overrides them",
}


# The library calls their methods.
TARGETS = {multiclouddb_tables.sqlite.SqliteTable, multiclouddb_verify.DeltaTarget}


# The names that modules import only for type checkers.
NAMES = {name: getattr(api, name) for name in api.__all__} | {
    "DataFrame": pyspark.sql.DataFrame,
    "Handling": Handling,
    "Fix": multiclouddb_tables.Fix,
    "SparkSession": pyspark.sql.SparkSession,
    "StreamingQuery": pyspark.sql.streaming.StreamingQuery,
    "StructType": pyspark.sql.types.StructType,
    "Unpack": typing.Unpack,
}


def is_form(found):
    """Return whether a class only describes other objects."""
    return typing.is_typeddict(found) or getattr(found, "_is_protocol", False)


def exported():
    for package in PACKAGES:
        module = importlib.import_module(package)
        yield from (getattr(module, name) for name in module.__all__)


def classes():
    for found in filter(inspect.isclass, exported()):
        if not (issubclass(found, Enum) or is_form(found) or found in LEFT_OUT):
            yield found


def methods(owner):
    """Yield the name and function of each public method that our code defines for a class."""
    for name in () if owner in TARGETS else dir(owner):
        found = inspect.getattr_static(owner, name)
        found = getattr(found, "__func__", found)
        hidden = name.startswith(("_", "onQuery"))  # Spark calls the latter
        if not hidden and inspect.isfunction(found) and "multiclouddb" in found.__module__:
            yield name, found


def hints_of(function):
    """Map each parameter to its type; the fields of `**settings` count as parameters."""
    made = typing.get_type_hints(function, localns=NAMES)
    found = {}
    for name, parameter in list(inspect.signature(function).parameters.items()):
        if name in ("self", "cls") or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        hint = made.get(name, inspect.Parameter.empty)
        if parameter.kind is parameter.VAR_KEYWORD:
            (settings,) = typing.get_args(hint) or (None,)
            found |= typing.get_type_hints(settings) if settings else {}
        else:
            found[name] = hint
    return found


def required(function):
    empty, kinds = inspect.Parameter.empty, inspect.Parameter
    return [
        name
        for name, each in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
        and each.default is empty
        and each.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    ]


def field_hints(owner):
    """Return the constructor's parameters of an attrs class."""
    hints = typing.get_type_hints(owner, localns=NAMES)
    return {
        each.alias: next(iter(typing.get_type_hints(each.converter).values()))
        if each.converter is not None
        else hints[each.name]
        for each in attrs.fields(owner)
        if each.init
    }


def constructor(owner):
    if attrs.has(owner):
        needed = [each.alias for each in attrs.fields(owner) if each.init and each.default is attrs.NOTHING]
        return field_hints(owner), needed
    if "__init__" not in vars(owner):
        return {}, []
    return hints_of(owner.__init__), required(owner.__init__)


def entrances():
    """Yield the title, class (or None), name, parameter types and required parameters of every public
    callable.
    """
    for function in filter(inspect.isfunction, exported()):
        yield function.__name__, None, function.__name__, hints_of(function), required(function)
    for owner in classes():
        hints, needed = constructor(owner)
        yield owner.__name__, owner, None, hints, needed
        for name, function in methods(owner):
            yield f"{owner.__name__}.{name}", owner, name, hints_of(function), required(function)


ENTRANCES = {title: rest for title, *rest in entrances()}
CASES = [(title, name) for title, (_, _, hints, _) in ENTRANCES.items() for name in hints]


def good(title, name, hint):
    """Return a valid value for a parameter."""
    short = f"{title.rpartition('.')[2]}.{name}"
    if short in GOOD_FOR:
        return GOOD_FOR[short]
    for value in GOOD:
        if takes(hint, value):
            return value
    raise AssertionError(
        f"{title} has a parameter {name} of a type that is new here: add a value of {hint} to GOOD"
    )


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    """Return an object of each class that has methods."""
    folder = tmp_path_factory.mktemp("types")
    with EmbeddedStore(folder / "store.db") as store:
        store.create_collection("orders", partitions=2)
        with api.connect(f"embedded://{store.path}") as client:
            yield {
                EmbeddedStore: store,
                SqliteCheckpointStore: SqliteCheckpointStore(folder / "checkpoints.db"),
                api.FileCheckpointStore: api.FileCheckpointStore(folder),
                multiclouddb_postgres.PostgresCheckpointStore: multiclouddb_postgres.PostgresCheckpointStore(
                    "dbname=none"
                ),
                api.MulticloudDbClient: client,
                api.CapabilitySet: api.CapabilitySet({}),
                api.ChangeEvent: EVENT,
                api.ChangeFeedIterator: client.iterate_changes(GOOD[-1], set_aside=folder / "aside"),
                api.ChangeFeedRequest: GOOD[-1],
                api.MulticloudDbKey: api.MulticloudDbKey({"id": "a"}),
            }


def call(title, instances, arguments):
    owner, name, _, _ = ENTRANCES[title]
    if owner is None:
        module = next(module for module in map(importlib.import_module, PACKAGES) if hasattr(module, name))
        return getattr(module, name)(**arguments)
    if name is None:
        return owner(**arguments)
    bound = isinstance(inspect.getattr_static(owner, name), classmethod)
    return getattr(owner if bound else instances.get(owner) or owner(), name)(**arguments)


def types_in(value):
    """Return the names of types, one of which the message for a wrong value must contain."""
    names = {type(value).__name__, *([value.__name__] if isinstance(value, type) else [])}
    if value is None:
        names.add("None")
    if isinstance(value, bytes):
        names.add("int")  # the type of the value's items
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    if not isinstance(inner, list | tuple):
        return names
    return names.union(*map(types_in, inner))


def wrong_values(hint):
    return [value for value in WRONG if not takes(hint, value)]


@pytest.mark.parametrize(("title", "name"), CASES, ids=lambda each: each)
def test_a_wrong_type_is_refused(title, name, instances, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, _, hints, needed = ENTRANCES[title]
    arguments = {each: good(title, each, hints[each]) for each in needed if each != name}
    faults = []
    for value in wrong_values(hints[name]):
        try:
            answer = call(title, instances, {**arguments, name: value})
        except MulticloudDbError as error:
            if fault := wrong_message(error, name, value):
                faults.append((value, fault, error.message))
        except Exception as error:  # noqa: BLE001 - whatever else it is, a user sees it
            faults.append((value, "raises", repr(error)))
        else:
            faults.append((value, "accepts", answer))
    assert not faults, "\n".join(map(str, faults))


def wrong_message(error, name, value):
    words = re.findall(r"\w+", error.message)
    if error.category != ErrorCategory.INVALID_REQUEST:
        return "is another category"
    if name not in words:
        return "does not name the argument"
    if not types_in(value).intersection(words) and repr(value) not in error.message:
        return "does not name the type"
    return "" if "; " in error.message else "has no way out"


ADDRESS = api.ResourceAddress("main", "orders")
WAYS_OUT = [
    (lambda _: api.ChangeFeedRequest(ADDRESS, api.AtTime), "not the class AtTime; write AtTime(…)"),
    (
        lambda client: client.capabilities().is_supported("CHANGE_FEED_POINT_IN_TIME"),
        "pass Capability.CHANGE_FEED_POINT_IN_TIME",
    ),
    (lambda client: client.capabilities()["run_command"], "pass Capability.RUN_COMMAND"),
    (
        lambda client: client.iterate_changes(
            api.ChangeFeedRequest(ADDRESS, api.Now()), checkpoint_store="cp", checkpoint_name="a"
        ),
        'pass FileCheckpointStore("checkpoints")',
    ),
    (lambda _: api.connect("embedded:///tmp/none.db", observer=api.Observer), "write Observer()"),
]


def test_a_message_contains_what_the_user_probably_meant(instances):
    for call_it, way_out in WAYS_OUT:
        with pytest.raises(MulticloudDbError, match=re.escape(way_out)) as caught:
            call_it(instances[api.MulticloudDbClient])
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
