"""Reads both sides of a comparison: the rows, the stream from the sink's position on, and the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from zlib import crc32

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import (
    ChangeFeedPage,
    MulticloudDbError,
    ScanFacts,
    ScanFloor,
    invalid_request,
)
from multiclouddb_verify.comparison import (
    GONE,
    Integers,
    Seen,
    canonicals,
    digest,
    digests_of,
    document_digest,
    text_digests,
)
from multiclouddb_verify.report import Progress
from multiclouddb_verify.source import Change, Follower, Source, key_texts
from multiclouddb_verify.state import ORDER_BITS, Rows, State, rows_of
from multiclouddb_verify.target import Target

__all__ = [
    "FEWEST",
    "LOW_CEILING",
    "ORDER_MASK",
    "Found",
    "Position",
    "Sides",
    "Transform",
    "order_digest",
    "own_values",
    "row_digests",
    "source_digests",
    "target_rows",
]

Position: TypeAlias = str | Callable[[], str | None]
"""The token of the sink, or a function that returns the token that the sink has stored last."""
Transform: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A function that makes the values of the table's own columns from a document."""
_RUN: Final = 100_000
_RUN_SECONDS: Final = 10.0
_FIRST: Final = 10_000
FEWEST: Final = 1000
_BEHIND: Final = 100
ORDER_MASK: Final = (1 << ORDER_BITS) - 1
_SUSPECT: Final = np.int32(-(2**31))
LOW_CEILING: Final = ":"
"""Sorts after each `order_key` that consists of digits, where the floor of a scan sorts before them all."""


@attrs.define(kw_only=True)
class Found:
    """The rows of the target for some keys, from one version."""

    seen: dict[str, list[Seen]]
    texts: dict[str, str | None]


class Sides:
    """The two sides of one comparison, and what is known of them.

    Args:
        source: The collection.
        target: The table.
        position: See `verify`.
        pause: Waits for some seconds.
        clock: Returns the time in seconds.
        settings: The other arguments of `verify`.
    """

    _state: State

    def __init__(
        self,
        source: Source,
        target: Target,
        position: Position | None,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        **settings: Any,
    ) -> None:
        self._source, self._target, self._position = source, target, position
        self._pause, self._clock = pause, clock
        self._repair: bool = settings.get("repair", False)
        self._sample: int | None = settings.get("sample")
        if self._sample is not None and self._sample < 2:
            raise invalid_request(
                "sample", f"is {self._sample}", "give a number N from 2 on, to compare one of N keys"
            )
        self._folder = settings.get("state")
        self._patience: float = settings.get("patience_seconds", 600.0)
        self._max_repairs: int | None = settings.get("max_repairs")
        self._force: bool = settings.get("force", False)
        self._transform: Transform | None = settings.get("transform")
        self._show_values: bool = settings.get("show_values", False)
        self._record: bool = settings.get("record", False)
        self._on_progress: Callable[[Progress], None] | None = settings.get("on_progress")
        self._facts: ScanFacts = source.facts
        self._told = Progress("scan")
        self._settled_at = 0.0
        self._largest = 0
        self._refused: str | None = None
        self._own_known: dict[str, str] = {}

    def _done(self, name: str) -> bool:
        return self._state.fact(name) is not None

    # -- The sink's position

    def _first_position(self) -> str:
        token = self._token()
        if token is None:
            token = self._target.position()
        if token is None:
            raise invalid_request(
                "position",
                "is missing",
                "give --position: without it a difference cannot be distinguished from a change under way",
            )
        return token

    def _token(self) -> str | None:
        return self._position() if callable(self._position) else self._position

    def _next_position(self) -> str:
        token = self._token()
        if token is None:
            token = self._target.position()
        if token is None:
            raise invalid_request(
                "position", "has disappeared", "do not remove the sink's checkpoint meanwhile"
            )
        return token

    # -- Step 2: the rows and the changes

    def _follower(self, token: str, wanted: set[int] | None = None, seen: set[str] | None = None) -> Follower:
        """Follow the stream from a token; the changes and the token are kept together."""

        def keep(changes: list[Change], page: ChangeFeedPage) -> None:
            if seen is not None:
                seen.update(change[1] for change in changes)
            kept = changes if wanted is None else [each for each in changes if each[0] in wanted]
            with self._state.transaction():
                self._state.add_changes(kept)
                self._state.put("follow", page.continuation_token)
                self._state.add("changes", len(changes))
                self._charge(page)

        return Follower(self._source, token, keep, self._pause, self._patience, self._document_digest)

    def _charge(self, page: ChangeFeedPage) -> None:
        if page.diagnostics.native_charge is not None:
            self._state.put("charge", float(self._state.fact("charge") or 0) + page.diagnostics.native_charge)

    def _scan(self) -> None:
        """Read every row once, and follow the stream meanwhile, so that its position does not expire."""
        state, token = self._state, self._state.fact("scan")
        follower = self._follower(state.fact("follow") or "")
        keys, runs, count = list[bytes](), list[Rows](), 0
        has_own, flushed = self._facts.floor == ScanFloor.ROW, self._clock()
        first = None if state.number("rows") else dict[str, int]()

        def flush(page: ChangeFeedPage, *, is_last: bool = False) -> None:
            nonlocal flushed, count
            with state.transaction():
                if count:
                    state.add_run("source", np.concatenate(runs), b"\n".join(keys).split(b"\n"))
                state.put("scan", page.continuation_token)
                state.put("scanned", 1 if is_last else None)
                state.add("rows", self._told.rows - state.number("rows"))
                self._charge(page)
            keys.clear()
            runs.clear()
            count = 0
            self._largest = max(self._largest, state.size())
            flushed = self._clock()

        self._tell("scan", rows=state.number("rows"))
        assert token is not None
        page: ChangeFeedPage | None = None
        follow_at = 0.0
        for page in self._source.scan(token):
            texts = key_texts(page.events)
            values = self._document_digests([event.new_item_state for event in page.events])
            orders = [order_digest(event.order_key) for event in page.events] if has_own else 0
            rows = rows_of(digests_of(texts), values, orders)
            if first is not None:
                first |= zip((text.decode() for text in texts), values.tolist(), strict=True)
            if self._sample is not None:
                chosen = np.flatnonzero(rows["hash"] % self._sample == 0)
                rows, texts = rows[chosen], [texts[at] for at in chosen]
            if texts:
                # A text of orjson keeps more memory than it needs, so the texts of a page are put together.
                keys.append(b"\n".join(texts))
                runs.append(rows)
                count += len(texts)
            if page.events and not self._done("parts"):
                state.put("parts", page.events[0].key.partition_components)
            done = page.diagnostics.snapshot
            self._tell(
                "scan",
                rows=self._told.rows + len(page.events),
                records=None if done is None else done.records,
                segments_done=self._told.segments_done if done is None else done.segments_done,
                segments=self._told.segments if done is None else done.segments,
            )
            if first is not None and len(first) >= _FIRST:
                self._look_at_first(first, follower)
                first = None
            if count >= _RUN or self._clock() - flushed > _RUN_SECONDS:
                flush(page)
            if self._clock() >= follow_at:
                # A stream that is read faster than it grows is asked once a second.
                is_behind = len(follower.read().events) >= _BEHIND
                follow_at = self._clock() + (0.0 if is_behind else 1.0)
        assert page is not None, "a scan has at least one page"
        if first:
            self._look_at_first(first, follower)
        flush(page, is_last=True)

    def _look_at_first(self, first: Mapping[str, int], follower: Follower) -> None:
        """Stop early if the table is the copy of another collection."""
        if self._force or len(first) < FEWEST:
            return
        found: dict[str, int] = {}

        def read() -> None:
            for batch, digests in self._batches(list(first)):
                found.update(zip(batch.column("key").to_pylist(), digests.tolist(), strict=True))
                # The other files need not be read: what is wrong in them does not count here.
                if len(found) == len(first):
                    return

        self._retried(read)
        follower.catch_up()
        different = [key for key, value in first.items() if found.get(key) != value]
        changed = sum(bool(self._state.versions(digest(key.encode()), key)) for key in different)
        wrong, count = len(different) - changed, len(first) - changed
        if count >= FEWEST and 2 * wrong > count:
            raise self._looks_foreign(wrong, count)

    def _looks_foreign(self, wrong: int, count: int) -> MulticloudDbError:
        return invalid_request(
            "target",
            f"{self._target.name} differs from {self._source.address} in {wrong:,} of "
            f"{count:,} keys, so it looks like the table of another collection; nothing was repaired",
            "correct the collection or the table, or pass force=True",
        )

    # -- Step 3: the table

    def _document_digest(self, document: Mapping[str, Any] | None) -> int:
        return document_digest(own_values(document, self._transform))

    def _document_digests(self, documents: Sequence[Mapping[str, Any] | None]) -> Integers:
        return source_digests(documents, self._transform)

    def _batches(self, keys: Sequence[str] | None = None) -> Iterator[tuple[pa.RecordBatch, Integers]]:
        """Return each batch of the table with the digests of its rows."""
        for batch in self._target.rows(keys, own=self._transform is not None):
            yield batch, row_digests(batch)

    def _retried(self, read: Callable[[], None]) -> None:
        """Read the table, and again if its version was removed meanwhile."""
        until = self._clock() + self._patience
        while True:
            try:
                return read()
            except MulticloudDbError as error:
                if not error.retryable or self._clock() > until:
                    raise
                self._pause(0.2)

    def _first_ceiling(self) -> str | None:
        """Return the `order_key` above which a row has to be looked at, if there is one for all rows."""
        floor = self._state.fact("floor") or ""
        return {ScanFloor.HIGH: floor, ScanFloor.LOW: LOW_CEILING}.get(self._facts.floor)

    def _read_table(self) -> None:
        ceiling = self._first_ceiling()

        def read() -> None:
            state = self._state
            state.remove_runs("target")
            waiting, count = list[Any](), 0
            read = 0
            for batch, digests in self._batches():
                rows = target_rows(batch, digests, ceiling)
                if self._sample is not None:
                    rows = rows[rows["hash"] % self._sample == 0]
                waiting.append(rows)
                count += len(rows)
                read += batch.num_rows
                self._tell("table", target_rows=read)
                if count >= _RUN:
                    with state.transaction():
                        state.add_run("target", np.concatenate(waiting))
                    waiting, count = [], 0
            with state.transaction():
                if waiting:
                    state.add_run("target", np.concatenate(waiting))
                state.put("table", 1)
                state.put("target_rows", read)

        self._retried(read)
        self._largest = max(self._largest, self._state.size())

    def _rows_of(self, keys: Sequence[str]) -> Found:
        """Return the table's rows of some keys."""
        found = Found(seen={}, texts={})

        def read() -> None:
            found.seen.clear()
            for batch, digests in self._batches(keys):
                columns = (batch.column(name).to_pylist() for name in ("key", "order_key", "state"))
                for name, order, text, value in zip(*columns, digests.tolist(), strict=True):
                    found.seen.setdefault(name, []).append(Seen(order, value))
                    found.texts[name] = text

        self._retried(read)
        with self._state.transaction():
            self._state.add("target_rows", sum(map(len, found.seen.values())))
        return found

    def _look_up(self, keys: Sequence[str]) -> dict[str, Any]:
        found = self._source.look_up(keys, self._state.number("parts") or 1)
        with self._state.transaction():
            self._state.add("looked_up", sum(event is not None for event in found.values()))
        return found

    def _tell(self, phase: str, **fields: Any) -> None:
        self._told = attrs.evolve(self._told, phase=phase, **fields)
        if self._on_progress is not None:
            self._on_progress(self._told)


def own_values(document: Mapping[str, Any] | None, transform: Transform | None) -> Mapping[str, Any] | None:
    """Return what is compared of a document: with `transform`, its values that are not null."""
    if document is None or transform is None:
        return document
    return {name: value for name, value in transform(document).items() if value is not None}


def source_digests(
    documents: Sequence[Mapping[str, Any] | None], transform: Transform | None = None
) -> Integers:
    """Return the digests of documents of the source."""
    if transform is not None or None in documents:
        found = [document_digest(own_values(document, transform)) for document in documents]
        return np.array(found, dtype=np.int64)
    return digests_of(canonicals(documents))


def row_digests(batch: pa.RecordBatch) -> Integers:
    """Return the digests of rows of the table."""
    gone = batch.column("deleted").to_numpy(zero_copy_only=False).astype(bool)
    digests = np.full(batch.num_rows, GONE, dtype=np.int64)
    digests[~gone] = text_digests(batch.column("state").filter(pa.array(~gone)).to_pylist())
    return digests


def target_rows(batch: pa.RecordBatch, digests: Integers, ceiling: str | None) -> Rows:
    """Return rows of the table; the ones above the ceiling are marked."""
    orders = batch.column("order_key")
    hashes = digests_of(batch.column("key").cast(pa.binary()).to_pylist())
    marks = np.array(list(map(crc32, orders.cast(pa.binary()).to_pylist())), dtype=np.int64)
    marks = (marks & ORDER_MASK).astype(np.int32)
    if ceiling is not None:
        marks[pc.greater(orders, ceiling).to_numpy(zero_copy_only=False)] |= _SUSPECT
    return rows_of(hashes, digests, marks)


def order_digest(order_key: str) -> int:
    """Return the digest of an `order_key`, as `Rows` contain it."""
    return ORDER_MASK & crc32(order_key.encode())
