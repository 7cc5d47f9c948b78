"""Runs the query of a change stream, for one partition or for the list of partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from multiclouddb_spanner.cancel_scope import CancelScope
from multiclouddb_spanner.catalog import ChangeStreamInfo
from multiclouddb_spanner.client import INT64, STRING, TIMESTAMP, Answer, DatabaseClient, Parameter
from multiclouddb_spanner.forks import again
from multiclouddb_spanner.position import text_at
from multiclouddb_spanner.records import Children, Item, Shapes, parse_rows, rows_of
from multiclouddb_spi import Deadline, collector_paused

__all__ = ["Window", "begin_query", "list_partitions"]

# The interval of the service's heartbeats. Windows end by themselves, so the provider rarely needs
# heartbeats.
_HEARTBEAT_MS: Final = "60000"


def begin_query(
    client: DatabaseClient,
    info: ChangeStreamInfo,
    token: str | None,
    start: int,
    end: int | None,
    deadline: Deadline,
    scope: CancelScope,
) -> Answer:
    """Start the query for a partition, or for the list of partitions."""
    values = [
        Parameter(TIMESTAMP, text_at(start)),
        Parameter(TIMESTAMP, None if end is None else text_at(end)),
        Parameter(STRING, token),
        Parameter(INT64, _HEARTBEAT_MS),
    ]
    if info.postgres:
        sql = f'SELECT * FROM spanner."read_json_{info.stream}"($1, $2, $3, $4, NULL)'
        names = ("p1", "p2", "p3", "p4")
    else:
        sql = (
            f"SELECT ChangeRecord FROM READ_{info.stream}(start_timestamp => @s, end_timestamp => @e, "
            "partition_token => @t, heartbeat_milliseconds => @h)"
        )
        names = ("s", "e", "t", "h")
    return client.query(sql, dict(zip(names, values, strict=True)), deadline, scope)


def list_partitions(
    client: DatabaseClient, info: ChangeStreamInfo, at: int, deadline: Deadline, scope: CancelScope
) -> list[str]:
    """Return the tokens of the partitions that are alive at a given time."""

    def ask() -> list[str]:
        answer = begin_query(client, info, None, at, None, deadline, scope)
        shapes = Shapes()
        tokens: dict[str, None] = {}
        for rows in rows_of(answer):
            for item in parse_rows(rows, info.table, shapes):
                if isinstance(item, Children):
                    tokens.update(dict.fromkeys(item.parents))
        return list(tokens)

    return again(ask)


def _parsed(rows: Sequence[Sequence[Any]], table: str, shapes: Shapes) -> list[Item]:
    """Return the items of one message."""
    with collector_paused():
        return list(parse_rows(rows, table, shapes))


class Window:
    """A query of one partition between two times, both included."""

    def __init__(
        self, answer: Answer, table: str, shapes: Shapes, end: int, *, waits: float, current: bool
    ) -> None:
        self.end, self.waits, self.current = end, waits, current
        self.began = time.monotonic()
        self._answer = answer
        self._messages: Iterator[list[Item]] = (_parsed(rows, table, shapes) for rows in rows_of(answer))

    @property
    def expires(self) -> float:
        """Return the value of `time.monotonic()` at which gRPC ends the call."""
        return self._answer.expires

    def next(self) -> list[Item] | None:
        """Return the records of the next message, or None after the last message."""
        return next(self._messages, None)

    def cancel(self) -> None:
        """End the query. Calling this method again does nothing."""
        self._answer.cancel()
