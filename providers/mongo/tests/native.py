"""The application's own client below ours: what `run_command` needs for sessions, and to be watched."""

from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from pymongo import MongoClient

from multiclouddb_api import MulticloudDbClient, MulticloudDbError, connect

from .monitor import Commands


@attrs.frozen
class Native:
    """Our client on the application's own, and what the two send.

    Attributes:
        client: Ours.
        own: The driver's.
        commands: What was sent, since the connection was made.
    """

    client: MulticloudDbClient
    own: MongoClient[dict[str, Any]]
    commands: Commands

    def run(self, database, command, **options):
        return self.client.run_command(database, command, **options)

    def cursor(self, database, command, **options):
        return self.client.run_cursor_command(database, command, **options)

    def body(self, name):
        """The one command of this name that was sent."""
        (body,) = self.commands.bodies(name)
        return body

    def nodes(self, name):
        """Which servers it was sent to."""
        return ["{}:{}".format(*event.connection_id) for event in self.commands.sent(name)]


@contextmanager
def native(uri, **options):
    """Open both; `options` are the driver's."""
    commands = Commands()
    with (
        MongoClient(uri, event_listeners=[commands], **options) as own,
        connect(uri, native_client=own) as client,
    ):
        yield Native(client, own, commands)


def refused(call, *arguments, **options):
    """The error of what has to fail."""
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments, **options)
    return caught.value


@contextmanager
def hanging(servers):
    """The primary answers nothing meanwhile, though connections to it stay open."""
    member = servers.wait_primary()
    servers.pause(member)
    try:
        yield
    finally:
        servers.resume(member)
