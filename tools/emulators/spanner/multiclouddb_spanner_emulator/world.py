"""Holds the state of a scripted server: instances, databases, sessions, transactions and the clock."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence
from typing import Any, Final

from google.cloud.spanner_v1.types import Session

from multiclouddb_spanner_emulator.clock import Clock
from multiclouddb_spanner_emulator.database import Database, Write
from multiclouddb_spanner_emulator.errors import ServiceError, not_found
from multiclouddb_spanner_emulator.habits import Habits
from multiclouddb_spanner_emulator.journal import Journal
from multiclouddb_spanner_emulator.stream import ChangeStream
from multiclouddb_spanner_emulator.troubles import Troubles

__all__ = ["World"]

_DATABASE: Final = re.compile(r"(projects/[^/]+/instances/[^/]+)/databases/([^/]+)")


class World:
    """The emulator's state, which all calls share.

    A thread must hold `changed` while it reads or changes the state.

    Attributes:
        habits: The settings.
        troubles: Failures on demand.
        journal: The received calls.
        clock: The server's clock.
        changed: A condition variable that wakes the waiting threads after a change of the state.
        instances: The names of instances.
        databases: Maps each full name to its database.
        sessions: Maps the name of each session to the message that describes it.
        transactions: The ids of the transactions that were begun.
    """

    def __init__(self, habits: Habits, lead_seconds: float) -> None:
        self.habits = habits
        self.troubles = Troubles()
        self.journal = Journal()
        self.clock = Clock(lead_seconds)
        self.changed = threading.Condition(threading.RLock())
        self.instances: set[str] = set()
        self.databases: dict[str, Database] = {}
        self.sessions: dict[str, Any] = {}
        self.transactions: set[bytes] = set()
        self.stopped = threading.Event()
        self._numbers = itertools.count(1)

    # -- Names

    def database(self, name: str) -> Database:
        """Return the database with this full name."""
        found = _DATABASE.fullmatch(name)
        if found is None or found[1] not in self.instances:
            raise not_found("Instance", found[1] if found is not None else name)
        if name not in self.databases:
            raise not_found("Database", name)
        return self.databases[name]

    def in_session(self, name: str) -> Database:
        """Return the database of a session."""
        if name not in self.sessions:
            raise not_found("Session", name)
        return self.database(name.rpartition("/sessions/")[0])

    def add_database(
        self, instance: str, name: str, *, postgres: bool, statements: Sequence[str]
    ) -> Database:
        """Add a database."""
        if instance not in self.instances:
            raise not_found("Instance", instance)
        full = f"{instance}/databases/{name}"
        if full in self.databases:
            raise ServiceError("ALREADY_EXISTS", f"Database already exists: {full}")
        made = Database(full, postgres=postgres, clock=self.clock, habits=self.habits)
        for statement in statements:
            made.execute(statement)
        self.databases[full] = made
        return made

    def add_session(self, database: str, *, multiplexed: bool, role: str = "") -> Any:
        """Add a session, and return the message that describes it."""
        self.database(database)
        name = f"{database}/sessions/s{next(self._numbers)}"
        made = self.sessions[name] = Session.pb()(name=name, multiplexed=multiplexed, creator_role=role)
        for moment in (made.create_time, made.approximate_last_use_time):
            moment.FromNanoseconds(self.clock.nanoseconds())
        return made

    def add_transaction(self) -> bytes:
        """Add a transaction, and return its id."""
        made = f"t{next(self._numbers)}".encode()
        self.transactions.add(made)
        return made

    def commit(
        self, database: Database, writes: Sequence[Write], tag: str = "", *, is_system: bool = False
    ) -> int:
        """Apply a transaction, and return its commit timestamp."""
        with self.changed:
            moment = database.commit(writes, tag, is_system=is_system)
            self.changed.notify_all()
            return moment

    # -- Partitions

    def stream_of(self, *tokens: str) -> ChangeStream:
        """Return the change stream of the given partitions."""
        for database in self.databases.values():
            for stream in database.streams.values():
                if all(token in stream.partitions for token in tokens):
                    return stream
        raise ValueError(f"no change stream has all of these partitions: {', '.join(tokens)}")

    def reshape(self, tokens: Sequence[str], count: int) -> list[str]:
        """End partitions, and continue in new partitions. Return the new tokens."""
        with self.changed:
            stream = self.stream_of(*tokens)
            moment = self.clock.step()
            if self.clock.held is not None:
                self.clock.held = moment
            children = stream.reshape(tokens, count, moment)
            self.changed.notify_all()
            return children
