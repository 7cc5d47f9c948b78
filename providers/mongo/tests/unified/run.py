"""Runs PyMongo's files of MongoDB's unified tests, with PyMongo alone or through multiclouddb.

`test_unified.py` starts this program in another process, where the source package of PyMongo is importable.
The runner of these files is PyMongo's own. Only what this provider also offers is replaced: change streams,
`runCommand` and `runCursorCommand`.
"""

import json
import re
import sys
import time
import unittest
from pathlib import Path

import attrs
from bson.son import SON
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import InvalidOperation, OperationFailure, PyMongoError
from test import setup, teardown
from test.unified_format import UnifiedSpecTestMixinV1, generate_test_classes, get_test_path

from multiclouddb_api import (
    ChangeFeedRequest,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_mongo import MongoOptions

FOLDERS = ("change_streams", "retryable_reads", "run_command")
STARTS = ("resume_after", "start_after", "start_at_operation_time")
NATIVE_STARTS = {"resumeAfter", "startAfter", "startAtOperationTime"}
# What the library sends besides the stream: it looks up the collection, the server and the log's beginning.
LOOKING = (
    "listCollections", "hello", "buildinfo", "shardingState", "replSetGetConfig", "find", "killCursors",
)  # fmt: skip
READING = ("aggregate", "getMore")
SECONDS = 10.0


def raising(call, *arguments, **options):
    """Call the library; raise the driver's exception, or one with the facts that our error states."""
    try:
        return call(*arguments, **options)
    except MulticloudDbError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        code = error.detail.native_code
        if code is None:
            raise InvalidOperation(error.message) from None
        name = re.search(rf"MongoDB {code} (\w+)", error.message)
        details = {"code": int(code), "codeName": None if name is None else name[1]}
        raise OperationFailure(error.message, int(code), details) from None


class Stream:
    """A change stream that is read through `read_changes`."""

    def __init__(self, client, sent, target, pipeline=(), **options):
        match target:
            case Collection():
                scope, names = (
                    EntireCollection(),
                    {"database": target.database.name, "collection": target.name},
                )
            case Database():
                scope, names = EntireDatabase(), {"database": target.name}
            case _:
                scope, names = EntireCluster(), {}
        self._client, self._events = client, []
        self._request = ChangeFeedRequest(
            ResourceAddress(**names),
            Now(),
            scope,
            NewItemStateMode.OMIT,
            include_native=True,
            provider_options=MongoOptions(pipeline=pipeline, allow_missing=True, **options),
        )
        self._failure = None
        try:
            self._read()
        except PyMongoError as error:
            if [event.command_name for event in sent()[-1:]] != ["getMore"]:
                raise
            self._failure = error  # a driver asks for the first answer only when it is iterated
        # The request for the first answer, which had no event.
        self.early = [] if self._failure or self._events else [event.request_id for event in sent()[-1:]]

    def _read(self):
        page = raising(self._client.read_changes, self._request, OperationOptions(SECONDS))
        self._request = attrs.evolve(
            self._request,
            start_position=FromContinuationToken(page.continuation_token),
            provider_options=attrs.evolve(self._request.provider_options, **dict.fromkeys(STARTS)),
        )
        if page.notices and not page.events:
            raise AssertionError(f"a notice instead of an event: {page.notices}")
        self._events += page.events

    def iterate_until_document_or_error(self):
        if self._failure is not None:
            raise self._failure
        until = time.monotonic() + SECONDS
        while not self._events:
            if time.monotonic() > until:
                raise AssertionError("no event")
            self._read()
        return self._events.pop(0).native


class Documents:
    def __init__(self, cursor):
        self._cursor = cursor
        self.close = cursor.close

    def iterate_until_document_or_error(self):
        return raising(next, self._cursor)

    def try_next(self):
        return raising(self._cursor.try_next)


def as_one_stream(events, options, early):
    """Return the commands of a stream as a driver sends them.

    The library first looks up the collection. `Now()` needs two streams: the first one finds the end of the
    log, and the second one reads from there. Of a stream that was given a start, only the second one counts.
    """
    found, hidden, sought = [], set(early), None
    for event in events:
        if getattr(event, "command", None) is not None and event.command_name == "aggregate":
            command = event.command
            starts = NATIVE_STARTS & set(command["pipeline"][0].get("$changeStream", {}))
            seeks = not starts and command["cursor"] == {"batchSize": 0}
            if "batch_size" not in options:
                command["cursor"] = {}
            if set(STARTS) & options.keys():
                hidden |= {event.request_id} if seeks else set()
            elif seeks:
                sought = command
            elif sought is not None:
                hidden.add(event.request_id)
                sought["cursor"], sought = command["cursor"], None
        elif event.command_name in LOOKING:
            hidden.add(event.request_id)
        if event.request_id not in hidden:
            found.append(event)
    return found


def replaced():
    """Return the operations of PyMongo's runner that the library replaces."""

    def ours(self, own):
        client = connect("mongodb://127.0.0.1/", native_client=own)
        self.addCleanup(client.close)
        return client

    def stream(owner):
        def create(self, target, *arguments, **options):
            self.options, self.early = options, []

            def sent():
                return [event for event in commands(self) if event.command_name in READING]

            made = Stream(ours(self, owner(target)), sent, target, *arguments, **options)
            self.early += made.early
            return made

        return create

    def commands(self):
        listeners = self.entity_map._listeners.values()
        return [event for each in listeners for event in each.events if hasattr(event, "command_name")]

    def run(self, target, **options):
        return raising(ours(self, target.client).run_command, target.name, *command(options), **options)

    def cursor(self, target, **options):
        # PyMongo's runner adds what the kind of the cursor needs to the command.
        kind = {None: None, 2: "tailable", 34: "tailable_await"}[options.pop("cursor_type", None)]
        (body,) = command(options)
        if kind is not None:
            body.update({"tailable": True} | ({"awaitData": True} if kind == "tailable_await" else {}))
            options["cursor_type"] = kind
        if "maxTimeMS" in options:
            options["max_time_ms"] = options.pop("maxTimeMS")
        return Documents(raising(ours(self, target.client).run_cursor_command, target.name, body, **options))

    def command(options):
        body = SON([(options.pop("command_name"), 1)])
        body.update(options.pop("command"))
        return (body,)

    def all_of(self, target, **options):
        return list(iter(cursor(self, target, **options).try_next, None))

    def check_events(self, spec):
        if hasattr(self, "options"):
            for each in spec:
                listener = self.entity_map.get_listener_for_client(each["client"])
                listener.events[:] = as_one_stream(listener.events, self.options, self.early)
        UnifiedSpecTestMixinV1.check_events(self, spec)

    return {
        "_clientOperation_createChangeStream": stream(lambda target: target),
        "_databaseOperation_createChangeStream": stream(lambda target: target.client),
        "_collectionOperation_createChangeStream": stream(lambda target: target.database.client),
        "_databaseOperation_runCommand": run,
        "_databaseOperation_runCursorCommand": all_of,
        "_databaseOperation_createCommandCursor": cursor,
        "check_events": check_events,
    }


class Outcomes(unittest.TextTestResult):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.found = {}

    def startTest(self, test):  # noqa: N802 - unittest's name
        super().startTest(test)
        self.found[name(test)] = "passed"

    def _note(self, test, outcome):
        self.found[name(test)] = outcome

    def addError(self, test, error):  # noqa: N802
        super().addError(test, error)
        self._note(test, "failed")

    def addFailure(self, test, error):  # noqa: N802
        super().addFailure(test, error)
        self._note(test, "failed")

    def addSkip(self, test, reason):  # noqa: N802
        super().addSkip(test, reason)
        self._note(test, "skipped")


def name(test):
    return f"{type(test).__name__}.{test._testMethodName}"


def main(through, target):
    more = replaced() if through == "multiclouddb" else {}
    suite = unittest.TestSuite()
    for folder in FOLDERS:
        for kind in generate_test_classes(get_test_path(folder, "unified"), **more).values():
            suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(kind))
    setup()
    ran = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2).run(suite)
    teardown()
    Path(target).write_text(json.dumps(ran.found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
