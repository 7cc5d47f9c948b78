"""Provides a library client that uses a native client, for tests of sessions and commands."""

from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from pymongo import MongoClient

from multiclouddb_api import MulticloudDbClient, MulticloudDbError, connect

from .monitor import Commands


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
        """Return the servers to which the command was sent."""
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
