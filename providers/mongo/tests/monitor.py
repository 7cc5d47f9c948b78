"""Records the commands that a client sends to its servers, in order."""

import functools
import time
from contextlib import contextmanager
from typing import Any
from unittest import mock

import attrs
import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    EntireCluster,
    EntireDatabase,
    FromContinuationToken,
    MulticloudDbClient,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_mongo import config

PATIENCE = 60.0
IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}
STARTS = {"resumeAfter", "startAfter", "startAtOperationTime"}


class Commands(CommandListener):
    """Records every command of a client whose `event_listeners` contain this object."""

    def __init__(self):
        self._log = []

    def clear(self):
        self._log.clear()

    def started(self, event):
        self._log.append(("started", event))

    def succeeded(self, event):
        self._log.append(("succeeded", event))

    def failed(self, event):
        self._log.append(("failed", event))

    def events(self, word, *only):
        """Return the events of the given kind, for all commands or only for commands with the given names."""
        log = list(self._log)  # other threads add to it
        return [event for kind, event in log if kind == word and (not only or event.command_name in only)]

    def sent(self, *only):
        return self.events("started", *only)

    def names(self, *only):
        return [event.command_name for event in self.sent(*only)]

    def ends(self, *only):
        """Return the results of commands, such as `["failed", "succeeded"]`."""
        log = list(self._log)
        return [word for word, event in log if word != "started" and event.command_name in only]

    def bodies(self, name):
        """Return the commands with this name, as dictionaries of the server's fields."""
        return [event.command for event in self.sent(name)]

    def opening(self):
        """Return the events of every `aggregate` that opens a change stream."""
        return [
            event
            for event in self.sent("aggregate")
            if event.command["pipeline"] and "$changeStream" in event.command["pipeline"][0]
        ]

    def tries(self):
        """Return the results of the `aggregate` commands that open a change stream."""
        opening = {event.request_id for event in self.opening()}
        log = list(self._log)
        return [word for word, event in log if word != "started" and event.request_id in opening]

    def streams(self):
        return [event.command["pipeline"][0]["$changeStream"] for event in self.opening()]

    def starts(self):
        """Return the start option of each command that has a start option."""
        # A command without a start option only requests the end of the oplog.
        found = [{name: stage[name] for name in STARTS & set(stage)} for stage in self.streams()]
        return [start for start in found if start]


@contextmanager
def listening():
    """Provide the commands of the clients that the library makes inside the block."""
    commands = Commands()
    made = functools.partial(config.OwnClient, event_listeners=[commands])
    with mock.patch.object(config, "OwnClient", made):
        yield commands


@contextmanager
def watched(uri, **named):
    """Open a client as an application does; provide the client and the commands that it sends."""
    with listening() as commands, connect(uri, **named) as client:
        yield client, commands


class Feed:
    """A feed that is read page by page. Each page is read from the token of the previous page."""

    def __init__(self, client, address, start=None, **asked):
        self.client = client
        self.request = ChangeFeedRequest(address, start or Now(), **asked)

    def read(self, seconds=20.0, wait=0.0):
        page = self.client.read_changes(self.request, OperationOptions(seconds, wait))
        options = self.request.provider_options
        if options is not None:  # a native start is allowed only for the first page
            options = attrs.evolve(options, resume_after=None, start_after=None, start_at_operation_time=None)
        self.request = attrs.evolve(
            self.request,
            start_position=FromContinuationToken(page.continuation_token),
            provider_options=options,
        )
        return page

    def events(self, count=1):
        """Read until the given number of events was received, or until a time limit has passed."""
        found, until = [], time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < until:
            found += self.read().events  # a read that waits would retry after a failure
        assert len(found) == count
        return found

    def by(self, client):
        """Return the same feed at the same position, but with another client."""
        other = Feed(client, self.request.address)
        other.request = self.request
        return other


AT_ONCE = 0.2  # in seconds; the shortest time limit in these tests is twice as long


def in_scope(scope, here):
    """Return the address and the scope of a request for a collection, its database, or the cluster."""
    wide = {EntireDatabase(): ResourceAddress(database=here.database), EntireCluster(): ResourceAddress()}
    return {"address": wide.get(scope, here)} | ({"scope": scope} if scope else {})


def read(client, address, place=None, size=0, *, timeout=30.0, wait=0.0, **asked):
    """Read one page; a text is used as a token."""
    start = FromContinuationToken(place) if isinstance(place, str) else place or Beginning()
    request = ChangeFeedRequest(address, start, max_page_size=size, **asked)
    return client.read_changes(request, OperationOptions(timeout, wait))


def walk(client, address, place=None, size=0, **asked):
    for _ in range(3000):
        page = read(client, address, place, size, **asked)
        yield page
        if page.idle:
            return
        place = page.continuation_token
    raise AssertionError("not idle")


def patient(call, tries=10):
    """Return the result of a call with a short time limit, after several attempts if necessary."""
    # On a busy machine, a call may exceed the limit sometimes, but not in every attempt. A call that fails
    # immediately has not exceeded the limit.
    for last in [*[False] * (tries - 1), True]:
        begin = time.monotonic()
        try:
            return call()
        except MulticloudDbError as error:
            if last or not error.retryable or time.monotonic() - begin < AT_ONCE:
                raise
    raise AssertionError


def keys(events):
    return [event.key.components["_id"] for event in events]


def ids(*pages):
    return [key for page in pages for key in keys(page.events)]


def told(*pages):
    return [type(notice) for page in pages for notice in page.notices]


@attrs.frozen
class Native:
    """The library's client, the native client that it uses, and the commands that were sent."""

    client: MulticloudDbClient
    own: MongoClient[dict[str, Any]]
    commands: Commands

    def run(self, database, command, **options):
        return self.client.run_command(database, command, **options)

    def cursor(self, database, command, **options):
        return self.client.run_cursor_command(database, command, **options)

    def body(self, name):
        """Return the only command with this name that was sent."""
        (body,) = self.commands.bodies(name)
        return body

    def nodes(self, name):
        return ["{}:{}".format(*event.connection_id) for event in self.commands.sent(name)]


@contextmanager
def native(uri, **options):
    """Open PyMongo's client and the library's client; `options` are options of PyMongo."""
    commands = Commands()
    with (
        MongoClient(uri, event_listeners=[commands], **options) as own,
        connect(uri, native_client=own) as client,
    ):
        yield Native(client, own, commands)


def refused(call, *arguments, **options):
    """Return the error that a call raises. The call must fail."""
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments, **options)
    return caught.value


@contextmanager
def hanging(servers):
    """Pause the primary inside the block: its connections stay open, but it does not answer."""
    member = servers.wait_primary()
    servers.pause(member)
    try:
        yield
    finally:
        servers.resume(member)


@contextmanager
def deaf(member):
    """Provide a secondary that votes but does not replicate for some time."""
    command = {"configureFailPoint": "stopReplProducer"}
    member.admin.command({**command, "mode": "alwaysOn"})
    try:
        yield
    finally:
        member.admin.command({**command, "mode": "off"})
