"""Reads both sides of a comparison: the rows, the stream from the sink's position on, and the table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedPage,
    ErrorReason,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    ScanFacts,
    ScanFloor,
    decode_json,
    encode_json,
    invalid_request,
)
from multiclouddb_spi.token_report import is_in_snapshot
from multiclouddb_tables.column_values import ColumnType
from multiclouddb_tables.contract import Own, SupportsHeld, SupportsLeftOut, Target
from multiclouddb_tables.layout import GROUP_BYTES
from multiclouddb_tables.mark import Expected, FeedSource, TableMark
from multiclouddb_tables.rules import DOCUMENT
from multiclouddb_verify.chosen import chosen_by
from multiclouddb_verify.comparison import (
    DifferenceKind,
    Seen,
    places_in,
)
from multiclouddb_verify.digests import order_digests, row_digests, source_digests, target_rows
from multiclouddb_verify.own_columns import DeclaredColumns, OwnColumns
from multiclouddb_verify.report import Progress
from multiclouddb_verify.runs import Rows, rows_of
from multiclouddb_verify.source import (
    NONE_OF_ITS_OWN,
    Answer,
    Change,
    Follower,
    Listener,
    Respelt,
    Source,
    key_texts,
    skipped_on,
)
from multiclouddb_verify.state import Confirmed, State
from multiclouddb_verify.texts import Integers, Lines, column_digests

__all__ = [
    "ANOTHER_TEXT",
    "FEWEST",
    "FoundRows",
    "Position",
    "Sides",
    "Transform",
]

Position: TypeAlias = str | Callable[[], str | None]
"""The sink's token, or a function that returns the token that the sink has stored last."""
Transform: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A function from a document to the values of the table's own columns, by name."""
_LOG: Final = logging.getLogger("multiclouddb.verify")
_RUN: Final = 100_000
_RUN_SECONDS: Final = 10.0
_FOLD: Final = 1_000_000
"""The number of changes after which those that later ones have replaced are removed, with `folds`."""
FEWEST: Final = 20
"""The number of keys from which on a table may look like that of another collection."""
_BEHIND: Final = 100
_LISTEN_SECONDS: Final = 0.5
"""How long a wait may be of which nobody is told."""
_SILENT_SECONDS: Final = 3.0
"""How long the table may fail before a warning; then there is one every `_AGAIN_SECONDS`."""
_AGAIN_SECONDS: Final = 30.0
_BATCH: Final = 8192
ANOTHER_TEXT: Final = "the source answered with a key that a sink writes as another text"


@attrs.define(kw_only=True)
class FoundRows:
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
        listen: See `Verification`.
        settings: The other arguments of `verify`.
    """

    state: State
    """Set before anything else is called."""
    folds: bool
    """True if K will be moved to a later position after the scan, so that of the changes until then only the
    last one of each key is needed."""
    expected: Expected
    """The table that is compared; set when it is first looked at."""

    def __init__(
        self,
        source: Source,
        target: Target,
        position: Position | None,
        *,
        pause: Callable[[float], None],
        clock: Callable[[], float],
        listen: Callable[[], None] | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.source = attrs.evolve(source, listener=Listener(self.listen))
        self.target, self._position = target, position
        self._pause, self.clock, self._listen = pause, clock, listen
        self.chosen = chosen_by(settings)
        self.unread: Mapping[str, str] = {}
        """The chosen keys of which the source does not say what it has, with the reasons."""
        self.present: Set[str] = frozenset()
        """The chosen keys that the source has, or may have."""
        self.patience: float = settings.get("patience_seconds", 600.0)
        self.force: bool = settings.get("force", False)
        self._adopts: bool = settings.get("adopt", False)
        self.is_adopted = False
        self.transform: Transform | None = settings.get("transform")
        self.columns: OwnColumns | DeclaredColumns | None = None
        self.not_compared: tuple[str, ...] = ()
        self.held: Callable[[Any], Any] | None = None
        self._on_progress: Callable[[Progress], None] | None = settings.get("on_progress")
        self.facts: ScanFacts = source.facts
        self._told = Progress("scan")
        self._has_told = False
        self.largest = 0
        self.folds = False

    def pause(self, seconds: float) -> None:
        """Wait; who listens is called meanwhile, and may end the comparison by an error."""
        listens = self._listen is not None or self._on_progress is not None
        while listens and seconds > _LISTEN_SECONDS:
            self._pause(_LISTEN_SECONDS)
            seconds -= _LISTEN_SECONDS
            self.listen()
        self._pause(seconds)
        self.listen()

    def done(self, name: str) -> bool:
        """Return whether a step is complete."""
        return self.state.fact(name) is not None

    # -- The sink's position

    def first_position(self) -> str:
        """Return the position that the sink has stored."""
        token = self._token()
        if token is None:
            token = self.target.position()
        if token is None:
            raise invalid_request(
                "position",
                "is missing",
                "give --position: without it a difference cannot be distinguished from a change under way",
            )
        return token

    def _token(self) -> str | None:
        return self._position() if callable(self._position) else self._position

    def next_position(self) -> str:
        """Return the newest position of the sink from which changes alone follow."""
        token = self._token()
        if token is None:
            token = self.target.position()
        if token is None:
            raise invalid_request(
                "position", "has disappeared", "do not remove the sink's checkpoint meanwhile"
            )
        if is_in_snapshot(token):
            # The sink has begun a snapshot. What an earlier position proves is still right.
            return self.state.fact("window") or self.state.fact("k") or token
        return token

    # -- Step 2: the rows and the changes

    def follower(self, token: str, wanted: Integers | None = None, seen: set[str] | None = None) -> Follower:
        """Follow the stream from a token; the changes and the token are kept together.

        Args:
            token: The position.
            wanted: The hashes of the keys of which changes are kept, in ascending order; None for all.
            seen: Gets the keys of the changes that are kept.
        """

        def keep(changes: list[Change], page: ChangeFeedPage) -> None:
            kept = changes
            if changes and (wanted is not None or self.chosen.is_part):
                hashes = np.fromiter((change[0] for change in changes), np.int64, len(changes))
                mask = self.chosen.of([change[1] for change in changes], hashes)
                if wanted is not None:
                    mask &= places_in(wanted, hashes)[1]
                kept = [changes[at] for at in np.flatnonzero(mask)]
            if seen is not None:
                seen.update(change[1] for change in kept)
            with self.state.transaction():
                self._keep_parts([event.key for event in page.events[:1]])
                self.state.add_changes(kept, self.clock())
                self.state.leave_out(skipped_on(page), are_changes=True)
                # A later comparison goes on where all changes were kept, not only those of some keys.
                self.state.put("follow" if wanted is None else "judged", page.continuation_token)
                self.state.add("changes", len(changes))
                self._charge(page.diagnostics.native_charge)

        return Follower(self.source, token, keep, self.pause, self.patience, self.digests)

    def _charge(self, *charges: float | None) -> None:
        if known := [each for each in charges if each is not None]:
            self.state.put("charge", float(self.state.fact("charge") or 0) + sum(known))

    def read_keys(self) -> None:
        """Read the rows of the keys that the caller has named, instead of all."""
        events, unread, texts = list[ChangeEvent](), dict[str, str](), set[str]()
        for answers in self.look_up(sorted(self.chosen.texts)):
            for text, answer in answers.items():
                event = answer
                if isinstance(answer, NotKnown):
                    if answer.reason.startswith(NONE_OF_ITS_OWN):
                        raise invalid_request(
                            "keys",
                            f"contains a key that the source cannot have ({answer.reason})",
                            "give each key as event.key has it, with its components in the same order",
                        )
                    unread[text] = answer.reason
                elif isinstance(answer, Respelt):
                    text, event = answer.text, answer.event
                texts.add(text)
                if isinstance(event, ChangeEvent):
                    events.append(event)
        self.chosen.texts, self.unread = frozenset(texts), unread
        if self.facts.floor is ScanFloor.ROW:
            events = self._scanned(texts)
        lines = key_texts(events)
        self.present = {*unread, *(text.decode() for text in lines.texts())}
        orders = order_digests([event.order_key for event in events])
        with self.state.transaction():
            if events:
                self.state.add_run("source", rows_of(lines.digests(), self.digests(events), orders), lines)
            self.state.put("scanned", 1)

    def _scanned(self, texts: Collection[str]) -> list[ChangeEvent]:
        """Scan the partition keys of the chosen keys, and return the rows of these keys.

        Where each row has its own `order_key`, as on Cosmos DB, a look-up may lack the newest writes. The
        difference that it then shows would not be there, and the repair, which is another look-up, could
        replace a row with an older one.
        """
        parts, events = self.state.number("parts") or 1, list[ChangeEvent]()
        keys = {text: MulticloudDbKey(decode_json(text), parts) for text in texts}
        for name in {encode_json(key.partition_key): key.partition_key for key in keys.values()}.values():
            source = attrs.evolve(self.source, partition_key=MulticloudDbKey(name, len(name)))
            for page in source.scan(source.first_page().continuation_token):
                found = key_texts(page.events).texts()
                events += [
                    each for each, text in zip(page.events, found, strict=True) if text.decode() in keys
                ]
                with self.state.transaction():
                    self.state.leave_out(skipped_on(page))
                    self.state.add("rows", len(page.events))
                    self._charge(page.diagnostics.native_charge)
        return events

    def scan(self) -> None:
        """Read every row once, and follow the stream meanwhile, so that its position does not expire."""
        state, token = self.state, self.state.fact("scan")
        follower = self.follower(state.fact("follow") or "")
        keys, runs, charges, count = list[Lines](), list[Rows](), list[float | None](), 0
        has_own, began = self.facts.floor == ScanFloor.ROW, self.clock()
        skipped = list[tuple[str, str]]()
        flushed, fold_at = began, state.number("changes") + _FOLD

        def flush(page: ChangeFeedPage, *, is_last: bool = False) -> None:
            nonlocal flushed, count, fold_at
            with state.transaction():
                if count:
                    state.add_run("source", np.concatenate(runs), Lines.joined(keys))
                state.leave_out(skipped)
                skipped.clear()
                state.put("scan", page.continuation_token)
                state.put("scanned", 1 if is_last else None)
                state.add("rows", self._told.rows - state.number("rows"))
                self._charge(*charges)
                if self.folds and state.number("changes") >= fold_at:
                    state.age_changes()
                    fold_at = state.number("changes") + max(_FOLD, state.fold_changes())
            keys.clear()
            runs.clear()
            charges.clear()
            count = 0
            self.largest = max(self.largest, state.size())
            flushed = self.clock()

        self.tell("scan", rows=state.number("rows"))
        assert token is not None
        kept: ChangeFeedPage | None = None
        follow_at = 0.0
        try:
            for page in self.source.scan(token):
                events: Sequence[ChangeEvent] = page.events
                texts = key_texts(events)
                hashes = texts.digests()
                if self.chosen.sample is not None:
                    chosen = np.flatnonzero(hashes % self.chosen.sample == 0)
                    events, hashes, texts = (
                        [events[at] for at in chosen.tolist()],
                        hashes[chosen],
                        texts.take(chosen),
                    )
                values = self.digests(events)
                orders = order_digests([event.order_key for event in events]) if has_own else 0
                rows = rows_of(hashes, values, orders)
                if len(texts):
                    keys.append(texts)
                    runs.append(rows)
                    count += len(texts)
                skipped += skipped_on(page)
                charges.append(page.diagnostics.native_charge)
                kept, done = page, page.diagnostics.snapshot
                self.tell(
                    "scan",
                    rows=self._told.rows + len(page.events),
                    records=None if done is None else done.records,
                    segments_done=self._told.segments_done if done is None else done.segments_done,
                    segments=self._told.segments if done is None else done.segments,
                )
                self._keep_parts([event.key for event in page.events[:1]])
                # A scan that takes a day is not kept in ten thousand files.
                wait = max(_RUN_SECONDS, (self.clock() - began) / 100)
                if count >= _RUN or self.clock() - flushed > wait:
                    flush(page)
                if self.clock() >= follow_at:
                    # A stream that is read faster than it grows is asked once a second.
                    is_behind = len(follower.read().events) >= _BEHIND
                    follow_at = self.clock() + (0.0 if is_behind else 1.0)
        except MulticloudDbError:
            # What was read is not read again when the service answers again.
            if kept is not None:
                flush(kept)
            raise
        assert kept is not None, "a scan has at least one page"
        flush(kept, is_last=True)

    def expect(self, source: FeedSource) -> TableMark | None:
        """Look at the table; refuse that of another feed, and one without a mark that was not adopted.

        Args:
            source: The feed whose changes the table has to contain.

        Returns:
            The mark of the table; None if it has none and was adopted.
        """
        found, where = self.target.found(), self.target.name
        self.expected, mark = Expected(source, found), found.mark
        if mark is None:
            if not self._adopts:
                raise invalid_request(
                    "target",
                    f"{where} has no mark of a sink, so nothing says that it is the table of {source}",
                    "let the sink merge a batch, which marks the table; or, if you know that it is, pass "
                    "adopt=True (--adopt)",
                    ErrorReason.WRONG_RESOURCE,
                )
            self.is_adopted = True
            return None
        if not mark.source.may_be(source):
            if (mark.provider, mark.address) == (source.provider, source.address):
                problem = f"was filled from {source} before that was dropped and created again"
                reason = ErrorReason.RECREATED
            else:
                problem = f"is the table of {mark.source}, and not of {source}"
                reason = ErrorReason.WRONG_RESOURCE
            way_out = "correct the collection or the table"
            raise invalid_request("target", f"{where} {problem}", way_out, reason)
        return mark

    def check_table(self) -> None:
        """Refuse a table that is another one than at the beginning, or that went back since.

        What was read before is no longer in it, so there is no verdict. Each write checks the same again in
        its own step.
        """
        now = self.target.found(self.expected.found)
        self.expected.check(now, self.target.name)
        self.expected = attrs.evolve(
            self.expected, found=attrs.evolve(self.expected.found, version=now.version)
        )

    def check_foreign(self, wrong: int, count: int) -> None:
        """Stop if a table without a mark, which was adopted, looks like the copy of another collection.

        Args:
            wrong: The number of keys that have not changed and differ; only one side may have them.
            count: The number of keys that have not changed.
        """
        if not self.is_adopted or self.force or count < FEWEST or 2 * wrong <= count:
            return
        raise invalid_request(
            "target",
            f"{self.target.name} differs from {self.source.address} in {wrong:,} of "
            f"{count:,} keys, so it looks like the table of another collection; nothing was repaired",
            "correct the collection or the table, or pass force=True",
        )

    # -- Step 3: the table

    @property
    def own(self) -> Own:
        """The columns of the table that are compared; False for the document."""
        return False if self.columns is None else self.columns.names

    def columns_of(self, key: str, document: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the values of the table's own columns for a document; None if none of them is compared."""
        return None if self.columns is None else self.columns.values(key, document)

    def look_at_columns(self) -> None:
        """Find out which columns are compared: those of the mark, those of `transform`, or the document."""
        mark = self.expected.found.mark
        declared = None if mark is None else mark.declared
        known = self.target.columns()
        if declared is not None:
            if self.transform is not None:
                raise invalid_request(
                    "transform",
                    f"is given, but {self.target.name} has declared columns, which are compared without it",
                    "leave transform out",
                )
            self.columns = DeclaredColumns.of(declared, self.target.name, known, self.target)
        elif self.transform is not None:
            self.columns = self._transformed(self.transform, known)
        elif isinstance(self.target, SupportsHeld):
            self.held = self.target.held()
        compared = () if self.columns is None else self.columns.names
        others = [name for name in known if name not in compared]
        is_beside = isinstance(self.columns, OwnColumns) and mark is not None and DOCUMENT in mark.columns
        self.not_compared = (*others, *([DOCUMENT] if is_beside else []))

    def _transformed(self, transform: Transform, known: Mapping[str, ColumnType]) -> OwnColumns:
        """Return the columns that a function fills."""
        if not isinstance(transform, OwnColumns):
            documents = self.source.first_documents()
            if not documents:
                known = {name: kind for name, kind in known.items() if name in self._sinks_own_columns()}
            return OwnColumns.of(transform, self.target.name, known, documents)
        return transform

    def _sinks_own_columns(self) -> Sequence[str]:
        """Return the columns of the sink: an empty collection does not say which ones `transform` fills."""
        mark = self.expected.found.mark
        if mark is None:
            raise invalid_request(
                "transform",
                f"cannot be asked which columns of {self.target.name} it fills, because "
                f"{self.source.address} is empty, and the table has no mark of a sink that says it",
                "let the sink merge a batch, which marks the table",
            )
        return mark.columns

    def left_out(self, chunk: Sequence[Confirmed]) -> frozenset[str]:
        """Return the keys of differences that are expected, because the sink writes no row for them."""
        if not isinstance(self.target, SupportsLeftOut):
            return frozenset()
        return frozenset(
            self.target.left_out([each.key for each in chunk if each.kind is DifferenceKind.MISSING])
        )

    def digests(self, events: Sequence[ChangeEvent | None]) -> Integers:
        """Return the digests of rows of the source, in the form in which the table has them."""
        return source_digests(events, self.columns, self.held)

    def batches(
        self, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[pa.RecordBatch, Integers, Integers]]:
        """Return batches of the table, with the digests of the keys and of the documents."""
        if keys is None and self.chosen.keys is not None:
            keys = sorted(self.chosen.texts)
        for batch in _larger(self.target.rows(keys, own=self.own)):
            hashes = column_digests(batch.column("key"))
            if not self.chosen.is_all:
                texts = batch.column("key").to_pylist() if self.chosen.partition_key is not None else ()
                chosen = self.chosen.of(texts, hashes)
                batch, hashes = batch.filter(pa.array(chosen)), hashes[chosen]
            yield batch, hashes, row_digests(batch, self.columns)
            self.listen()

    def retried(self, read: Callable[[], None]) -> None:
        """Read the table, and again if its version was removed meanwhile, or its server does not answer."""
        began = self.clock()
        told_at = began + _SILENT_SECONDS
        while True:
            try:
                return read()
            except MulticloudDbError as error:
                now = self.clock()
                if not error.retryable or now > began + self.patience:
                    raise
                if now >= told_at:
                    _LOG.warning(
                        "verify: %s; trying again since %.0f s",
                        error.message.removesuffix("; try again"), now - began,
                    )  # fmt: skip
                    told_at = now + _AGAIN_SECONDS
                self.pause(0.2)

    def first_ceiling(self) -> str:
        """Return the `order_key` above which a row has to be looked at."""
        if self.facts.floor is ScanFloor.HIGH:
            return self.state.fact("floor") or ""
        return self.facts.ceiling

    def read_table(self) -> None:
        """Store the digests of one version of the table."""
        ceiling = self.first_ceiling()

        def read() -> None:
            state = self.state
            state.remove_runs("target")
            waiting, count = list[Any](), 0
            read = 0
            for batch, hashes, digests in self.batches():
                rows = target_rows(batch, hashes, digests, ceiling)
                waiting.append(rows)
                count += len(rows)
                read += batch.num_rows
                self.tell("table", target_rows=read)
                if count >= _RUN:
                    with state.transaction():
                        state.add_run("target", np.concatenate(waiting))
                    waiting, count = [], 0
            with state.transaction():
                if waiting:
                    state.add_run("target", np.concatenate(waiting))
                state.put("target_rows", read)

        self.retried(read)
        self.largest = max(self.largest, self.state.size())

    def rows_of(self, keys: Sequence[str], *, texts: bool = False) -> FoundRows:
        """Return the table's rows of some keys, with their texts if wanted."""
        found = FoundRows(seen={}, texts={})

        def read() -> None:
            found.seen.clear()
            for batch, _, digests in self.batches(keys):
                names = batch.column("key").to_pylist()
                orders = batch.column("order_key").to_pylist()
                for name, order, value in zip(names, orders, digests.tolist(), strict=True):
                    found.seen.setdefault(name, []).append(Seen(order, value))
                if texts:
                    found.texts |= zip(names, batch.column("state").to_pylist(), strict=True)

        self.retried(read)
        with self.state.transaction():
            self.state.add("target_rows", sum(map(len, found.seen.values())))
        return found

    def look_up(self, keys: Sequence[str]) -> Iterator[dict[str, Answer]]:
        """Read rows of the source by key, in parts; see `Source.look_up`."""
        if keys and not self.done("parts"):
            # The collection was empty while it was scanned, and its stream had nothing either.
            self._keep_parts(self.source.some_keys()[:1])
        for found in self.source.look_up(keys, self.state.number("parts") or 1):
            with self.state.transaction():
                count = sum(each is not None and not isinstance(each, NotKnown) for each in found.values())
                self.state.add("looked_up", count)
            yield found

    def _keep_parts(self, keys: Sequence[MulticloudDbKey]) -> None:
        """Store how many components of a key form its partition key, which its text does not show."""
        if keys and not self.done("parts"):
            self.state.put("parts", keys[0].partition_components)

    def events(self, keys: Sequence[str]) -> Iterator[tuple[dict[str, ChangeEvent | None], dict[str, str]]]:
        """Read rows of the source by key, in the parts of `look_up`; also why others are not known."""
        for answers in self.look_up(keys):
            events, unknown = dict[str, ChangeEvent | None](), dict[str, str]()
            for key, answer in answers.items():
                match answer:
                    case NotKnown(reason):
                        unknown[key] = reason
                    case Respelt():
                        unknown[key] = ANOTHER_TEXT
                    case _:
                        events[key] = answer
            yield events, unknown

    def tell(self, phase: str, **fields: Any) -> None:
        """Report the progress."""
        self._told, self._has_told = attrs.evolve(self._told, phase=phase, **fields), True
        self.listen()

    def listen(self) -> None:
        """Call who listens, because the comparison still waits or reads; report the progress again."""
        if self._listen is not None:
            self._listen()
        if self._on_progress is not None and self._has_told:
            self._on_progress(self._told)


def _larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together, because each of them costs as much as some hundred rows."""
    waiting, count, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        waiting.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= _BATCH or size >= GROUP_BYTES:
            yield pa.concat_batches(waiting)
            waiting, count, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
