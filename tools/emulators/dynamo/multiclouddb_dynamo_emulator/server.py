"""Serves DynamoDB and DynamoDB Streams over HTTP, with methods that a test calls to control the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from itertools import count, cycle, islice
from types import TracebackType
from typing import Any

import attrs

from multiclouddb_dynamo_emulator.clock import Clock
from multiclouddb_dynamo_emulator.habits import Habits, Remains
from multiclouddb_dynamo_emulator.http import HttpServer
from multiclouddb_dynamo_emulator.item import Item, normalised
from multiclouddb_dynamo_emulator.journal import Journal
from multiclouddb_dynamo_emulator.poison import Poison
from multiclouddb_dynamo_emulator.service import Service
from multiclouddb_dynamo_emulator.shard import Shard
from multiclouddb_dynamo_emulator.store import Store
from multiclouddb_dynamo_emulator.stream import Stream
from multiclouddb_dynamo_emulator.troubles import Troubles

__all__ = ["ScriptedStreams", "ShardState"]


@attrs.frozen
class ShardState:
    """The state of a shard, even if `DescribeStream` does not list the shard.

    Attributes:
        shard_id: Its id.
        parent: The id of the parent, even if the parent no longer exists.
        start: `StartingSequenceNumber`.
        end: `EndingSequenceNumber`; None while the shard is open.
        records: The number of records that remain in the shard.
        last: The sequence number of the newest remaining record.
        trimmed_to: The sequence number of the last trimmed record; 0 if none was trimmed.
        remains: How the server answers requests about the shard if the shard itself was trimmed;
            otherwise None.
    """

    shard_id: str
    parent: str | None
    start: int
    end: int | None
    records: int
    last: int | None
    trimmed_to: int
    remains: Remains | None

    @property
    def is_open(self) -> bool:
        """Return True while the shard accepts records."""
        return self.end is None

    @classmethod
    def of(cls, shard: Shard) -> ShardState:
        """Return the current state of a shard."""
        return cls(
            shard.shard_id,
            shard.parent,
            shard.start,
            shard.end,
            shard.records,
            shard.last,
            shard.trimmed_to,
            shard.remains,
        )


class ScriptedStreams:
    """A DynamoDB server with streams that works with the unmodified boto3.

    A test controls the server.

    Several threads can use the server.

        with ScriptedStreams() as server:
            client = boto3.client("dynamodbstreams", endpoint_url=server.endpoint_url, …)

    The server accepts any credentials. A `stream` argument is either the name of a table, for its latest
    stream, or the ARN of a stream.

    Args:
        start: The time of the server's clock at the start; None for the real time.
        region: The region in ARNs and records; clients may sign their requests for a different region.
        habits: The settings of the server; they can be changed at any time.

    Attributes:
        endpoint_url: The URL of the server, with a free port of 127.0.0.1.
        habits: The settings of the server.
        clock: The server's clock; `advance` moves it.
        troubles: Failures on demand.
        journal: The calls that the server received.
    """

    def __init__(
        self, start: datetime | None = None, region: str = "us-east-1", habits: Habits | None = None
    ) -> None:
        self.habits = Habits() if habits is None else habits
        self.clock = Clock(start)
        self.troubles = Troubles()
        self.journal = Journal(self.habits)
        self._store = Store(self.habits, self.clock, region)
        self._service = Service(self._store, self.troubles, self.journal)
        self._http = HttpServer(self._service)
        self.endpoint_url = self._http.url

    def __enter__(self) -> ScriptedStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        # If the test itself has failed, its failure is more useful than an error that it causes here.
        if error is None and self._http.crashes:
            raise self._http.crashes[0]

    def stop(self) -> None:
        """End all calls, including hanging ones, and wait for the threads."""
        # The service is stopped first, because otherwise hanging calls would be answered.
        self._http.break_connections()
        self._service.stop()
        self._http.stop()

    @property
    def connections(self) -> int:
        """Return the number of connections that clients keep open."""
        return self._http.connections

    def break_connections(self) -> None:
        """Close every connection, including idle ones."""
        self._http.break_connections()

    # -- Earlier states

    def save(self) -> tuple[float, Any]:
        """Stop the clock, and return the state of all tables and streams for `restore`."""
        with self._store.lock:
            self.clock.stop()
            return self.clock.seconds(), self._copied((self._store.tables, self._store.streams))

    def restore(self, saved: tuple[float, Any]) -> None:
        """Go back to a state that `save` has returned; this may be done more than once."""
        seconds, state = saved
        with self._store.lock:
            self.clock.stop(seconds)
            self._store.tables, self._store.streams = self._copied(state)

    def _copied(self, state: Any) -> Any:
        return deepcopy(state, {id(each): each for each in (self.clock, self.habits)})

    # -- Inspection

    def stream_arn(self, table: str) -> str:
        """Return the ARN of a table's latest stream."""
        with self._store.lock:
            return self._stream(table).arn

    def shards(self, stream: str) -> list[ShardState]:
        """Return all shards, parents first. Shards that are permanently unlisted are omitted."""
        with self._store.lock:
            return [ShardState.of(shard) for shard in self._stream(stream).shards.values()]

    def shard(self, shard_id: str) -> ShardState:
        """Return the state of one shard."""
        with self._store.lock:
            return ShardState.of(self._store.home(shard_id)[1])

    def open_shards(self, stream: str) -> list[str]:
        """Return the ids of the shards that accept records."""
        with self._store.lock:
            return [shard.shard_id for shard in self._stream(stream).open_shards]

    def shard_of(self, stream: str, key: Mapping[str, Any]) -> str:
        """Return the id of the open shard that receives the records of a key. The key is in typed JSON."""
        with self._store.lock:
            home = self._stream(stream)
            return home.shard_of(normalised(dict(key))).shard_id

    def keys_of(self, shard_id: str, number: int, prefix: str = "k-") -> list[Item]:
        """Return partition keys whose records go to the given open shard. The keys are in typed JSON."""
        with self._store.lock:
            stream, shard = self._store.home(shard_id)
        ((name, tag),) = islice(stream.keys.types.items(), 1)
        if tag == "B":
            raise ValueError("keys_of can only make keys that are texts or numbers")

        def candidates() -> Iterator[Item]:
            for each in count():
                yield {name: {tag: str(each) if tag == "N" else f"{prefix}{each}"}}

        fitting = (key for key in candidates() if shard.low <= stream.keys.hash_of(key) < shard.high)
        return list(islice(fitting, number))

    # -- Lineage

    def split(self, shard_id: str) -> tuple[str, str]:
        """Close an open shard and divide its keys between two children."""
        with self._store.lock:
            stream, shard = self._store.home(shard_id)
            first, second = stream.split(shard)
            stream.next_generation()
            return first.shard_id, second.shard_id

    def roll_over(self, shard_id: str) -> str:
        """Close an open shard and continue with one child."""
        with self._store.lock:
            stream, shard = self._store.home(shard_id)
            child = stream.roll_over(shard)
            stream.next_generation()
            return child.shard_id

    def roll_over_all(self, stream: str) -> list[str]:
        """Roll over every open shard."""
        with self._store.lock:
            home = self._stream(stream)
            children = [home.roll_over(shard).shard_id for shard in list(home.open_shards)]
            home.next_generation()
            return children

    def grow(self, stream: str, total: int, open_shards: int, records: int = 0) -> None:
        """Split shards until the given number of shards is open.

        After the splits, roll shards over until the stream has `total` shards.

        Args:
            stream: The stream.
            total: The number of shards at the end.
            open_shards: The number of open shards at the end.
            records: The number of records that `fill` writes into each shard, except the shards that were
                split.
        """
        with self._store.lock:
            home = self._stream(stream)
            while len(home.open_shards) < open_shards:
                missing = open_shards - len(home.open_shards)
                for shard in list(home.open_shards)[:missing]:
                    home.split(shard)
            missing = total - len(home.shards)
            if missing < 0 or len(home.open_shards) > open_shards:
                raise ValueError(
                    f"the stream already has {len(home.shards)} shards, {len(home.open_shards)} of them open"
                )
            tips = cycle(range(open_shards))
            for place in islice(tips, missing):
                shard = home.open_shards[place]
                self.fill(shard.shard_id, records)
                home.roll_over(shard)
            for shard in list(home.open_shards):
                self.fill(shard.shard_id, records)
            home.next_generation()

    def hide(self, shard_id: str, calls: int = 0, seconds: float = 0.0) -> None:
        """Hide a shard in the next `calls` calls of `DescribeStream`.

        Also hide the shard until `seconds` of the server's time have passed.
        """
        with self._store.lock:
            stream, shard = self._store.home(shard_id)
            stream.hide(shard, calls, seconds)

    def hide_children(self, shard_id: str, calls: int) -> None:
        """Hide the children of a shard; `Habits.late_children` does the same for all later children."""
        with self._store.lock:
            stream, _ = self._store.home(shard_id)
            for shard in stream.shards.values():
                if shard.parent == shard_id:
                    stream.hide(shard, calls)

    # -- Time and retention

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Iterators may expire, and records that are older than the retention are trimmed.
        """
        with self._store.lock:
            self.clock.advance(seconds)
            self._store.retain()

    def expire_iterators(self) -> None:
        """Expire every iterator that the server has returned so far."""
        with self._store.lock:
            self._store.epoch += 1

    def trim(self, stream: str, older_than: float = 0.0, remains: Remains = Remains.UNLISTED) -> None:
        """Trim the records, and the closed shards, that are older than the given number of seconds."""
        with self._store.lock:
            self._store.trim(self._stream(stream), older_than, remains)

    def trim_records(self, shard_id: str, up_to: int | None = None) -> None:
        """Trim the records of one shard up to and including a sequence number; None for all."""
        with self._store.lock:
            _, shard = self._store.home(shard_id)
            if up_to is None:
                shard.trim_all()
            else:
                shard.trim_to(up_to)

    def drop_shards(self, shard_ids: Sequence[str], remains: Remains = Remains.UNLISTED) -> None:
        """Trim closed shards completely."""
        with self._store.lock:
            for shard_id in shard_ids:
                stream, shard = self._store.home(shard_id)
                stream.drop(shard, remains)

    def drop_oldest(self, stream: str, number: int, remains: Remains = Remains.UNLISTED) -> list[str]:
        """Trim the oldest closed shards completely; return their ids."""
        with self._store.lock:
            closed = [shard for shard in self._stream(stream).shards.values() if shard.end is not None]
            shard_ids = [shard.shard_id for shard in closed[:number]]
            self.drop_shards(shard_ids, remains)
            return shard_ids

    # -- Records that no client writes

    def fill(self, shard_id: str, records: int, record_bytes: int = 300) -> None:
        """Write inserts directly into an open shard, for measurements. No items are stored in the table.

        Args:
            shard_id: The shard.
            records: The number of records.
            record_bytes: The approximate size of each item.
        """
        with self._store.lock:
            stream, shard = self._store.home(shard_id)
            if shard.end is not None:
                raise ValueError(f"{shard_id} is closed")
            payload = {"S": "x" * max(1, record_bytes - 60)}
            for number in range(records):
                unique = str(stream.numbers.last)
                key: Item = {name: {tag: unique} for name, tag in stream.keys.types.items()}
                item = {**key, "number": {"N": str(number)}, "payload": payload}
                stream.write(key, item, None, shard=shard)

    def expire_item(self, table: str, key: Mapping[str, Any]) -> None:
        """Delete an item as if its time to live had passed."""
        with self._store.lock:
            if self._store.table(table).delete(normalised(dict(key)), expired=True) is None:
                raise KeyError(f"there is no item {dict(key)} in {table}")

    def poison(self, stream: str, key: Mapping[str, Any], kind: Poison = Poison.NUMBER) -> int:
        """Write an insert that no client can decode, and return its sequence number."""
        return self.write_record(stream, key, kind.spoil)

    def spoil_item(self, table: str, key: Mapping[str, Any]) -> None:
        """Change an item so that no client can decode it. The stream gets no record of this change."""
        with self._store.lock:
            self._store.table(table).spoil(normalised(dict(key)), "poison", {"N": "twelve"})

    def write_record(
        self, stream: str, key: Mapping[str, Any], change: Callable[[dict[str, Any]], None]
    ) -> int:
        """Let a function change the record of an insert in place, and then write the record.

        The function gets the record in the form that the protocol uses.

        Returns:
            Its sequence number.
        """
        with self._store.lock:
            home = self._stream(stream)
            item = normalised(dict(key))
            return home.write(home.keys.exactly(item), item, None, change=change)

    def _stream(self, stream: str) -> Stream:
        if stream.startswith("arn:"):
            return self._store.stream(stream)
        latest = self._store.table(stream).stream
        if latest is None:
            raise KeyError(f"{stream} never had a stream")
        return latest
