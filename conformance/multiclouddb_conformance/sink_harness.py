"""What tests of a sink share: how they make batches and pages, kill the sink, and read the table."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedPage,
    ChangeType,
    ErrorCategory,
    ErrorReason,
    MulticloudDbError,
    MulticloudDbKey,
    Notice,
    ResourceAddress,
    decode_json,
    encode_json,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.refusals import check_refusal, refusal
from multiclouddb_spi import encode_partition_id
from multiclouddb_spi.continuation.token import Envelope, encode_token
from multiclouddb_spi.partition import incarnation_digest
from multiclouddb_tables.contract import Target
from multiclouddb_tables.mark import Expected, FeedSource

Change: TypeAlias = tuple[str, int, Any]
"""The key, the order and the document of a change; None for a delete."""

ADDRESS: Final = ResourceAddress("main", "orders")
"""The collection of the feed."""
SOURCE: Final = FeedSource("provider", ADDRESS, incarnation_digest("first"))
"""The feed of all rows that do not say otherwise."""
NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
"""The time of all changes."""
PLAN: Final = encode_partition_id("provider", ADDRESS, "first", "snapshot:s")
"""The id of the snapshot whose rows have the mark `snapshot:s:`."""


class Death(BaseException):
    """Simulates a kill of the process at this point."""


class Turn(random.Random):
    """Dice that let `passed` steps through and then kill the process; with 0, before the first step."""

    def __init__(self, passed: int) -> None:
        super().__init__()
        self._left = [*[1.0] * (passed - 1), 0.0, 0.0] if passed else [0.0, 1.0]

    def random(self) -> float:
        """Return the next number."""
        return self._left.pop(0) if self._left else 1.0


class SinkHarness(Protocol):
    """A table, the sink that writes it, and deaths of the sink."""

    @property
    def target(self) -> Target:
        """The table, as `verify` reads and repairs it."""
        ...

    def merge(
        self,
        batch: pa.Table | ChangeFeedPage,
        batch_id: int | None = None,
        app_id: str | None = None,
        **options: Any,
    ) -> bool:
        """Call the sink's function."""
        ...

    def drop(self) -> None:
        """Drop the table."""
        ...

    def dies(self, dice: random.Random | None, chance: float = 0.0) -> None:
        """From now on, raise `Death` once, before or after a random step of a commit; with None, never."""
        ...


def events(
    *changes: Change,
    mark: str = "",
    backfilled: bool = False,
    floor: str | None = None,
    incarnation: str | None = "first",
) -> list[ChangeEvent]:
    """Make changes of keys; with `floor`, rows of a snapshot."""
    return [
        ChangeEvent(
            f"{mark}{key}@{order}",
            MulticloudDbKey({"id": key}),
            ChangeType.DELETE if document is None else ChangeType.UPDATE,
            NOW,
            document,
            None,
            f"{order:06d}" if floor is None else floor,
            None,
            backfilled,
            ADDRESS,
            encode_partition_id("provider", ADDRESS, incarnation, "p0"),
        )
        for key, order, document in changes
    ]


def rows(*changes: Change, **more: Any) -> pa.Table:
    """Make a batch of changes."""
    return pa.Table.from_batches([events_to_arrow(events(*changes, **more))])


def bare(*changes: Change) -> pa.Table:
    """Make a batch of changes that came without their documents."""
    batch = rows(*changes)
    at = batch.column_names.index("new_item_state")
    return batch.set_column(at, batch.schema.field(at), pa.nulls(batch.num_rows, pa.string()))


def token_of(source: FeedSource, incarnation: str | None) -> str:
    """Return a token of a feed."""
    return encode_token(Envelope(source.provider, source.address, incarnation, "collection", "", {}))


def page(found: Iterable[ChangeEvent], *notices: Notice, token: str | None = None) -> ChangeFeedPage:
    """Make a page."""
    token = token_of(SOURCE, "first") if token is None else token
    return ChangeFeedPage(tuple(found), token, notices=notices)


def key_of(name: Any) -> str:
    """Return a key as the table stores it."""
    return encode_json({"id": name}).decode()


def read(sink: SinkHarness, keys: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return the rows of the table by key; no key may have two."""
    found = [row for batch in sink.target.rows(keys) for row in batch.to_pylist()]
    by_key = {row["key"]: row for row in found}
    assert len(by_key) == len(found), "a key has several rows"
    return by_key


def refused(
    call: Callable[..., object], *arguments: Any, reason: ErrorReason | None = None, **options: Any
) -> MulticloudDbError:
    """Return the error of a call that must be refused, with a reason if one is given."""
    error = refusal(ErrorCategory.INVALID_REQUEST, partial(call, *arguments, **options))
    return error if reason is None else check_refusal(error, ErrorCategory.INVALID_REQUEST, [reason])


def expected(sink: SinkHarness) -> Expected:
    """Return the table as it is now, for what is written after a comparison."""
    return Expected(SOURCE, sink.target.found())


def documents(sink: SinkHarness) -> dict[str, Any]:
    """Return the documents by the names of their keys."""
    live = (row for row in read(sink).values() if not row["deleted"])
    return {json.loads(row["key"])["id"]: decode_json(row["state"]) for row in live}


def tombstones(sink: SinkHarness) -> dict[str, str]:
    """Return the `order_key` of each tombstone by the name of its key."""
    gone = (row for row in read(sink).values() if row["deleted"])
    return {json.loads(row["key"])["id"]: row["order_key"] for row in gone}


def drawn(dice: random.Random, first: int, count: int, keys: int = 12) -> list[Change]:
    """Draw changes; a key may be deleted and created again."""
    return [
        (f"k{dice.randrange(keys)}", order, {"n": order} if dice.random() < 0.7 else None)
        for order in range(first, first + count)
    ]


def applied(changes: Iterable[Change]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the documents and the tombstones after all changes."""
    last = {key: (order, document) for key, order, document in sorted(changes, key=lambda each: each[1])}
    live = {key: document for key, (_, document) in last.items() if document is not None}
    return live, {key: f"{order:06d}" for key, (order, document) in last.items() if document is None}
