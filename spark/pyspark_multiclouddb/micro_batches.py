"""Decides when there is a new micro-batch; the SPI's planner decides where it ends."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Final

import attrs
from attrs import frozen
from pyspark.sql.datasource import InputPartition

from multiclouddb_api import (
    ErrorCategory,
    ErrorDetail,
    Fail,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    Resnapshot,
    SkipToOldest,
    Snapshot,
)
from multiclouddb_spi import FeedStart, Range, Step, SupportsChangeMark, Target
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage, Rules
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_tables.batch import other_rows
from multiclouddb_tables.mark import FeedSource
from pyspark_multiclouddb.checkpoint import (
    Offset,
    Pinned,
    Symbolic,
    offset_from_json,
    offset_to_json,
    poison_state,
    ranges_of,
)
from pyspark_multiclouddb.connection import CALL_SECONDS, Connection, connected
from pyspark_multiclouddb.errors import NEW_QUERY, REPAIR, gone, source_errors
from pyspark_multiclouddb.options import Settings
from pyspark_multiclouddb.payload import Payloads
from pyspark_multiclouddb.progress import Reports, snapshot_state
from pyspark_multiclouddb.rows import find_poison, work_of
from pyspark_multiclouddb.saved_positions import SavedPositions
from pyspark_multiclouddb.watch import ReadWatch, Watch, watch_after

_LOG: Final = logging.getLogger("multiclouddb.spark")

_NAP_SECONDS: Final = 0.1
# A position is checked for expiry at the first plan, and after a batch that took longer than this number of
# seconds.
_FRESH_SECONDS: Final = 60.0
# A warning names at most this number of lost positions.
_PLACES: Final = 3
# After this number of seconds, a step is planned even if nothing has changed, because an audit or the saving
# of a position may be due.
_STILL_SECONDS: Final = 60.0


@frozen(eq=False, repr=False)
class Known:
    """What is known of the offset that was last returned or asked about; it only saves requests.

    It is replaced as a whole, so nothing that holds for one offset is used with another.

    Attributes:
        value: The offset as Spark has it; None before the first call.
        offset: The same, parsed; None if nobody has needed it yet.
        before: The offset at which the step to this one starts, as Spark has it and parsed.
        lineage: Where the next step begins: after what has been found to be empty, or None.
        empty_at: The monotonic time at which nothing was found after this offset.
        mark: The change mark of the database when nothing was found, or None.
        marked_at: The monotonic time at which the mark was asked.
        watch: Tells that the database may have changed.
        is_misled: The watch has told of a change, and none was found.
        is_unread: Nothing was found, but it is not known of every partition that nothing follows.
        is_searched: With `onPoison=skip`: the changes before it that cannot be decoded are known.
        read: What planning has read of the micro-batch that ends here.
    """

    value: dict[str, Any] | None = None
    offset: Offset | None = None
    before: tuple[dict[str, Any], Offset] | None = None
    lineage: Lineage | None = None
    empty_at: float = -math.inf
    mark: Hashable = None
    marked_at: float = -math.inf
    watch: Watch | None = None
    is_misled: bool = False
    is_unread: bool = False
    is_searched: bool = False
    read: Payloads = attrs.Factory(Payloads)


class MicroBatches:
    """Plans the micro-batches of one query, in one long-lived process; the constructor does no I/O."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # The end of a query that ends by itself is determined when its first batch is planned, because the
        # planner must follow all splits from the position in the checkpoint.
        self.ends_by_itself = False
        # True once nothing followed a step in any partition: the initial backlog is read.
        self.caught_up = False
        # A summary for the query's progress, which is not an offset.
        self.report: dict[str, Any] | None = None
        self._target: Target | None = None
        self._known = Known()
        self._planned = -math.inf
        self._positions = SavedPositions(settings.idle_checkpoint_seconds)
        self._reports = Reports()
        # With onPoison=skip: the changes that the next offset names.
        self._poison: list[tuple[str, str]] = []
        self._warning: str | None = None
        self._lost = 0
        self._rules: Rules = INSPECTED

    def initial(self) -> dict[str, Any]:
        """Return the start of a new query, unresolved: Spark asks for it again when it replays a batch."""
        return offset_to_json(self.settings, Symbolic(self.settings.start))

    def first(self, max_records: int | None) -> dict[str, Any]:
        """Return the end of the first micro-batch, for Spark 4.0 and 4.1."""
        with source_errors():
            return connected(self.settings, partial(self._first, max_records))

    def _first(self, max_records: int | None, connection: Connection) -> dict[str, Any]:
        # It is planned as each other batch. But no offset comes before it, so its end names its start.
        start = self._begun(connection, self.settings.start, tell_more=True)
        while True:
            known = self._plan(start, max_records, True, connection)
            begins = self._pinned(start)
            if known.value is None or known.value is start:  # nothing to read
                first = attrs.evolve(begins, more=known.is_unread)
                break
            end = self._pinned(known.value)
            if end.lineage().plan is None or ranges_of(begins, end, self._rules):
                origin = None if end.empty else begins.cursors
                first = attrs.evolve(end, origin=origin, warning=end.warning or begins.warning)
                break
            # This step only creates segments, or begins another snapshot. It becomes part of the start;
            # otherwise the batch would have no rows.
            start = known.value
        value = offset_to_json(self.settings, first)
        self._know(attrs.evolve(known, value=value, offset=first, before=None))
        return value

    def _pinned(self, value: dict[str, Any]) -> Pinned:
        offset = self._offset(value)
        assert isinstance(offset, Pinned)
        return offset

    def after(
        self, start: dict[str, Any], max_records: int | None, *, tell_more: bool = False
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch, or `start` itself if there is nothing to read."""
        # Spark repeats the call without a pause, so the service is asked once in `pollInterval`, or as soon
        # as the watch has a hint. After a hint without a change, hints are ignored until `pollInterval` is
        # over: another collection that changes all the time, or a failing watch, causes two plans in an
        # interval, not fifty. Positions that have moved without a record are an end too, at the first call
        # and then once in `idleCheckpointInterval`, because a position that stays in the checkpoint would
        # expire.
        known = self._known_of(start)
        is_known = time.monotonic() - known.empty_at < self.settings.poll_seconds
        is_hinted = is_known and not self.ends_by_itself and self._wait_for_hint()
        if is_known and not self.ends_by_itself and not is_hinted:
            return start
        with source_errors():
            if connected(self.settings, self._stands_still):
                self._know(attrs.evolve(known, empty_at=time.monotonic(), is_misled=False))
                return start
            # Returning `start` means that nothing is left to read, so it needs the service's answer.
            plan = partial(self._plan, start, max_records, tell_more)
            while (known := connected(self.settings, plan)).value is start and known.is_unread:
                time.sleep(_NAP_SECONDS)
        end = known.value
        assert end is not None
        # After a position that moved without a record, there is nothing to read either.
        if (end is start or "empty" in end) and not known.is_unread:
            self._know(attrs.evolve(known, empty_at=time.monotonic(), is_misled=is_hinted))
        return end

    def close(self) -> None:
        """Stop waiting for changes; may be called more than once."""
        self._know(attrs.evolve(self._known, watch=None))

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the work of a micro-batch; the same offsets always give the same work."""
        with source_errors():
            before = self._offset(start)
            if self._known.value != end:  # another process has planned the batch
                self._know(Known(end, before=(start, before)))
            after = self._offset(end)
            ranges = ranges_of(before, after, self._rules)
            if not ranges:
                return []
            assert isinstance(after, Pinned)
            # With Spark 4.0 and 4.1, the first batch of a query names where it starts in its end.
            first = attrs.evolve(after, cursors=after.origin, lost=0)
            begins = first if isinstance(before, Symbolic) else before
            self._check_again(begins, after)
            self._search_again(ranges, after)
            skip = self.settings.skip_poison or after.poison is not None
            # A loss is told by the end of the batch or, if it was found just now, by the next offset.
            lost = max(self._lost, after.lost) > begins.lost
            return work_of(
                self.settings, after.incarnation, ranges, skip_poison=skip, is_told=bool(after.gone),
                may_skip=lost, payloads=self._known.read,
            )  # fmt: skip

    def _check_again(self, begins: Pinned, after: Pinned) -> None:
        """Find what has expired of a batch that another process has planned, to name what it leaves out."""
        planned_here = self._planned != -math.inf
        if planned_here or not isinstance(self.settings.on_loss, SkipToOldest):
            return

        def check(connection: Connection) -> None:
            after.check_incarnation(connection.opened)
            self._check_kept(connection, begins, surely=True)

        connected(self.settings, check)

    def _search_again(self, ranges: Sequence[Range], after: Pinned) -> None:
        """With `onPoison=skip`, find what cannot be decoded, if that isn't known of the batch."""
        if not self.settings.skip_poison or after.poison is not None or self._known.is_searched:
            return
        self._know(attrs.evolve(self._known, is_searched=True))

        def search(connection: Connection) -> list[tuple[str, str]]:
            after.check_incarnation(connection.opened)
            return find_poison(connection, ranges)

        self._leave_out(connected(self.settings, search))

    def _know(self, known: Known) -> None:
        """Replace what is known."""
        earlier, self._known = self._known, known
        if earlier.watch is not None and earlier.watch is not known.watch:
            earlier.watch.close()

    def _known_of(self, value: dict[str, Any]) -> Known:
        """Return what is known of an offset."""
        if self._known.value != value:
            self._know(Known(value))
        return self._known

    def _offset(self, value: dict[str, Any]) -> Offset:
        # Spark passes the same offset as the end of a step, as the start of the next one and to `tasks`.
        known = self._known
        if known.value == value:
            if known.offset is None:
                self._know(attrs.evolve(known, offset=offset_from_json(self.settings, value)))
            assert self._known.offset is not None
            return self._known.offset
        if known.before is not None and known.before[0] == value:
            return known.before[1]
        return offset_from_json(self.settings, value)

    def _plan(
        self, start: dict[str, Any], max_records: int | None, tell_more: bool, connection: Connection
    ) -> Known:
        """Plan the next step, and return what is then known: of `start` if the step needs no new offset."""
        # The database may have changed even if this plan fails, so an earlier mark proves nothing.
        self._know(attrs.evolve(self._known, mark=None))
        known, offset = self._known, self._offset(start)
        if isinstance(offset, Symbolic):
            return self._reached(self._begun(connection, offset.position, tell_more), start)
        offset.check_incarnation(connection.opened)
        self._rules = connection.feed
        before = offset.lineage(self._rules)
        self._check_goes_on(offset, before)
        mark = _mark(connection)
        try:
            self._check_kept(connection, offset)
            # The step begins after what an earlier call has found to be empty.
            step = self._step(connection, known.lineage or before, max_records)
            read = Payloads(step, self.settings.max_payload)
            self._search(connection, step, read)
        except MulticloudDbError as error:
            again = self.settings.on_loss
            if not isinstance(again, Resnapshot) or error.category != ErrorCategory.CHECKPOINT_EXPIRED:
                raise
            snapshot = self._begun_again(connection, offset, again.snapshot, error, tell_more)
            return self._reached(snapshot, start)
        saving = self._positions.saving(before, step)
        self.caught_up |= step.is_end
        state = snapshot_state(offset.snapshot, before, step.after)
        self.report = self._reports.report(
            connection, step.after, step, idle=saving.is_empty and step.is_end, snapshot=state
        )
        if step.skipped:
            self._lose(", ".join(step.skipped[:_PLACES]), offset)
        warning = self._warning or (offset.warning if offset.lost else None)
        lost = max(self._lost, offset.lost)
        is_said = lost == offset.lost
        if saving.is_empty and is_said and not self._poison and not saving.is_needed:
            # The next call begins here, so that the same records are not scanned again.
            known = attrs.evolve(
                self._known, value=start, lineage=step.after, empty_at=-math.inf, is_unread=saving.is_unread
            )
            if mark is not None and not (step.after.ends() or step.left):
                known = attrs.evolve(known, mark=mark, marked_at=time.monotonic())
            is_waiting = isinstance(known.watch, ReadWatch) and not known.watch.wait(0)
            if not (is_waiting or self.ends_by_itself):
                self.close()  # first, because the next watch may need what it holds
                known = attrs.evolve(known, watch=watch_after(connection.feed, step.after, mark))
            self._know(known)
            return known
        goes_on = saving.is_unread or step.after.plan is not None or not (saving.is_empty or step.is_end)
        pinned = Pinned(
            offset.incarnation, saving.stands.to_json(), step.ends, saving.is_empty, snapshot=state,
            more=tell_more and goes_on, warning=warning, lost=lost, feed=_feed(connection),
            fresh=offset.fresh and saving.is_empty, gone=_gone(step),
        )  # fmt: skip
        self._positions.saved(step, saving)
        return self._reached(
            self._named(pinned), start, lineage=step.after, read=read, is_unread=saving.is_unread,
            is_searched=True,
        )  # fmt: skip

    def _begun(
        self, connection: Connection, position: FeedStart | Snapshot | FromContinuationToken, tell_more: bool
    ) -> dict[str, Any]:
        """Return the first resolved offset of a query."""
        lineage = self._started(connection, position)
        # The target of a mirror knows whether a scan that it has begun is whole.
        continued = isinstance(position, FromContinuationToken)
        whole = continued or isinstance(position, Snapshot)
        state = snapshot_state(None, lineage, lineage, whole=whole, continued=continued)
        self.report = self._reports.report(connection, lineage, None, idle=False, snapshot=state)
        self._positions.begin(lineage, left=() if isinstance(position, Now | Snapshot) else None)
        pinned = Pinned(
            connection.incarnation, lineage.to_json(), snapshot=state, warning=_start_warning(self.settings),
            feed=_feed(connection), fresh=_is_fresh(position), more=tell_more,
        )  # fmt: skip
        return offset_to_json(self.settings, pinned)

    def _check_goes_on(self, offset: Pinned, before: Lineage) -> None:
        """Refuse to plan after an offset behind which no changes can come."""
        if offset.gone:
            what = f"{' and '.join(offset.gone)}, and all that the service still had was delivered"
            raise gone(self.settings.address, what)
        if not len(before):
            raise MulticloudDbError(
                f"the feed of {self.settings.address} has ended, and all that the service still had was "
                f"delivered; if the resource was recreated, {NEW_QUERY}",
                ErrorDetail(ErrorCategory.NOT_FOUND),
            )

    def _reached(self, end: dict[str, Any], start: dict[str, Any], **known: Any) -> Known:
        """Replace what is known by what is known of the end of a step."""
        self._know(Known(end, before=(start, self._offset(start)), **known))
        return self._known

    def _search(self, connection: Connection, step: Step, read: Payloads) -> None:
        """With `onPoison=skip`, find the changes of a step that cannot be decoded."""
        # The tasks cannot report what they leave out, so it is found before the end of the step is stored.
        if self.settings.skip_poison:
            # What was read for the tasks was also decoded.
            parts = [
                part for part in step.ranges() if part.partition_id in step.news and read.of(part) is None
            ]
            self._leave_out(find_poison(connection, parts))

    def _leave_out(self, poison: list[tuple[str, str]]) -> None:
        for where, position in poison:
            what = "%s: the change of %s at %s cannot be decoded, and is left out (onPoison=skip)"
            _LOG.warning(what, self.settings.address, where, position)
        self._reports.leave_out(poison)
        self._poison += poison

    def _named(self, offset: Pinned) -> dict[str, Any]:
        """Return an offset as JSON; it names the changes that its step leaves out."""
        named = attrs.evolve(offset, poison=poison_state(self._poison))
        self._poison = []
        return offset_to_json(self.settings, named)

    def _check_kept(self, connection: Connection, offset: Pinned, *, surely: bool = False) -> None:
        """Find expired positions before ranges are planned or read, because tasks cannot report them."""
        due, self._planned = time.monotonic() - self._planned > _FRESH_SECONDS, time.monotonic()
        if not due or isinstance(self.settings.on_loss, Fail):
            return
        lineage = offset.lineage(connection.feed)
        try:
            connection.plan(
                "plan", lambda planner, deadline: planner.check_kept(lineage, deadline, surely=surely)
            )
        except MulticloudDbError as error:
            if not isinstance(self.settings.on_loss, SkipToOldest):
                raise
            if error.category == ErrorCategory.CHECKPOINT_EXPIRED:  # the tasks meet every other error
                self._lose(error.message.partition(";")[0], offset)

    def _lose(self, where: str, offset: Pinned) -> None:
        """Say in the log, and in the offsets from now on, that changes after an offset were skipped."""
        self._lost = offset.lost + 1
        self._warning = f"failOnDataLoss=false has skipped lost changes: {where}; {REPAIR}"
        _LOG.warning("%s: %s", self.settings.address, self._warning)

    def _begun_again(
        self,
        connection: Connection,
        offset: Pinned,
        wanted: Snapshot,
        loss: MulticloudDbError,
        tell_more: bool,
    ) -> dict[str, Any]:
        """Return the offset at which another snapshot begins."""
        _LOG.warning("%s: a new snapshot begins, because %s", self.settings.address, loss)
        lineage = connection.start(wanted)
        offset.check_incarnation(connection.opened)
        state = snapshot_state(None, lineage, lineage, whole=True)
        self.report = self._reports.report(connection, lineage, None, idle=False, snapshot=state)
        self._positions.begin(lineage)
        self.caught_up, self._target = False, None
        pinned = Pinned(
            offset.incarnation, lineage.to_json(), empty=True, snapshot=state, feed=_feed(connection),
            fresh=offset.fresh, more=tell_more,
        )  # fmt: skip
        return offset_to_json(self.settings, pinned)

    def _wait_for_hint(self) -> bool:
        """Wait for at most a tenth of a second; return True as soon as the database may have changed."""
        seconds, known = min(_NAP_SECONDS, self.settings.poll_seconds), self._known
        if known.watch is not None and not known.is_misled:
            return known.watch.wait(seconds)
        time.sleep(seconds)
        return False

    def _stands_still(self, connection: Connection) -> bool:
        """Return True if an earlier call with this start found no change, and the database is unchanged."""
        known = self._known
        is_fresh = known.mark is not None and time.monotonic() - known.marked_at < _STILL_SECONDS
        return is_fresh and _mark(connection) == known.mark

    def _started(
        self, connection: Connection, position: FeedStart | Snapshot | FromContinuationToken
    ) -> Lineage:
        # The open feed may still belong to an earlier resource with the same name.
        connection.opened.renew()
        return connection.start(position)

    def _step(self, connection: Connection, before: Lineage, max_records: int | None) -> Step:
        if self.ends_by_itself and self._target is None:
            self._target = connection.plan("plan", lambda planner, _: planner.target(before, CALL_SECONDS))
        return connection.plan(
            "plan",
            lambda planner, deadline: planner.advance(
                before, max_records, deadline, self._target, allow_empty=True
            ),
        )


def _feed(connection: Connection) -> FeedSource:
    identity = connection.feed.identity
    return FeedSource.made(identity.provider_id, identity.address, identity.incarnation)


def _is_fresh(position: FeedStart | Snapshot | FromContinuationToken) -> bool:
    """Return whether no row was delivered before a start position."""
    return not isinstance(position, FromContinuationToken) or decode_token(position.token).fresh


def _gone(step: Step) -> tuple[str, ...]:
    """Return what the notices of a step say, if other rows exist after them."""
    return tuple(what for notice in step.notices if (what := other_rows(notice)) is not None)


def _start_warning(settings: Settings) -> str | None:
    """Return what a query that does not begin with a snapshot leaves wrong in a table that has rows."""
    if isinstance(settings.start, Snapshot | FromContinuationToken):
        return None
    return f"the query does not begin with a snapshot; if its table already has rows, then {REPAIR}"


def _mark(connection: Connection) -> Hashable:
    """Return the change mark of the feed, or None if the database does not provide a mark."""
    if not isinstance(connection.feed, SupportsChangeMark):
        return None
    return connection.opened.call("mark", connection.feed.change_mark)
