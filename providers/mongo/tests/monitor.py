"""Records the commands that a client sends to its servers, in order."""

import functools
import threading
import time
from contextlib import contextmanager
from unittest import mock

import attrs
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

from multiclouddb_api import (
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    connect,
)
from multiclouddb_mongo import config

PATIENCE = 60.0
STARTS = {"resumeAfter", "startAfter", "startAtOperationTime"}


class Commands(CommandListener):
    """Records every command of a client whose `event_listeners` contain this object."""

    def __init__(self):
        self._lock = threading.Lock()
        self._log = []

    def clear(self):
        """Forget all commands recorded so far."""
        with self._lock:
            self._log.clear()

    def started(self, event):
        self._note("started", event)

    def succeeded(self, event):
        self._note("succeeded", event)

    def failed(self, event):
        self._note("failed", event)

    def _note(self, word, event):
        with self._lock:
            self._log.append((word, event))

    def events(self, word, *only):
        """Return the events of the given kind, for all commands or only for commands with the given names."""
        with self._lock:
            log = list(self._log)
        return [event for kind, event in log if kind == word and (not only or event.command_name in only)]

    def sent(self, *only):
        """Return the events of commands that were sent."""
        return self.events("started", *only)

    def names(self, *only):
        """Return the names of commands that were sent."""
        return [event.command_name for event in self.sent(*only)]

    def ends(self, *only):
        """Return the results of commands, such as `["failed", "succeeded"]`."""
        with self._lock:
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
        with self._lock:
            log = list(self._log)
        return [word for word, event in log if word != "started" and event.request_id in opening]

    def streams(self):
        """Return the `$changeStream` stage of each command that opens a change stream."""
        return [event.command["pipeline"][0]["$changeStream"] for event in self.opening()]

    def starts(self):
        """Return the start option of each command that has a start option."""
        # A command without a start option only requests the end of the oplog.
        found = [{name: stage[name] for name in STARTS & set(stage)} for stage in self.streams()]
        return [start for start in found if start]


@contextmanager
def watched(uri, *more, **named):
    """Open a client as an application does; provide the client and the commands that it sends."""
    commands = Commands()
    listening = functools.partial(MongoClient, event_listeners=[commands, *more])
    with mock.patch.object(config, "MongoClient", listening), connect(uri, **named) as client:
        yield client, commands


class Feed:
    """A feed that is read page by page. Each page is read from the token of the previous page."""

    def __init__(self, client, address, start=None, **asked):
        self.client = client
        self.request = ChangeFeedRequest(address, start or Now(), **asked)

    def read(self, seconds=20.0, wait=0.0):
        """Read the next page."""
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
    """Return the `_id` of each event's document."""
    return [event.key.components["_id"] for event in events]
