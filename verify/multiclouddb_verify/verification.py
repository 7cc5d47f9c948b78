"""`verify` proves that a table equals its source while both change, and repairs it.

1. Read K, the position that the sink has stored, before anything else: everything up to K is in the table, or
   the table is wrong.
2. Read each row of the source once, and the stream from K on.
3. Read one version of the table, and then the stream up to now. So each change of a key between K and the
   values that are compared has been seen.
4. Compare the digests. Most keys are equal. Judge all others one by one, in rounds: each round reads the next
   K, then the table's rows of these keys, and then the stream from the last K up to now.
5. A difference is confirmed if a further round finds it, at least `settle` seconds later.
6. Repair: read the rows of the confirmed differences again by key, write them where the table still contains
   what was judged, and judge these keys again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias
from zlib import crc32

import attrs
import numpy as np

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    MulticloudDbClient,
    MulticloudDbError,
    ProviderOptions,
    ResourceAddress,
    ScanFacts,
    ScanFloor,
    encode_json,
    invalid_request,
)
from multiclouddb_api.request import to_address
from multiclouddb_spi.continuation.token import decode_token, to_moment
from multiclouddb_verify.comparison import (
    GONE,
    Integers,
    Kind,
    Seen,
    Verdict,
    canonical,
    digest,
    digests_of,
    document_digest,
    first_difference,
    join,
    judge,
    text_digest,
)
from multiclouddb_verify.report import Cost, Counts, Difference, Progress, Report
from multiclouddb_verify.source import Change, Follower, Source, floor_of, key_text
from multiclouddb_verify.state import ORDER_BITS, Pending, Rows, State, default_folder, rows_of
from multiclouddb_verify.target import Fix, SupportsRecord, Target

__all__ = ["Position", "Transform", "Verification", "verify"]

Position: TypeAlias = str | Callable[[], str | None]
"""The token of the sink, or a function that returns the token that the sink has stored last."""
Transform: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A function that makes the values of the table's own columns from a document."""

_RUN: Final = 100_000
_RUN_SECONDS: Final = 10.0
_CHUNK: Final = 100_000
_FIRST: Final = 10_000
_FEWEST: Final = 1000
_SHOWN: Final = 10_000
_COMPARED: Final = 100
"""The number of differences of which the report names the first path that differs."""
_REPAIRS: Final = 5
_AT_ONCE: Final = 10_000
"""The number of rows that one commit repairs: a commit may have to write every file again."""
_BEHIND: Final = 100
_MASK: Final = (1 << ORDER_BITS) - 1
_AGAIN: Final = -1.0
"""Marks a key that was suspected, and has changed since."""
_SUSPECT: Final = np.int32(-(2**31))
_LOW_CEILING: Final = ":"
"""Sorts after each `order_key` that consists of digits, where the floor of a scan sorts before them all."""


def verify(
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    target: Target,
    *,
    position: Position | None = None,
    repair: bool = False,
    sample: int | None = None,
    max_scan_rate: float | None = None,
    state: str | os.PathLike[str] | None = None,
    patience_seconds: float = 600.0,
    max_repairs: int | None = None,
    force: bool = False,
    transform: Transform | None = None,
    show_values: bool = False,
    record: bool = False,
    provider_options: ProviderOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Compare a table with its collection while both change, and repair it on request.

    A key that has not changed since the sink's position must be equal, however long ago the position is. A
    key that has changed may have any of its versions since then. So there is no false alarm, provided that a
    change is in the stream `settle_seconds` after it is in the collection, and no difference is missed that
    exists at the start in a key that does not change meanwhile. The sink and the application keep running.
    Nothing is written to the source, and each of its rows is read once.

    What was read is kept in a folder. If the process is killed, the same call goes on there.

    Args:
        client: The client of the source.
        address: The collection, or its text.
        target: The table, for example `DeltaTarget(path)`.
        position: The position that the sink has stored: a token, or a function that returns the newest one,
            such as `stored_position(store, name)` or `spark_position(client, address, checkpoint)`. With a
            token, a key that changes after it can be found equal, but never different.
        repair: True to make each difference equal, while the sink runs. A row that the sink changes meanwhile
            stays as the sink wrote it.
        sample: N to compare about one of N keys, chosen by the hash of the key. All rows are read.
        max_scan_rate: The maximum rate of the scan, as in `Snapshot`.
        state: The folder for what was read; by default a folder in the user's cache, named after database,
            collection and table.
        patience_seconds: For how long no key may be settled before the rest counts as unsettled, and for how
            long a commit is tried again.
        max_repairs: The maximum number of rows to repair; by default 1 % of the rows, and at least 1,000. If
            there are more differences, nothing is repaired.
        force: True to repair any number of rows, and a table that looks like the copy of another collection.
        transform: For a table with columns of its own: a function that returns the values of these columns
            for a document. Then these columns are compared, and not `new_item_state`.
        show_values: True to name the values that differ; by default only their types.
        record: True to store in a commit of the table when it was proved equal, and through which position.
        provider_options: The options of the provider with which the sink reads.
        on_progress: Called from time to time with the progress.

    Returns:
        The report. The differences in it are those that are left.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if there is no position, if the table was not written by a sink,
            if more than half of the first 10,000 keys differ, or if the folder belongs to another comparison;
            `CHECKPOINT_EXPIRED` if the service does not keep the changes after the position any more;
            `NOT_FOUND` if there is no table; `CONFLICT` if another process uses the folder.
    """
    if not isinstance(target, Target):
        raise invalid_request("target", f"is a {type(target).__name__}", "pass DeltaTarget(path)")
    if sample is not None and sample < 2:
        raise invalid_request("sample", f"is {sample}", "give a number N from 2 on, to compare one of N keys")
    made = Verification(
        Source(client, to_address(address), provider_options, max_scan_rate), target, position,
        repair=repair, sample=sample, state=state, patience_seconds=patience_seconds, max_repairs=max_repairs,
        force=force, transform=transform, show_values=show_values, record=record, on_progress=on_progress,
    )  # fmt: skip
    return made.run()


@attrs.define(kw_only=True)
class _Found:
    """The rows of the target for some keys, from one version."""

    seen: dict[str, list[Seen]]
    texts: dict[str, str | None]


class Verification:
    """One comparison; see `verify`.

    Args:
        source: The collection.
        target: The table.
        position: See `verify`.
        pause: Waits for some seconds.
        clock: Returns the time in seconds.
        settings: The other arguments of `verify`.
    """

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

    def run(self) -> Report:
        """Compare, and repair if wanted."""
        began = self._clock()
        first = self._first_position()
        identity = {
            "database": repr(self._source.client.config),
            "collection": str(self._source.address),
            "table": self._target.name,
            "sample": str(self._sample or 1),
            "form": "own columns" if self._transform else "documents",
        }
        folder = default_folder(identity) if self._folder is None else Path(os.fspath(self._folder))
        self._state = State(folder, identity)
        try:
            report = self._resumed(first, began)
        except BaseException:
            self._state.close()
            raise
        self._state.remove()
        return report

    def _resumed(self, first: str, began: float) -> Report:
        resumes = self._state.fact("k") is not None
        try:
            return self._compare(first, began)
        except MulticloudDbError as error:
            # The stored position is the one at which this comparison was killed. The sink's own may be newer.
            if error.category != ErrorCategory.CHECKPOINT_EXPIRED or not resumes:
                raise
        self._state.begin_again()
        return self._compare(first, began)

    def _compare(self, first: str, began: float) -> Report:
        self._begin(first)
        if not self._done("scanned"):
            self._scan()
        if not self._done("table"):
            self._read_table()
        if not self._done("joined"):
            self._join()
        self._rounds()
        if self._repair:
            self._repair_all()
        report = self._report(began)
        if self._record and report.equal and isinstance(self._target, SupportsRecord):
            at = datetime.now(UTC).isoformat()
            self._target.record({"multiclouddb.verified_at": at, "multiclouddb.verified_through": first})
        return report

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

    def _begin(self, first: str) -> None:
        """Store K and begin the scan; the position is tried before anything is read."""
        if self._state.fact("k") is not None:
            return
        try:
            page = self._source.changes(first)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.CHECKPOINT_EXPIRED:
                raise
            raise MulticloudDbError(
                f"position: {error.message}; restart the sink with SkipToOldest() (in Spark "
                "failOnDataLoss=false) first, then run verify with repair",
                error.detail,
            ) from error
        if page.diagnostics.snapshot is not None:
            raise invalid_request(
                "position",
                "is inside the sink's own snapshot, so nobody knows what the table has to contain",
                "wait until the sink has passed BackfillDone",
            )
        # The table is looked at before the source is read, because it may be none.
        for _ in self._target.rows([], own=self._transform is not None):
            break
        if self._repair and self._transform is None:
            self._target.fix(())
        begun = self._source.first_page()
        until = decode_token(first).read_until
        with self._state.transaction():
            for name, value in {
                "k": first,
                "at": None if until is None else to_moment(until.micros).isoformat(),
                "follow": first,
                "floor": floor_of(begun),
                "scan": begun.continuation_token,
            }.items():
                self._state.put(name, value)

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
            texts = [key_text(event.key.components) for event in page.events]
            values = self._document_digests([event.new_item_state for event in page.events])
            orders = [_order(event.order_key) for event in page.events] if has_own else 0
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
        if self._force or len(first) < _FEWEST:
            return
        found = self._rows_of(list(first)).seen
        follower.catch_up()
        wrong = count = 0
        for key, value in first.items():
            rows = found.get(key, [])
            is_wrong = not (len(rows) == 1 and rows[0].digest == value)
            if is_wrong and self._state.versions(digest(key.encode()), key):
                continue
            count += 1
            wrong += is_wrong
        if count >= _FEWEST and 2 * wrong > count:
            raise invalid_request(
                "target",
                f"{self._target.name} differs from {self._source.address} in {wrong:,} of the first "
                f"{count:,} keys, so it looks like the table of another collection; nothing was repaired",
                "correct the collection or the table, or pass force=True",
            )

    # -- Step 3: the table

    def _document_digest(self, document: Mapping[str, Any] | None) -> int:
        if document is not None and self._transform is not None:
            return document_digest(self._own(self._transform(document)))
        return document_digest(document)

    def _document_digests(self, documents: Sequence[Mapping[str, Any] | None]) -> Integers:
        if self._transform is not None or None in documents:
            return np.array(list(map(self._document_digest, documents)), dtype=np.int64)
        return digests_of(map(canonical, documents))

    def _own(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a table's own columns, without those that are null."""
        return {name: value for name, value in values.items() if value is not None}

    def _batches(
        self, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], list[str], list[int], list[str | None]]]:
        """Return of each batch of the table keys, order keys, digests and texts."""
        for batch in self._target.rows(keys, own=self._transform is not None):
            names, orders, states, gone = (
                batch.column(name).to_pylist() for name in ("key", "order_key", "state", "deleted")
            )
            digests = [
                GONE if deleted else text_digest(text) for text, deleted in zip(states, gone, strict=True)
            ]
            yield names, orders, digests, states

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

    def _read_table(self) -> None:
        floor = self._state.fact("floor") or ""
        ceiling = {ScanFloor.HIGH: floor, ScanFloor.LOW: _LOW_CEILING}.get(self._facts.floor)

        def read() -> None:
            state = self._state
            state.remove_runs("target")
            waiting, count = list[Any](), 0
            read = 0
            for names, orders, digests, _ in self._batches():
                hashes = digests_of([name.encode() for name in names])
                marks = np.fromiter(map(_order, orders), dtype=np.int32, count=len(names))
                if ceiling is not None:
                    above = np.fromiter((order > ceiling for order in orders), dtype=bool, count=len(names))
                    marks[above] |= _SUSPECT
                rows = rows_of(hashes, digests, marks)
                if self._sample is not None:
                    rows = rows[rows["hash"] % self._sample == 0]
                waiting.append(rows)
                count += len(rows)
                read += len(names)
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

    def _rows_of(self, keys: Sequence[str]) -> _Found:
        """Return the table's rows of some keys."""
        found = _Found(seen={}, texts={})

        def read() -> None:
            found.seen.clear()
            for names, orders, digests, texts in self._batches(keys):
                for name, order, value, text in zip(names, orders, digests, texts, strict=True):
                    found.seen.setdefault(name, []).append(Seen(order, value))
                    found.texts[name] = text

        self._retried(read)
        with self._state.transaction():
            self._state.add("target_rows", sum(map(len, found.seen.values())))
        return found

    # -- Step 4: the comparison

    def _join(self) -> None:
        """Compare all digests, and store the keys that have to be judged one by one."""
        state = self._state
        # The first round follows the stream from here on, because everything up to here has been read then.
        window = self._next_position()
        self._follower(state.fact("follow") or "").catch_up()
        with state.transaction():
            state.clear_pending()
            state.put("window", window)
        equal, unnamed = 0, list[np.ndarray[Any, Any]]()
        self._tell("compare")
        for part in state.ranges():
            changes: dict[int, list[Change]] = {}
            for change in state.changes_between(part.low, part.high):
                if self._sample is None or change[0] % self._sample == 0:
                    changes.setdefault(change[0], []).append(change)
            source, target = part.source, part.target
            suspects = target["order"] < 0
            if self._facts.floor == ScanFloor.ROW:
                suspects = self._foreign(source, target)
            result = join(
                (source["hash"], source["digest"]), (target["hash"], target["digest"]), suspects, changes
            )
            equal += result.equal
            wanted = result.rest
            matched = np.zeros(len(wanted), dtype=bool)
            keys, settled = self._settled(part, changes)
            equal += settled
            with state.transaction():
                inside = np.flatnonzero(np.isin(source["hash"], wanted))
                texts = part.source_keys(inside)
                named = {text: int(source["digest"][at]) for text, at in zip(texts, inside, strict=True)}
                for change in (each for group in changes.values() for each in group):
                    named.setdefault(change[1], GONE)
                moved = {change[1] for group in changes.values() for change in group}
                left = {text: value for text, value in named.items() if text not in keys}
                state.add_pending(each for each in left.items() if each[0] in moved)
                # A key that has not changed was judged here for the first time.
                still = (each for each in left.items() if each[0] not in moved)
                state.add_pending(still, suspected_at=self._clock())
            matched = np.isin(wanted, source["hash"]) | np.isin(
                wanted, np.fromiter(changes, np.int64, len(changes))
            )
            unnamed.append(wanted[~matched])
        # Only the table has these keys, so only the table has their texts.
        self._name(np.sort(np.concatenate([np.empty(0, dtype=np.int64), *unnamed])))
        with state.transaction():
            state.put("equal", equal)
            state.put("joined", 1)

    def _settled(self, part: Any, changes: Mapping[int, list[Change]]) -> tuple[set[str], int]:
        """Return the changed keys whose rows have one of their versions, and the number of documents."""
        if not changes:
            return set(), 0
        moved = np.fromiter(changes, dtype=np.int64, count=len(changes))
        rows = part.target[np.isin(part.target["hash"], moved)]
        found: dict[int, list[tuple[int, int]]] = {}
        for row in rows.tolist():
            found.setdefault(row[0], []).append((row[1], row[2]))
        keys, documents = set[str](), 0
        for hashed, group in changes.items():
            rows_here = found.get(hashed, [])
            if len(rows_here) != 1 or len({change[1] for change in group}) != 1:
                continue
            value, mark = rows_here[0]
            mark &= _MASK
            if any(change[3] == value and _order(change[2]) == mark for change in group):
                keys.add(group[0][1])
                documents += value != GONE
        return keys, documents

    def _foreign(self, source: Any, target: Any) -> np.ndarray[Any, Any]:
        """Mark rows of the target whose `order_key` is not that of the source's row."""
        if not len(source):
            return np.zeros(len(target), dtype=bool)
        order = np.argsort(source["hash"], kind="stable")
        at = np.searchsorted(source["hash"][order], target["hash"])
        at = order[np.minimum(at, len(order) - 1)]
        same = (source["hash"][at] == target["hash"]) & (source["order"][at] != target["order"])
        return np.asarray(same)

    def _name(self, hashes: np.ndarray[Any, Any]) -> None:
        """Find the texts of keys in the table by their hashes."""
        if not len(hashes):
            return

        def read() -> None:
            for names, _, _, _ in self._batches():
                hashed = digests_of([name.encode() for name in names])
                found = {names[at] for at in np.flatnonzero(np.isin(hashed, hashes))}
                with self._state.transaction():
                    still = ((name, GONE) for name in found)
                    self._state.add_pending(still, suspected_at=self._clock())

        self._retried(read)

    def _rounds(self) -> None:
        """Judge keys until none is left, or none has been settled for `patience_seconds`."""
        self._settled_at, wait = self._clock(), 0.0
        while left := self._state.pending_count():
            self._tell("rounds", left=left)
            next_at, is_new = self._round()
            count = self._state.pending_count()
            if is_new:
                self._settled_at, wait = self._clock(), 0.0
            elif self._clock() - self._settled_at > max(self._patience, 0.0):
                return
            if count:
                wait = min(2 * wait or 0.05, 5.0)
                self._pause(max(wait if next_at is None else next_at - self._clock(), 0.0))

    def _round(self) -> tuple[float | None, bool]:
        """Judge all keys once.

        Return when all differences can be confirmed, if every key is suspected, and whether anything is new.
        """
        state, settle = self._state, self._facts.settle_seconds
        state.add("rounds", 1)
        # 1. The window begins at the K of the round before: everything up to it was read before, and the rows
        #    contain everything up to the new K.
        token, window = self._next_position(), state.fact("window") or ""
        hashes = {digest(key.encode()) for key in state.judged()}
        waits, is_new, confirms = False, False, list[float]()
        for chunk in self._chunks():
            found = self._rows_of([key for key, *_ in chunk]).seen
            ceiling, own = self._ceiling(chunk, found), self._own_orders(chunk, found)
            # 2. The window reaches at least as far as the rows that are compared.
            moved = set[str]()
            self._follower(window, hashes, moved).catch_up()
            now = self._clock()
            settled, suspected, confirmed = list[str](), list[tuple[str | None, float, str]](), []
            equal = 0
            for key, scanned, kind, since in chunk:
                rows = found.get(key, [])
                verdict = judge(
                    rows, state.versions(digest(key.encode()), key), scanned, moved=key in moved,
                    ceiling=ceiling, own=own.get(key), exact=self._facts.floor != ScanFloor.HIGH,
                )  # fmt: skip
                if verdict is Verdict.EQUAL:
                    settled.append(key)
                    equal += any(row.digest != GONE for row in rows)
                elif verdict is Verdict.WAIT:
                    waits = True
                    if kind is not None:
                        suspected.append((None, _AGAIN, key))
                elif kind is None:
                    is_new = is_new or since != _AGAIN
                    suspected.append((verdict.value, now, key))
                    confirms.append(now + settle)
                elif now - since >= settle:
                    confirmed.append((key, Kind(verdict.value), [row.order_key for row in rows]))
                else:
                    confirms.append(since + settle)
            is_new = is_new or bool(settled or confirmed)
            with state.transaction():
                state.settle(settled)
                state.suspect(suspected)
                state.confirm(confirmed)
                state.add("equal", equal)
        state.put("window", token)
        return (None if waits or not confirms else max(confirms)), is_new

    def _ceiling(self, chunk: Sequence[Pending], found: Mapping[str, list[Seen]]) -> str | None:
        """Return an `order_key` above that of each change before the rows were read, if there is one."""
        match self._facts.floor:
            case ScanFloor.LOW:
                return _LOW_CEILING
            case ScanFloor.HIGH:
                floor = self._state.fact("floor") or ""
                if all(row.order_key <= floor for key, *_ in chunk for row in found.get(key, [])):
                    return floor
                return self._source.floor()
            case _:
                return None

    def _chunks(self) -> Iterator[list[Pending]]:
        after = ""
        while chunk := self._state.pending(after, _CHUNK):
            after = chunk[-1][0]
            yield chunk

    def _own_orders(self, chunk: Sequence[Pending], found: Mapping[str, list[Seen]]) -> dict[str, str]:
        """Read the `order_key` of rows that have their own, where it decides whether the row is blocked."""
        if self._facts.floor != ScanFloor.ROW:
            return {}
        asked = [
            key
            for key, scanned, _, _ in chunk
            if key not in self._own_known and [row.digest for row in found.get(key, [])] == [scanned]
        ]
        # What was looked up once stays true: a later change of the key is one of its versions.
        for key, event in (self._look_up(asked) if asked else {}).items():
            self._own_known[key] = "" if event is None else event.order_key
        return {key: order for key, order in self._own_known.items() if order}

    def _look_up(self, keys: Sequence[str]) -> dict[str, Any]:
        found = self._source.look_up(keys, self._state.number("parts") or 1)
        with self._state.transaction():
            self._state.add("looked_up", sum(event is not None for event in found.values()))
        return found

    # -- Step 6: the repair

    def _repair_all(self) -> None:
        count = sum(self._state.kinds().values())
        most = (
            self._max_repairs
            if self._max_repairs is not None
            else max(1000, self._state.number("rows") // 100)
        )
        if count > most and not self._force:
            self._refused = (
                f"max_repairs: there are {count:,} differences, and at most {most:,} rows are repaired; look "
                "at them first, then pass max_repairs= or force=True"
            )
            return
        for _ in range(_REPAIRS):
            if not self._state.kinds():
                return
            after = ""
            while chunk := self._state.differences(after, _AT_ONCE):
                after = chunk[-1][0]
                self._tell("repair", left=sum(self._state.kinds().values()))
                self._fix(chunk)
            self._rounds()

    def _fix(self, chunk: Sequence[tuple[str, Kind, tuple[str, ...]]]) -> None:
        """Write the rows of the source, and judge their keys again."""
        # The floor is read before the rows, so that they contain every change below it.
        match self._facts.floor:
            case ScanFloor.HIGH:
                floor = self._source.floor()
            case ScanFloor.LOW:
                floor = self._state.fact("floor") or ""
            case _:
                floor = ""
        events = self._look_up([key for key, _, _ in chunk])
        now, fixes, pending = datetime.now(UTC), list[Fix](), list[tuple[str, int]]()
        for key, kind, orders in chunk:
            event = events[key]
            document = None if event is None else event.new_item_state
            own = floor if event is None or self._facts.floor != ScanFloor.ROW else event.order_key
            self._own_known[key] = own
            # Only a blocked row may get a lower `order_key`.
            order = own if kind is Kind.BLOCKED else max(own, *orders) if orders else own
            text = None if document is None else encode_json(document).decode()
            columns = None
            if document is not None and self._transform is not None:
                columns = self._transform(document)
            fixes.append(Fix(key, orders, order, text, columns, now))
            pending.append((key, self._document_digest(document)))
        self._target.fix(fixes)
        with self._state.transaction():
            self._state.repaired(key for key, _, _ in chunk)
            self._state.add_pending(pending)

    # -- The report

    def _report(self, began: float) -> Report:
        state = self._state
        left = state.kinds()
        unsettled = state.pending_count()
        equal = not left and not unsettled
        at = state.fact("at")
        charge = state.fact("charge")
        repaired = state.kinds(repaired=True)
        sample = None
        if self._sample is not None:
            sample = (
                f"1/{self._sample} of the keys were compared; a difference in one key alone is found with a "
                f"probability of 1/{self._sample}"
            )
        return Report(
            equal=equal,
            verified_through=state.fact("k") if equal and self._sample is None else None,
            verified_at=None if at is None or not equal else datetime.fromisoformat(at),
            counts=Counts(
                equal=state.number("equal"),
                unsettled=unsettled,
                repaired=sum(repaired.values()),
                differences=left,
            ),
            differences=self._described(),
            repaired=tuple(
                Difference(kind, key, max(orders, default=None))
                for key, kind, orders in state.differences(most=_SHOWN, repaired=True)
            ),
            unsettled=tuple(key for key, *_ in state.pending("", _SHOWN)),
            cost=Cost(
                rows=state.number("rows"),
                looked_up=state.number("looked_up"),
                changes=state.number("changes"),
                target_rows=state.number("target_rows"),
                rounds=state.number("rounds"),
                native_charge=None if charge is None else float(charge),
                state_bytes=max(self._largest, state.size()),
                seconds=self._clock() - began,
            ),
            settle_seconds=self._facts.settle_seconds,
            refused=self._refused,
            sample=sample,
        )

    def _described(self) -> tuple[Difference, ...]:
        """Return the differences that are left, the first ones with the path at which they differ."""
        found = self._state.differences(most=_SHOWN)
        stale = [key for key, kind, _ in found if kind is Kind.STALE][:_COMPARED]
        compared: dict[str, tuple[str, Any, Any]] = {}
        if stale:
            events, texts = self._look_up(stale), self._rows_of(stale).texts
            for key in stale:
                event, text = events[key], texts.get(key)
                if event is None or text is None:
                    continue
                with suppress(MulticloudDbError):
                    ours: Any = event.new_item_state
                    if self._transform is not None and ours is not None:
                        ours = self._own(self._transform(ours))
                    if where := first_difference(ours, _decoded(text)):
                        compared[key] = where
        return tuple(self._difference(key, kind, orders, compared.get(key)) for key, kind, orders in found)

    def _difference(
        self, key: str, kind: Kind, orders: Sequence[str], where: tuple[str, Any, Any] | None
    ) -> Difference:
        order = max(orders, default=None)
        if where is None:
            return Difference(kind, key, order)
        path, ours, theirs = where
        values = (ours, theirs) if self._show_values else (None, None)
        return Difference(kind, key, order, path, type(ours).__name__, type(theirs).__name__, *values)

    def _tell(self, phase: str, **fields: Any) -> None:
        self._told = attrs.evolve(self._told, phase=phase, **fields)
        if self._on_progress is not None:
            self._on_progress(self._told)


def _decoded(text: str) -> Any:
    from multiclouddb_api import decode_json

    return decode_json(text)


def _order(order_key: str) -> int:
    return _MASK & crc32(order_key.encode())
