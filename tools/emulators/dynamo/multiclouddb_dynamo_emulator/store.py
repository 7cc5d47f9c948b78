"""Holds the state of a scripted DynamoDB server."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from multiclouddb_dynamo_emulator.clock import Clock
from multiclouddb_dynamo_emulator.errors import ServiceError, not_found
from multiclouddb_dynamo_emulator.habits import Habits, Remains
from multiclouddb_dynamo_emulator.item import KeySchema
from multiclouddb_dynamo_emulator.shard import Shard
from multiclouddb_dynamo_emulator.stream import Stream
from multiclouddb_dynamo_emulator.table import Table

__all__ = ["Store"]

_ACCOUNT: Final = "000000000000"


class Store:
    """The tables and streams of a server.

    Args:
        habits: The settings of the server.
        clock: Its clock.
        region: The region in ARNs and records.

    Attributes:
        lock: The lock that a thread must hold while it reads or writes the state.
        tables: The tables, by name.
        streams: The streams by ARN, oldest first, including disabled streams and streams of deleted tables.
        epoch: The number of times that the test has expired all iterators.
    """

    def __init__(self, habits: Habits, clock: Clock, region: str) -> None:
        self.habits, self.clock, self.region = habits, clock, region
        self.lock = threading.RLock()
        self.tables: dict[str, Table] = {}
        self.streams: dict[str, Stream] = {}
        self.epoch = 0
        self._newest_label = 0

    def table(self, name: str) -> Table:
        """Return a table."""
        if name not in self.tables:
            raise not_found(f"Requested resource not found: Table: {name} not found")
        return self.tables[name]

    def create(self, name: str, keys: KeySchema, specification: Mapping[str, Any]) -> Table:
        """Create a table, with a stream if the specification requests a stream."""
        if name in self.tables:
            raise ServiceError("ResourceInUseException", f"Table already exists: {name}")
        arn = f"arn:aws:dynamodb:{self.region}:{_ACCOUNT}:table/{name}"
        table = Table(arn, keys, self.clock)
        if specification.get("StreamEnabled"):
            self.set_stream(table, specification)
        self.tables[name] = table
        return table

    def delete(self, name: str) -> Table:
        """Delete a table, and disable its stream."""
        table = self.table(name)
        if table.live_stream is not None:
            table.live_stream.disable()
        if table.stream is not None and not self.habits.readable_after_delete:
            for shard in table.stream.shards.values():
                shard.clear()
        del self.tables[name]
        return table

    def set_stream(self, table: Table, specification: Mapping[str, Any]) -> None:
        """Enable or disable the stream of a table, as `StreamSpecification` requires."""
        if not specification.get("StreamEnabled"):
            table.disable_stream(specification)
            return
        view = table.wanted_view(specification)
        table.stream = Stream(table.arn, self._label(), view, table.keys, self.habits, self.clock)
        self.streams[table.stream.arn] = table.stream

    def stream(self, arn: str) -> Stream:
        """Return a stream."""
        if arn not in self.streams:
            raise not_found(f"Requested resource not found: Stream: {arn} not found")
        return self.streams[arn]

    def home(self, shard_id: str) -> tuple[Stream, Shard]:
        """Return the shard with the given id, together with the stream that contains it."""
        for stream in self.streams.values():
            if shard_id in stream.shards:
                return stream, stream.shards[shard_id]
        raise KeyError(f"there is no shard {shard_id}")

    def retain(self) -> None:
        """Trim the records that are older than the retention."""
        cutoff = self.clock.seconds() - self.habits.retention_seconds
        for arn, stream in list(self.streams.items()):
            stream.trim(cutoff, self.habits.remains)
            if stream.disabled_at is not None and stream.disabled_at <= cutoff:
                del self.streams[arn]

    def trim(self, stream: Stream, older_than: float, remains: Remains) -> None:
        """Trim the records that are older than the given number of seconds."""
        stream.trim(self.clock.seconds() - older_than, remains)

    def _label(self) -> str:
        # The label identifies a stream, so two streams that are created in the same millisecond must have
        # different labels.
        self._newest_label = max(self._newest_label + 1, int(self.clock.seconds() * 1000))
        when = datetime.fromtimestamp(self._newest_label / 1000, UTC)
        return f"{when:%Y-%m-%dT%H:%M:%S}.{self._newest_label % 1000:03d}"
