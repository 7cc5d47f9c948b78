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

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Final, TypedDict, Unpack

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    MulticloudDbClient,
    MulticloudDbError,
    MulticloudDbKey,
    ProviderOptions,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.entry_points import entry_points
from multiclouddb_api.registry import GROUP
from multiclouddb_api.validators import check_type, type_name, unknown_name
from multiclouddb_spi.continuation.token import decode_token, to_moment
from multiclouddb_spi.token_report import is_in_snapshot
from multiclouddb_tables.contract import SupportsRecord, Target
from multiclouddb_tables.mark import FeedSource
from multiclouddb_verify.comparison import (
    DifferenceKind,
    first_difference,
)
from multiclouddb_verify.digests import own_values
from multiclouddb_verify.own_columns import DeclaredColumns, kind_of
from multiclouddb_verify.repair import Repair
from multiclouddb_verify.report import Cost, Counts, Difference, Progress, Report
from multiclouddb_verify.rounds import Rounds
from multiclouddb_verify.sides import Position, Sides, Transform
from multiclouddb_verify.source import Respelt, Source, floor_of
from multiclouddb_verify.state import FORMAT, RESUME, State, after
from multiclouddb_verify.state_folder import default_folder

__all__ = ["ComparisonSettings", "Verification", "VerifySettings", "checked", "verify"]

_SHOWN: Final = 10_000
_NAMED: Final = 1000
_COMPARED: Final = 100
"""The number of differences of which the report names the first path that differs."""
_EXPECTED: Final = (
    "the feed contains no deletes (see Capability.CHANGE_FEED_DELETES), so the sink cannot remove the rows "
    "of deleted documents; repair removes them"
)
_LEFT_OUT: Final = (
    "the sink leaves out the changes of keys that are too long for the table, and a repair does not write "
    "their rows either"
)
_NOT_RESUMABLE: Final = (
    ErrorCategory.CHECKPOINT_EXPIRED,
    ErrorCategory.INVALID_REQUEST,
    ErrorCategory.NOT_FOUND,
)
"""The errors of a service that does not know the position of a left-over comparison, or no longer."""
_LOG: Final = logging.getLogger("multiclouddb.verify")


class ComparisonSettings(TypedDict, total=False):
    """The settings of `verify_with_spark`; `verify` has them too."""

    position: Position | None
    """The position that the sink has stored. Pass a function that returns the newest one, such as
    `stored_position(store, name)` or `spark_position(client, address, checkpoint)`; with a fixed token, a key
    that changes after this position can be found equal but never different. None, the default, for a table
    that stores the position itself (PostgreSQL with `checkpoint_name`)."""
    repair: bool
    """True to repair each difference while the sink runs; False by default. A row that the sink changes
    meanwhile stays as the sink wrote it."""
    sample: int | None
    """N to compare about one of N keys, chosen by the hash of the key; None, the default, for all. The scan
    still reads every row."""
    max_scan_rate: float | None
    """The most that the scan may read in a second, in the unit of `Snapshot.max_scan_rate`; None, the
    default, for no limit."""
    state: str | os.PathLike[str] | None
    """The folder for what was read, which no other comparison may use; by default one in the user's cache,
    named after database, collection and table. Its content is removed at the end."""
    patience_seconds: float
    """After how many seconds in which no key was settled `verify` stops, and reports the other keys as
    unsettled; also how long to wait for the stream. 600 by default."""
    max_repairs: int | None
    """The most rows to repair; by default 10 % of the source's rows, and at least 100. If there are more
    differences, nothing is repaired, because so many usually come from a wrong argument."""
    force: bool
    """True to repair any number of rows, and, with `adopt`, to compare a table that looks like the copy of
    another collection; False by default."""
    adopt: bool
    """True to compare a table without the mark that a sink leaves, so that only you know which collection it
    copies; False by default. It is refused if more than half of its keys differ (from 20 keys on)."""
    transform: Transform | None
    """For a table whose columns other code than the sink has made of the documents: a function from a
    document to the values of these columns, which are then compared instead of `new_item_state`. Columns that
    the table's mark declares are compared without it."""
    show_values: bool
    """True to put the values that differ into the report; by default it has only their types."""
    record: bool
    """True to store in the table, in a commit of its own, when it was proved equal and through which
    position; False by default. Not every kind of table can."""
    provider_options: ProviderOptions | None
    """The options of the provider with which the sink reads."""
    on_progress: Callable[[Progress], None] | None
    """Called from time to time with the progress, also while `verify` waits; an error that it raises ends the
    comparison."""


class VerifySettings(ComparisonSettings, total=False):
    """The settings of `verify`: those of `ComparisonSettings`, and these."""

    resume: bool
    """True to go on with the source where an earlier call was interrupted, if one was; the table is always
    read again. With False, the default, what an earlier call has left in the folder is removed."""
    keys: Sequence[MulticloudDbKey] | None
    """The keys to compare, such as `event.key`; None, the default, for all. Their rows are looked up instead
    of a scan, and only their rows of the table are read. `covered` in the report says so, and nothing is
    proved of the table. Needs `Capability.LOOKUP`."""
    partition_key: MulticloudDbKey | None
    """The partition key, or its first components, whose rows to compare; None, the default, for all. The scan
    reads these rows only, and of the table the rows of other keys are passed over. Needs
    `Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE`."""
    transform_name: str | None
    """A name that you give to what `transform` does, and change with the function. Without it, a comparison
    with `transform` is never resumed, because nothing shows whether two functions do the same."""


@attrs.frozen
class _Setting:
    """What is known about a setting.

    Attributes:
        types: The types of its values.
        verdict: Whether another value may change the verdict, because it changes what is read of the source.
            A comparison with another value does not resume. Settings that only change the reading of the
            table, or what is written, do not count: that is always done again.
    """

    types: tuple[Any, ...]
    verdict: bool


SETTINGS: Final = {
    # A comparison that is resumed is brought up to today's position.
    "position": _Setting((str, Callable, NoneType), verdict=False),
    "repair": _Setting((bool,), verdict=False),
    "sample": _Setting((int, NoneType), verdict=True),
    "max_scan_rate": _Setting((int, float, NoneType), verdict=False),
    "state": _Setting((str, os.PathLike, NoneType), verdict=False),
    "patience_seconds": _Setting((int, float), verdict=False),
    "max_repairs": _Setting((int, NoneType), verdict=False),
    "force": _Setting((bool,), verdict=False),
    "adopt": _Setting((bool,), verdict=False),
    "transform": _Setting((Callable, NoneType), verdict=True),
    "show_values": _Setting((bool,), verdict=False),
    "record": _Setting((bool,), verdict=False),
    "provider_options": _Setting((ProviderOptions, NoneType), verdict=True),
    "on_progress": _Setting((Callable, NoneType), verdict=False),
    "resume": _Setting((bool,), verdict=False),
    # The identity contains digests of these two instead.
    "keys": _Setting((list, tuple, NoneType), verdict=False),
    "partition_key": _Setting((MulticloudDbKey, NoneType), verdict=False),
    "transform_name": _Setting((str, NoneType), verdict=True),
}
"""Each setting of `VerifySettings`."""


def checked(
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    target: Target,
    kind: type,
    settings: ComparisonSettings,
) -> Source:
    """Return the source, after all arguments have been checked."""
    if isinstance(target, type) or not isinstance(target, kind):
        raise invalid_request("target", f"must be a table, not {type_name(target)}", "pass DeltaTarget(path)")
    for name, value in settings.items():
        if name not in SETTINGS:
            raise unknown_name("verify", name, SETTINGS)
        check_type(name, value, *SETTINGS[name].types)
        for each in value if name == "keys" and isinstance(value, list | tuple) else ():
            check_type(name, each, MulticloudDbKey)
    given: Mapping[str, Any] = settings
    return Source(
        client,
        address,
        settings.get("provider_options"),
        settings.get("max_scan_rate"),
        given.get("partition_key"),
    )


def verify(
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    target: Target,
    **settings: Unpack[VerifySettings],
) -> Report:
    """Compare a table with its collection while both change, and repair it on request.

    The sink and the application keep running: a key that has not changed since the sink's position must be
    equal, and one that has changed may have any of its versions since then. So there is no false alarm,
    provided that a change is in the stream `settle_seconds` after it is in the collection; and no difference
    is missed that exists at the start in a key that does not change meanwhile. Nothing is written to the
    source, and each of its rows is read once.

    What was read is kept in a folder, so if the process is killed, the same call with `resume=True` goes on
    with the source where it was. It reads the table again and judges each difference again, so that the
    report is up to date.

    Args:
        client: The client of the source.
        address: The collection, or its text.
        target: The table, for example `DeltaTarget(path)`.
        **settings: See `ComparisonSettings` and `VerifySettings`.

    Returns:
        The report, with the differences that are left.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if there is no position or it lies inside a snapshot of the sink,
            if the table was not written by a sink or comes from another source, or if the folder cannot be
            used; `CHECKPOINT_EXPIRED` if the service no longer keeps the changes after the position;
            `NOT_FOUND` if there is no table; `CONFLICT` if another process uses the folder.
    """
    source = checked(client, address, target, Target, settings)
    if settings.get("transform_name") is not None and settings.get("transform") is None:
        raise invalid_request(
            "transform_name", "is given without transform", "leave it out, or give transform"
        )
    return Verification(source, target, **settings).run()


class Verification:
    """One comparison; see `verify`.

    Args:
        source: The collection.
        target: The table.
        position: See `verify`.
        pause: Waits for some seconds.
        clock: Returns the time in seconds.
        listen: Called several times a second while the comparison waits or reads, from the beginning on; an
            error that it raises ends the comparison.
        advice: Why a left-over comparison is not taken up without `resume`, or what to do instead.
        settings: The other arguments of `verify`.
    """

    _reader: ClassVar = "one process"
    """What reads both sides; the folders of two readers contain other things."""

    def __init__(
        self,
        source: Source,
        target: Target,
        position: Position | None = None,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        listen: Callable[[], None] | None = None,
        advice: str = RESUME,
        **settings: Any,
    ) -> None:
        self._advice = advice
        self._sides = Sides(
            source, target, position, pause=pause, clock=clock, listen=listen, settings=settings
        )
        self._rounds = Rounds(self._sides)
        self._settings = settings
        self._repair: bool = settings.get("repair", False)
        self._max_repairs: int | None = settings.get("max_repairs")
        self._show_values: bool = settings.get("show_values", False)
        self._record: bool = settings.get("record", False)
        self._refused: str | None = None
        self._incomplete_since: str | None = None
        self._unfilled: tuple[str, ...] = ()

    def run(self) -> Report:
        """Compare, and repair if wanted."""
        began = self._sides.clock()
        first, identity = self.look()
        folder = self._settings.get("state")
        if folder is None:
            names = (
                "database",
                "collection",
                "table",
                "chosen",
            )  # a whole comparison may be left over beside
            folder = default_folder({name: identity[name] for name in names if name in identity})
        self._sides.state = state = State(
            Path(os.fspath(folder)), identity, resume=self._settings.get("resume", False), advice=self._advice
        )
        try:
            if state.resumes and (reason := self._not_resumable(first)) is not None:
                state.begin_again(reason)
            if state.left_over is not None:
                _LOG.warning("verify: %s", state.left_over)
            if not state.resumes:
                self._begin(first)
            report = self._compare(began)
        except BaseException:  # whatever ends it: the folder's lock is freed, and what was read stays
            state.close()
            raise
        state.remove()
        return report

    def look(self) -> tuple[str, dict[str, str]]:
        """Look at the position and the table; return the position, and on what the comparison depends."""
        first = self._sides.first_position()
        return first, self._identity(self._checked(first))

    def _identity(self, page: ChangeFeedPage) -> dict[str, str]:
        """Return on what the reading of the source depends.

        Args:
            page: A page of the source's stream. Its token names the collection in full, however the caller
                names it.
        """
        feed, config = decode_token(page.continuation_token), self._sides.source.client.config
        identity = {
            "format": str(FORMAT),
            "verify": version("multiclouddb-tables"),
            "provider": _version_of(config.provider),
            "database": repr(config),
            "collection": str(feed.address),
            "incarnation": str(feed.incarnation),
            "table": self._sides.target.name,
            "reader": self._reader,
        }
        for name, setting in SETTINGS.items():
            value = self._settings.get(name)
            if setting.verdict and name != "transform":
                identity[name] = repr(value)
        if (chosen := self._sides.chosen.identity) is not None:
            identity["chosen"] = chosen
        identity["transform"] = str(self._sides.transform is not None)
        columns = self._sides.columns
        if isinstance(columns, DeclaredColumns):
            identity["columns"] = repr((columns.columns, sorted(map(str, columns.types.items()))))
        return identity

    def _not_resumable(self, first: str) -> str | None:
        """Bring a left-over reading of the source up to today's position, and to its end; return why not."""
        if self._sides.transform is not None and self._settings.get("transform_name") is None:
            return "nobody knows whether transform is the same function: pass transform_name to resume"
        if not self._sides.source.has_deletes:
            return (
                "the feed contains no deletes, so an old reading of the source cannot be brought up to date"
            )
        try:
            self._move_to(first)
            self._read_source()
        except MulticloudDbError as error:
            if error.category not in _NOT_RESUMABLE:
                raise
            return f"the source does not go on from there ({error.category})"
        return None

    def _move_to(self, first: str) -> None:
        """Bring what was read of the source up to a later position of the sink, which becomes K."""
        state = self._sides.state
        self._sides.follower(state.fact("follow") or "").catch_up()
        state.age_changes()
        self._sides.follower(first).catch_up()
        with state.transaction():
            state.fold_changes()
            self._put_position(first)

    def _read_source(self) -> None:
        if self._sides.done("scanned"):
            return
        if self._sides.chosen.keys is not None:
            self._sides.read_keys()
            return
        if self._sides.chosen.partition_key is not None:
            for key in self._sides.source.some_keys()[:1]:
                self._sides.chosen.spell(key)
        self._sides.scan()

    def _compare(self, began: float) -> Report:
        self._compare_sides()
        self._rounds.run()
        if self._repair:
            self._repair_all()
        self._name_foreign()
        self._sides.check_table()
        report = self._report(began)
        through, since = report.verified_through, self._incomplete_since
        if through is not None and since is not None and (self._repair or self._record):
            self._sides.target.complete(self._sides.expected)
            report = attrs.evolve(report, incomplete_since=None)
        if self._record and through is not None and isinstance(self._sides.target, SupportsRecord):
            at = datetime.now(UTC).isoformat()
            facts = {"multiclouddb.verified_at": at, "multiclouddb.verified_through": through}
            self._sides.target.record(facts, self._sides.expected)
        return report

    def _compare_sides(self) -> None:
        """Read both sides, and store the keys that have to be judged one by one."""
        self._read_source()
        self._sides.read_table()
        self._rounds.join()

    def _checked(self, first: str) -> ChangeFeedPage:
        """Try the position and the table before anything is read; return a page of the stream."""
        try:
            page = self._sides.source.changes(first)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.CHECKPOINT_EXPIRED:
                raise
            raise MulticloudDbError(
                f"position: {error.message}; restart the sink with SkipToOldest() (in Spark "
                "failOnDataLoss=false) first, then run verify with repair",
                error.detail,
            ) from error
        mark = self._sides.expect(FeedSource.of_token(page.continuation_token))
        if is_in_snapshot(first):
            unfilled = () if mark is None else mark.unfilled
            refill = f"; a refill has not filled {', '.join(unfilled)} yet" if unfilled else ""
            raise invalid_request(
                "position",
                "is inside the sink's own snapshot, so nobody knows what the table has to contain" + refill,
                "let the sink or the mirror run until the snapshot has ended (BackfillDone), and try again",
            )
        # The table is looked at before the source is read, because it may be none.
        is_declared = mark is not None and mark.declared is not None
        for _ in self._sides.target.rows([], own=is_declared or self._sides.transform is not None):
            break
        self._incomplete_since = None if mark is None else mark.incomplete_since
        self._unfilled = () if mark is None else mark.unfilled
        self._sides.look_at_columns()
        if self._repair and self._sides.columns is None:
            self._sides.target.fix((), self._sides.expected)
        return page

    def _begin(self, first: str) -> None:
        begun = self._sides.source.first_page()
        with self._sides.state.transaction():
            self._put_position(first)
            for name, value in {
                "follow": first,
                "floor": floor_of(begun),
                "scan": begun.continuation_token,
            }.items():
                self._sides.state.put(name, value)

    def _put_position(self, first: str) -> None:
        """Store K: everything up to it is in the table that is read from now on, or the table is wrong."""
        until = decode_token(first).read_until
        self._sides.state.put("k", first)
        self._sides.state.put("at", None if until is None else to_moment(until.micros).isoformat())

    # -- Step 6: the repair

    def _repair_all(self) -> None:
        count = sum(self._sides.state.kinds().values()) - self._left_out()
        most = (
            self._max_repairs
            if self._max_repairs is not None
            else max(100, self._sides.state.number("rows") // 10)
        )
        if count > most and not self._sides.force:
            self._refused = (
                f"max_repairs: the number of differences is {count:,}, and at most {most:,} rows are "
                "repaired; look at them first, then pass max_repairs= or force=True"
            )
            return
        Repair(self._sides, self._rounds).run()

    def _name_foreign(self) -> None:
        """Name ghosts that the source knows under a key which the sink writes as another text.

        Of the first ones only, because it costs a look-up. One that cannot be asked for stays a ghost.
        """
        state = self._sides.state
        ghosts = [each.key for each in state.confirmed("", _NAMED) if each.kind is DifferenceKind.GHOST]
        with suppress(MulticloudDbError):
            for answers in self._sides.look_up(ghosts):
                with state.transaction():
                    state.name_foreign(key for key, answer in answers.items() if isinstance(answer, Respelt))

    def _left_out(self) -> int:
        """Return the number of missing rows that are expected, and store with each of them that it is."""
        state, first, count = self._sides.state, "", 0
        while state.kinds().get(DifferenceKind.MISSING) and (chunk := state.confirmed(first, _SHOWN)):
            first = after(chunk[-1].key)
            keys = self._sides.left_out(chunk)
            with state.transaction():
                state.explain((key, _LEFT_OUT) for key in keys)
            count += len(keys)
        return count

    # -- The report

    def _report(self, began: float) -> Report:
        state = self._sides.state
        left, expected_missing = state.kinds(), self._left_out()
        unreadable = state.unreadable()
        unknown = state.unknown(_SHOWN) | dict(islice(unreadable.items(), _SHOWN))
        behind = dict.fromkeys(state.behind(float(state.fact("settled_at") or 0.0)))
        unsettled = state.pending_count() - len(behind) + state.unknown_count() + len(unreadable)
        equal = not left and not unsettled and not behind
        chosen = self._sides.chosen
        is_proved = equal and chosen.is_all
        expected_ghosts = 0 if self._sides.source.has_deletes else left.get(DifferenceKind.GHOST, 0)
        reasons = ((_EXPECTED, expected_ghosts), (_LEFT_OUT, expected_missing))
        at = state.fact("at")
        charge = state.fact("charge")
        repaired = state.kinds(repaired=True)
        return Report(
            equal=equal,
            verified_through=state.fact("k") if is_proved else None,
            verified_at=None if at is None or not is_proved else datetime.fromisoformat(at),
            counts=Counts(
                equal=state.number("equal"),
                unsettled=unsettled,
                behind=len(behind),
                repaired=sum(repaired.values()),
                differences=left,
                expected_ghosts=expected_ghosts,
                expected_missing=expected_missing,
            ),
            differences=self._described(),
            repaired=tuple(
                Difference(kind, key, max(orders, default=None), note=note)
                for key, kind, orders, note in state.differences(most=_SHOWN, repaired=True)
            ),
            unsettled=tuple(
                islice(chain(unknown, (key for key in state.waiting() if key not in behind)), _SHOWN)
            ),
            behind=tuple(islice(behind, _SHOWN)),
            reasons=unknown,
            cost=Cost(
                rows=state.number("rows"),
                looked_up=state.number("looked_up"),
                changes=state.number("changes"),
                target_rows=state.number("target_rows"),
                rounds=state.number("rounds"),
                native_charge=None if charge is None else float(charge),
                state_bytes=max(self._sides.largest, state.size()),
                seconds=self._sides.clock() - began,
            ),
            settle_seconds=self._sides.facts.settle_seconds,
            refused=self._refused,
            expected="; ".join(why for why, is_so in reasons if is_so) or None,
            covered=chosen.told(state.number("rows"), self._absent()),
            left_over=state.left_over,
            incomplete_since=self._incomplete_since,
            not_compared=self._sides.not_compared,
            unfilled=self._unfilled,
        )

    def _absent(self) -> int:
        """Return how many of the keys that were asked for neither side has."""
        if self._sides.chosen.keys is None:
            return 0
        left = self._sides.chosen.texts - self._sides.present
        return len(left - self._sides.rows_of(sorted(left)).seen.keys())

    def _described(self) -> tuple[Difference, ...]:
        """Return the differences that are left, the first ones with the path at which they differ."""
        found = self._sides.state.differences(most=_SHOWN)
        stale = [key for key, kind, *_ in found if kind is DifferenceKind.STALE][:_COMPARED]
        compared: dict[str, tuple[str, Any, Any]] = {}
        for events, _ in self._sides.events(stale):
            texts = self._sides.rows_of([*events], texts=True).texts
            for key, event in events.items():
                text = texts.get(key)
                if event is None or text is None:
                    continue
                with suppress(MulticloudDbError):
                    ours: Any = own_values(event, self._sides.columns)
                    if where := first_difference(ours, _decoded(text)):
                        compared[key] = where
        return tuple(self._difference(*each, compared.get(each[0])) for each in found)

    def _difference(
        self,
        key: str,
        kind: DifferenceKind,
        orders: Sequence[str],
        note: str | None,
        where: tuple[str, Any, Any] | None,
    ) -> Difference:
        order = max(orders, default=None)
        if where is None:
            return Difference(kind, key, order, note=note)
        path, ours, theirs = where
        values = (ours, theirs) if self._show_values else (None, None)
        found = Difference(kind, key, order, path, kind_of(ours), kind_of(theirs), *values)
        return attrs.evolve(found, note=note)


def _decoded(text: str) -> Any:
    from multiclouddb_api import decode_json

    return decode_json(text)


def _version_of(provider: str) -> str:
    """Return the version of a provider's distribution: it decides how a key and a document are written."""
    found = (point for point in entry_points(group=GROUP) if point.name == provider)
    return next((f"{point.distribution} {point.version}" for point in found), "not installed")
