"""The scripted server, which a test starts and controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime
from typing import Any, Final

import attrs
import grpc

from multiclouddb_spanner_emulator.clock import Clock
from multiclouddb_spanner_emulator.control import control_handler
from multiclouddb_spanner_emulator.database import Database, Write
from multiclouddb_spanner_emulator.habits import Habits
from multiclouddb_spanner_emulator.journal import Journal
from multiclouddb_spanner_emulator.record import DataChange, Mod, dumped
from multiclouddb_spanner_emulator.service import handlers
from multiclouddb_spanner_emulator.stream import ChangeStream
from multiclouddb_spanner_emulator.troubles import Troubles
from multiclouddb_spanner_emulator.world import World

__all__ = ["PartitionState", "ScriptedSpanner"]

_MOST_CALLS: Final = 2000
_LARGEST: Final = 64 << 20


@attrs.frozen
class PartitionState:
    """The current state of a partition.

    Attributes:
        token: Its token.
        parents: The tokens of the partition's parents.
        children: The tokens of the partition's children.
        is_open: True while the partition accepts changes.
        records: The number of records in the partition.
    """

    token: str
    parents: tuple[str, ...]
    children: tuple[str, ...]
    is_open: bool
    records: int


class ScriptedSpanner:
    """A Cloud Spanner server in this process, over gRPC.

    The server is a context manager, and several threads can use every method.

    Attributes:
        habits: The settings of the server; they can be changed at any time.
        troubles: Failures on demand.
        journal: The received calls.
        clock: The server's clock.
        host: The address on which the server listens, for `SPANNER_EMULATOR_HOST`; "" before the server is
            started.
    """

    def __init__(self, habits: Habits | None = None, lead_seconds: float = 0.005) -> None:
        """Make a server that has not been started yet.

        Args:
            habits: The settings.
            lead_seconds: The number of seconds by which the server's clock is ahead of this machine's clock.
        """
        self.habits = habits or Habits()
        self.host = ""
        self._world = World(self.habits, lead_seconds)
        self._server: Any = None

    def __enter__(self) -> ScriptedSpanner:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def troubles(self) -> Troubles:
        """Return the faults that can be requested."""
        return self._world.troubles

    @property
    def journal(self) -> Journal:
        """Return the journal of the received calls."""
        return self._world.journal

    @property
    def clock(self) -> Clock:
        """Return the server's clock."""
        return self._world.clock

    @property
    def sessions(self) -> list[str]:
        """Return the open sessions."""
        return list(self._world.sessions)

    # -- Start and stop

    def start(self) -> None:
        """Listen on a free port. After `stop`, the server listens on the same port again."""
        self._world.stopped.clear()
        options = [("grpc.max_send_message_length", _LARGEST), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(_MOST_CALLS), options=options)
        self._server.add_generic_rpc_handlers([*handlers(self._world), control_handler(self._commands())])
        port = self._server.add_insecure_port(self.host or "127.0.0.1:0")
        self.host = self.host or f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        """End every call and stop listening. A stopped server keeps the written data."""
        if self._server is None:
            return
        self._world.stopped.set()
        self._world.troubles.end()
        with self._world.changed:
            self._world.changed.notify_all()
        self._server.stop(0).wait(10)
        self._server = None

    def _commands(self) -> Mapping[str, Callable[..., Any]]:
        """Return the commands of the control API, by name."""
        return {
            "advance": self.advance,
            "expire_row": lambda database, table, key: self.expire_row(database, table, *key),
            "initial_partitions": self._initial_partitions,
            "merge": lambda first, second: self.merge(first, second),
            "now": lambda: self.now().isoformat(),
            "open_partitions": self.open_partitions,
            "open_streams": lambda: self.journal.open_streams,
            "poison": lambda database, stream, table, key: self.poison(database, stream, table, *key),
            "split": self.split,
        }

    def _initial_partitions(self, count: int) -> None:
        self.habits.initial_partitions = count

    # -- Without the network

    def create(self, database: str, *statements: str, postgres: bool = False) -> None:
        """Create a database, and its instance if it does not exist.

        Args:
            database: The full name of the database, `projects/P/instances/I/databases/D`.
            statements: The DDL statements.
            postgres: True for the PostgreSQL dialect.
        """
        instance, _, name = database.partition("/databases/")
        with self._world.changed:
            self._world.instances.add(instance)
            self._world.add_database(instance, name, postgres=postgres, statements=statements)

    def execute(self, database: str, *statements: str) -> None:
        """Execute DDL statements."""
        with self._world.changed:
            for statement in statements:
                self._database(database).execute(statement)
            self._world.changed.notify_all()

    def commit(self, database: str, *writes: Write, tag: str = "", is_system: bool = False) -> int:
        """Write a transaction, and return its commit timestamp in nanoseconds."""
        return self._world.commit(self._database(database), writes, tag, is_system=is_system)

    def expire_row(self, database: str, table: str, *key: Any) -> None:
        """Delete a row in the same way as a row deletion policy does."""
        write = Write("delete", table, (), [key])
        self.commit(database, write, tag="RowDeletionPolicy", is_system=True)

    def poison(self, database: str, stream: str, table: str, *key: Any) -> None:
        """Write a damaged record to a change stream. The values in the record are not valid JSON."""
        world = self._world
        with world.changed:
            found = self._database(database)
            columns = found.table(table)
            keys = dumped(dict(zip(columns.key, key, strict=True)))
            moment = world.clock.commit()
            told = tuple((each, each.name in columns.key) for each in columns.columns)
            mod = Mod(keys, '{"broken":', "{}")
            record = DataChange(
                moment, 0, f"poison-{moment}", True, columns.name, told, [mod], "UPDATE", "NEW_ROW"
            )
            record.records = record.partitions = 1
            found.streams[stream].home(f"{columns.name} {keys}").log.append(record)
            world.changed.notify_all()

    # -- Earlier states

    def save(self) -> tuple[int, Any]:
        """Stop the clock, and return the state of all databases for `restore`."""
        with self._world.changed:
            self.clock.stop()
            return self.clock.nanoseconds(), self._copied(self._world.databases)

    def restore(self, saved: tuple[int, Any]) -> None:
        """Go back to a state that `save` has returned; this may be done more than once."""
        moment, state = saved
        with self._world.changed:
            self.clock.stop(moment)
            self._world.databases = self._copied(state)

    def _copied(self, state: Any) -> Any:
        return deepcopy(state, {id(each): each for each in (self.clock, self.habits)})

    # -- Time

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        with self._world.changed:
            self._world.clock.advance(seconds)
            self._world.changed.notify_all()

    def crowd(self, seconds: float = 0.1) -> None:
        """Make the timestamps of commits and splits differ by only one microsecond.

        The effect lasts for the given number of seconds.
        """
        with self._world.changed:
            self.clock.crowd(seconds)
            self._world.changed.notify_all()

    def now(self) -> datetime:
        """Return the time of the server's clock."""
        return self.clock.now()

    def forget(self, database: str, stream: str) -> None:
        """Expire all existing records of a stream, without moving the clock."""
        with self._world.changed:
            self._stream(database, stream).created = self.clock.step()

    @contextmanager
    def one_commit_timestamp(self) -> Iterator[None]:
        """Inside the `with` block, give every transaction the same commit timestamp.

        No client may read before the `with` block has ended.
        """
        with self._world.changed:
            self.clock.held = self.clock.step()
        try:
            yield
        finally:
            with self._world.changed:
                self.clock.held = None

    # -- Partitions

    def partitions(self, database: str, stream: str) -> list[PartitionState]:
        """Return every partition that ever existed, oldest first."""
        with self._world.changed:
            return [
                PartitionState(
                    each.token,
                    each.parents,
                    tuple(child.token for child in each.children),
                    each.end is None,
                    len(each.log),
                )
                for each in self._stream(database, stream).partitions.values()
            ]

    def open_partitions(self, database: str, stream: str) -> list[str]:
        """Return the tokens of the partitions that accept changes, oldest first."""
        return [each.token for each in self.partitions(database, stream) if each.is_open]

    def split(self, token: str, into: int = 2) -> list[str]:
        """Split a partition, and return the tokens of its children."""
        return self._world.reshape([token], into)

    def merge(self, *tokens: str) -> str:
        """Merge partitions, and return the token of the child."""
        return self._world.reshape(tokens, 1)[0]

    def move(self, token: str) -> str:
        """End a partition, and continue in a new partition with the same keys. Return its token."""
        return self._world.reshape([token], 1)[0]

    def reshape(self, tokens: Sequence[str], count: int) -> list[str]:
        """End partitions, and continue in the given number of new partitions.

        Each new partition is a child of all the old partitions.
        """
        return self._world.reshape(tokens, count)

    def hide_end(self, token: str, *, hidden: bool = True) -> None:
        """Hide the end of a partition, or show it again; readers wait as long as the end is hidden."""
        with self._world.changed:
            self._world.stream_of(token).partitions[token].hidden = hidden
            self._world.changed.notify_all()

    def lose_sessions(self) -> None:
        """Close all sessions. A later call that names a closed session gets `NOT_FOUND`."""
        with self._world.changed:
            self._world.sessions.clear()

    def _database(self, name: str) -> Database:
        return self._world.database(name)

    def _stream(self, database: str, stream: str) -> ChangeStream:
        return self._database(database).streams[stream]
