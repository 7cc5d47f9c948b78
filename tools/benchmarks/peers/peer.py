"""Defines a peer: a reader of a change feed that is measured in its own process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import attrs

__all__ = ["Command", "Group", "MissingError", "Peer"]


class Group(Enum):
    """A group of peers that read the same data from the same server.

    The value of a member of this enum is the title of the group's table.
    """

    MONGO = "MongoDB"
    DYNAMO = "DynamoDB Local"


class MissingError(Exception):
    """Raised if a peer cannot run on this machine; the message gives the reason."""


@attrs.frozen
class Command:
    """The command that runs a peer.

    Attributes:
        arguments: The program and its arguments. The method `line` adds the path of the file that
            describes the work.
        environment: Environment variables to set for the program.
        versions: The versions of the packages that the program uses.
        spec: Fields to add to the description of the work.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    versions: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    spec: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    def line(self, spec: str) -> list[str]:
        """Return the command line of the program; `spec` is the file that describes the work."""
        return [*self.arguments, spec]

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the program."""
        return {**os.environ, **self.environment}


@attrs.frozen
class Peer:
    """One line of a table.

    Attributes:
        name: The name for `--only`.
        group: The table.
        title: The name of the peer, for people.
        about: The description of the program, in sentences.
        prepare: Makes the peer's environment and returns the command. It raises `MissingError` if the peer
            cannot run on this machine.
    """

    name: str
    group: Group
    title: str
    about: str
    prepare: Callable[[], Command]
