"""Runs the job: read the changes after the position, merge them, store the position, and go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

import attrs

from multiclouddb_api import (
    AtTime,
    BackfillDone,
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    Fail,
    FeedEnded,
    FromContinuationToken,
    MulticloudDbClient,
    MulticloudDbError,
    Now,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    SnapshotStarted,
    StartPosition,
    invalid_request,
)
from multiclouddb_api.entry_points import entry_points
from multiclouddb_api.observer import Observer
from multiclouddb_api.pacing import Outage, PollSchedule, Timer
from multiclouddb_api.set_aside import SetAsideFolder
from multiclouddb_api.validators import check_type, unknown_name
from multiclouddb_mirror.advice import advising
from multiclouddb_mirror.belonging import check_own, check_rows, check_same_feed
from multiclouddb_mirror.declaration import declaration_of, fills_columns
from multiclouddb_mirror.destinations import (
    PROVED,
    Destination,
    How,
    MergedRows,
    PositionMovedError,
    destination_of,
)
from multiclouddb_mirror.documents import document_mode, without_documents
from multiclouddb_mirror.report import MirrorProgress, MirrorReport
from multiclouddb_mirror.setting_aside import Setter
from multiclouddb_mirror.settings import MirrorSettings
from multiclouddb_mirror.table_reading import Changes, TableReading
from multiclouddb_spi.continuation.token import to_micros
from multiclouddb_tables.batch import other_rows
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.contract import Target
from multiclouddb_tables.conversion import counted_rescues
from multiclouddb_tables.mark import FoundTable, TableMark

if TYPE_CHECKING:
    import pyarrow as pa

    from multiclouddb_verify import Report

__all__ = ["Mirror", "is_outage", "mirror", "page_bounds"]

_PAGE_EVENTS: Final = 50_000
"""The most events of a page: each page is one commit, and a page's bytes are bounded besides."""
_OUTAGE_SECONDS: Final = 300.0
"""How long the table may fail before its error is raised: as long as the source may."""
_WAIT_SECONDS: Final = 2.0
_IDLE_SECONDS: Final = 600.0
"""How often the position of a page without changes is stored, while the mirror follows: for a Delta table
each one is a commit, and services keep changes for hours."""


def mirror(
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    target: Destination | str,
    **settings: Unpack[MirrorSettings],
) -> MirrorReport:
    """Bring a table up to date with a collection: copy every row once, then merge what has changed since.

    The first run copies the collection (`Snapshot()`), and each later one goes on where the last one ended.
    The position is stored after the changes before it, with PostgreSQL in the same transaction, so a process
    that is killed at any moment merges at most some pages again, which changes nothing. Without `follow` the
    function returns when every change was read that was there when it asked.

    Args:
        client: The client of the source.
        address: The collection, or its text.
        target: The table: `delta:PATH`, `postgres:DSN#TABLE` or `sqlite:PATH#TABLE`. It is created if it does
            not exist, with the columns of `merge_into_delta`.
        **settings: See `MirrorSettings`.

    Returns:
        The report.

    Raises:
        MulticloudDbError: `CONFLICT` if another process writes the same table: it has stored another
            position. `INVALID_REQUEST` if the table has rows that no sink has marked (`adopt`), or if the
            collection was dropped or renamed (`resync`). `CHECKPOINT_EXPIRED` with `on_expired="fail"`. And
            the errors of `ChangeFeedIterator`, of `merge_into_delta` and of `verify`.

    Examples:
        >>> report = mirror(client, "shop/orders", "delta:/data/orders")
        >>> print(report.events, "changes,", report.deletes, "deletes")
    """
    return Mirror(client, address, target, **settings).run()


class Mirror:
    """One run of `mirror`, which another thread or a signal handler can stop.

    Args:
        client: See `mirror`.
        address: See `mirror`.
        target: See `mirror`.
        **settings: See `mirror`.
    """

    def __init__(
        self,
        client: MulticloudDbClient,
        address: ResourceAddress | str,
        target: Destination | str,
        **settings: Unpack[MirrorSettings],
    ) -> None:
        for name in settings:
            if name not in MirrorSettings.__annotations__:
                raise unknown_name("mirror", name, MirrorSettings.__annotations__)
        check_type("target", target, str, Destination)
        position = settings.get("position")
        if isinstance(target, Destination) and position is not None:
            raise invalid_request("position", "is given for a table that has one", "pass the table's text")
        self._client, self._settings = client, settings
        self._to = destination_of(target, position) if isinstance(target, str) else target
        self._on_expired = settings.get("on_expired", "resnapshot")
        if self._on_expired not in ("resnapshot", "fail"):
            raise invalid_request("on_expired", f"is {self._on_expired!r}", 'pass "resnapshot" or "fail"')
        self._address = ResourceAddress.parse(address) if isinstance(address, str) else address
        for name in ("tombstones", "compact"):
            if settings.get(name) not in (None, False) and settings.get("follow"):  # 0 is an age
                raise invalid_request(name, "needs a run that ends", "leave out follow (--follow), or it")
        if settings.get("compact") and not self._to.has_files:
            raise invalid_request(
                "compact", f"is for Delta, and {self._to.name} has no files", "leave it out"
            )
        self.reading = TableReading(None, None)
        """What it reads from; set before the run if it is one of several tables."""
        self._changes: Changes | None = None
        self._spark: Any = None
        self._is_on_spark = bool(settings.get("spark"))
        if self._is_on_spark:
            for name in ("set_aside", "max_scan_rate"):
                if settings.get(name) is not None:
                    raise invalid_request(
                        name, "is given together with spark", "leave one of them out: spark (--spark) or it"
                    )
        self._follower: Mirror | None = None
        self._found: FoundTable | None = None
        self._stopped = Event()
        self._setter: Setter | None = None
        if (folder := settings.get("set_aside")) is not None:
            kept = SetAsideFolder(folder, settings.get("max_set_aside", 100))
            documents = settings.get("set_aside_documents", False)
            self._setter = Setter(self._to, self._address, kept, documents=documents)
        self._timer = Timer()
        self._schedule = PollSchedule(self._timer, 1.0, 1.0, _OUTAGE_SECONDS)
        listener = getattr(client, "observer", None)
        self._outage = Outage(
            self._address, listener if isinstance(listener, Observer) else None, self._timer.now
        )
        self._source_error: MulticloudDbError | None = None
        self._report: MirrorReport | None = None
        self._first_stored: tuple[str | None] | None = None

    def stop(self) -> None:
        """End the run after the page that is being merged; any thread or signal handler may call this."""
        self._stopped.set()
        self._timer.stop()
        for each in (self._changes, self._follower, self._spark):
            if each is not None:
                each.stop()

    def run(self) -> MirrorReport:
        """Run the mirror; see `mirror`."""
        while True:
            try:
                with self._to.turn:
                    self._to.begin()
                try:
                    return self._run()
                finally:
                    self._to.end()
            except PositionMovedError:
                continue
            except MulticloudDbError as error:
                # The iterator has repeated the reads of the source. After a commit without an answer only
                # the table knows whether the page is in it, so the run goes on from the position there.
                if not self._may_repeat(error):
                    raise
                if not self._timer.wait(self._schedule.due - self._timer.now()):
                    if self._report is None:
                        raise
                    return self._report  # it was stopped

    def _may_repeat(self, error: MulticloudDbError) -> bool:
        """Return whether the table may be back soon, after a failure that is not one of the source."""
        if error is self._source_error or not is_outage(error):
            return False
        if not self._schedule.failed(error.detail.retry_after_seconds):
            return False
        self._outage.failed(error.message)
        return True

    def _run(self) -> MirrorReport:
        settings = self._settings
        with self._to.turn:
            stored, self._found = self._to.load(), self._to.found()
            if self._first_stored is None:
                self._first_stored = (stored,)
            columns = declaration_of(settings.get("columns"), self._mark)
            with advising():
                refills = fills_columns(
                    self._to, columns, self._mark, stored, agreed=settings.get("refill", False)
                )
            begins, start = self._start(stored, refills=refills)
            self._check_adopted(stored)
            how = self._how(begins, stored, columns)
        follows = settings.get("follow", False)
        page_events, wait_seconds = page_bounds(follows=follows)
        request = ChangeFeedRequest(
            self._address,
            start,
            new_item_state_mode=document_mode(self._client, begins, settings.get("provider_options")),
            on_expired=Resnapshot() if self._on_expired == "resnapshot" else Fail(),
            max_page_size=page_events,
            provider_options=settings.get("provider_options"),
        )
        began, report = time.monotonic(), self._report
        if report is None:
            report = MirrorReport(self._address, self._to.name, begins, 0, 0, 0, 0.0, False, None, None)
            if columns is not None and columns.misfits == "rescue":
                report = attrs.evolve(report, rescued=0)
            self._report = report
        if self._stopped.is_set():  # before there was anything to stop
            return report
        if self._is_on_spark:
            report = self._run_on_spark(request, begins, how) or report
            if follows or self._stopped.is_set():
                return attrs.evolve(report, seconds=time.monotonic() - began)
            # What Spark has left is little; and the last page says up to when the table is right.
            self._is_on_spark = False
            if (stored := self._to.load()) is not None:
                request = attrs.evolve(request, start_position=FromContinuationToken(stored))

        def iterate(request: ChangeFeedRequest) -> ChangeFeedIterator:
            return self._client.iterate_changes(
                request,
                until_idle=not follows,
                wait_seconds=wait_seconds,
                timeout_seconds=settings.get("timeout_seconds", 30.0),
                on_poison="raise" if self._setter is None else "skip",
            )

        changes = self._changes = self.reading.changes(request, iterate)
        page: ChangeFeedPage | None = None
        saved_at = began
        # Another declaration that needs no copy is stored even if no change comes, so that a retry finds it.
        declares = columns is not None and self._mark is not None and self._mark.declared != columns
        with changes:
            for page in self._pages(changes, begins):
                self._outage.begin(0.0)
                matters, merged = bool(page.events or page.notices or declares), MergedRows()
                if matters:
                    declares = False
                    self._check_page(page, begins)
                    merged = self._merge(page, how)
                    how["create"] = "first"
                report = self._merged(page, begins, merged)
                # An idle page moves the position too, so that the service keeps what follows it.
                at = time.monotonic()
                if matters or at - saved_at >= _IDLE_SECONDS:
                    self._save(page.continuation_token, now=False)
                    saved_at = at
                self._tell(page)
                if self._stopped.is_set():
                    break
        if page is not None:
            self._save(page.continuation_token, now=True)
        caught_up = not follows and page is not None and not self._stopped.is_set()
        report = attrs.evolve(report, seconds=time.monotonic() - began, caught_up=caught_up)
        before = [] if self._setter is None else self._setter.records()
        with self.reading.turn:
            # One that is stopped while it waits for its turn does neither.
            caught_up = caught_up and not self._stopped.is_set()
            if settings.get("prove") and caught_up:
                report = self._proved(report)
            if caught_up and report.caught_up and (report.proof is None or report.proof.equal):
                report = self._tidied(report, None if page is None else page.diagnostics.watermark)
        if self._setter is None:
            with self._to.turn:
                found = self._to.found()
            mark = None if found is None else found.mark
            return report if mark is None else attrs.evolve(report, incomplete_since=mark.incomplete_since)
        if report.proof is not None and not report.proof.exit_code:
            self._setter.forget(before)  # nothing of these is missing
        return attrs.evolve(report, set_aside=self._setter.count())

    def _tidied(self, report: MirrorReport, watermark: datetime | None) -> MirrorReport:
        """Remove what is not needed any more: every change up to the stored position is in the table.

        A tombstone keeps an older change from bringing its document back, and after this position none comes:
        a RESTORE that takes the position back brings the tombstones back too. But a reading that several
        tables share repeats what some partitions have had since the watermark of the position.
        """
        if (kept := self._settings.get("tombstones")) is not None and self._to.found() is not None:
            try:
                before = datetime.now(UTC) - kept
            except OverflowError:
                before = datetime.min.replace(tzinfo=UTC)
            if self.reading.shared is not None:
                before = min(before, watermark or before)
            report = attrs.evolve(report, tombstones=self._to.drop_tombstones(before))
        if self._settings.get("compact") and self._to.found() is not None:
            self._to.compact()
        return report

    def _run_on_spark(self, request: ChangeFeedRequest, begins: str, how: How) -> MirrorReport | None:
        """Let Spark read; each micro-batch is merged here, and then its position is stored."""
        reading = self._spark = _spark_reading()(
            self._settings["spark"], self._client.config, request, follows=self._settings.get("follow", False)
        )
        if self._stopped.is_set():  # meanwhile
            return self._report
        own, next_begins = list[MulticloudDbError](), begins

        def took(page: ChangeFeedPage, tables: Callable[[], Iterator[pa.Table]]) -> None:
            nonlocal next_begins
            try:
                self._merge_tables(page, tables, begins, how)
            except MulticloudDbError as error:
                own.append(error)
                raise
            next_begins = "position"  # where another run would begin

        try:
            reading.run(took)
        except MulticloudDbError as error:
            if error in own:
                raise
            raise self._of_the_source(error, next_begins) from error
        return self._report

    def _merge_tables(
        self, page: ChangeFeedPage, tables: Callable[[], Iterator[pa.Table]], begins: str, how: How
    ) -> None:
        """Merge what Spark has read as a page is merged: a snapshot begins, rows, it ends, the position."""
        self._outage.begin(0.0)
        self._check_page(page, begins)
        ends = tuple(each for each in page.notices if isinstance(each, BackfillDone))
        others = tuple(each for each in page.notices if not isinstance(each, BackfillDone))
        events = deletes = 0
        with counted_rescues() as rescued, advising():
            # Without rows or notices too, because it shows whether the table was dropped or restored.
            self._to.merge_alone(attrs.evolve(page, notices=others), **how)
            for table in tables():
                self._to.merge_alone(table, **how)
                events += table.num_rows
                deletes += table.column("type").to_pylist().count(ChangeType.DELETE.value)
            self._to.merge(attrs.evolve(page, notices=ends), **how)
        how["create"] = "first"
        self._merged(page, begins, MergedRows(events, deletes, sum(rescued)))
        self._save(page.continuation_token, now=not self._settings.get("follow", False))
        self._tell(page)

    def _check_page(self, page: ChangeFeedPage, begins: str) -> None:
        """Refuse a page whose rows do not belong into the table."""
        if begins == "snapshot" and page.resumed_from is None and not self._settings.get("adopt"):
            check_same_feed(self._to, self._mark, page)
        self._check_notices(page)

    def _merged(self, page: ChangeFeedPage, begins: str, merged: MergedRows) -> MirrorReport:
        """Return the report after a page."""
        report = self._report
        assert report is not None
        if begins == "position" and any(isinstance(each, SnapshotStarted) for each in page.notices):
            report = attrs.evolve(report, began="expired")
        if report.rescued is not None:
            report = attrs.evolve(report, rescued=report.rescued + merged.rescued)
        self._report = attrs.evolve(
            report,
            events=report.events + merged.events,
            deletes=report.deletes + merged.deletes,
            pages=report.pages + bool(merged.events),
            # During a copy it is the moment from which on changes are read, and rows are missing.
            watermark=None if page.diagnostics.snapshot is not None else page.diagnostics.watermark,
            lag_seconds=page.diagnostics.lag_seconds,
        )
        self._outage.ended()
        self._schedule.succeeded(page, 0.0)
        return self._report

    def _tell(self, page: ChangeFeedPage) -> None:
        report, on_progress = self._report, self._settings.get("on_progress")
        if on_progress is not None and report is not None:
            scan = page.diagnostics.snapshot
            on_progress(MirrorProgress(report.events, report.deletes, scan, report.lag_seconds))

    def _merge(self, page: ChangeFeedPage, how: How) -> MergedRows:
        """Merge a page; a refusal names what a mirror can do about it."""
        with self._to.turn, advising():
            return (
                self._to.merge_counted(page, how) if self._setter is None else self._setter.merge(page, how)
            )

    def _save(self, token: str, *, now: bool) -> None:
        with self._to.turn:
            self._to.save(token, now=now)

    def _pages(self, changes: Changes, begins: str) -> Iterator[ChangeFeedPage]:
        """Yield the pages; if the collection of the stored position is gone, say what to do."""
        try:
            for page in changes.pages():
                yield page
                begins = "position"  # where another run would begin
        except MulticloudDbError as error:
            if (told := self._of_the_source(error, begins)) is error:
                raise
            raise told from error

    def _of_the_source(self, error: MulticloudDbError, begins: str) -> MulticloudDbError:
        """Return the error of reading, with the way out of a mirror."""
        self._source_error = error = without_documents(error)
        if error.category == ErrorCategory.CHECKPOINT_EXPIRED:
            problem, _, _ = error.message.partition("; ")
            way_out = 'on_expired="resnapshot" (--on-expired resnapshot) copies every row again'
            self._source_error = MulticloudDbError(f"{problem}; {way_out}", error.detail)
        elif begins == "position" and error.category in (
            ErrorCategory.NOT_FOUND,
            ErrorCategory.INVALID_REQUEST,
        ):
            self._source_error = MulticloudDbError(f"{error.message}; {self._again()}", error.detail)
        return self._source_error

    def _start(
        self, stored: str | None, *, refills: bool
    ) -> tuple[Literal["snapshot", "position", "start"], StartPosition]:
        given = self._settings.get("start")
        # After a failure of the table, the run goes on with the copy that it has begun.
        anew = (self._settings.get("resync") or refills) and (stored,) == self._first_stored
        if stored is not None and not anew:
            check_own(self._to, self._address, stored)
            return "position", FromContinuationToken(stored)
        if given is not None and not anew:
            self._check_start(given)
            return ("snapshot" if isinstance(given, Snapshot) else "start"), given
        return "snapshot", Snapshot(max_scan_rate=self._settings.get("max_scan_rate"))

    def _check_start(self, start: StartPosition) -> None:
        """Refuse a start after which the table would lack rows that no change brings."""
        if isinstance(start, Now | AtTime):
            raise invalid_request(
                "start",
                f"is {type(start).__name__}, and rows that have not changed since then would never come",
                "leave it out, which copies every row first",
            )
        if isinstance(start, FromContinuationToken) and self._found is None:
            raise invalid_request(
                "start",
                f"is a token, but there is no {self._to.name} with the rows from before it",
                "leave it out, which copies every row first; or name the table that was filled up to it",
            )

    @property
    def _mark(self) -> TableMark | None:
        """The mark that the table had at the start; None if there was no table, or none on it."""
        return None if self._found is None else self._found.mark

    def _how(self, begins: str, stored: str | None, columns: Columns | None) -> How:
        may_lack = self._client.capabilities(self._settings.get("provider_options")).updates_may_lack_state
        how: How = {
            "missing_state": "keep" if may_lack else "refuse",
            "columns": columns,
            "refill": self._settings.get("refill", False),
            "create": "first",
        }
        if begins != "snapshot" and self._found is not None and self._mark is None:
            # The first merge takes over a table without a mark if its user says so, or has said so in an
            # earlier run that has merged nothing: then the position is with the table.
            takes_over = bool(self._settings.get("adopt")) or (stored is not None and self._to.is_kept)
            how["create"] = "always" if takes_over else "first"
        if begins == "position" and how["create"] != "always":
            check_rows(self._to, self._mark)
        return how

    def _check_adopted(self, stored: str | None) -> None:
        """Refuse a table that somebody else has filled: a snapshot would bury rows that are not in it."""
        if stored is not None or self._settings.get("adopt") or self._found is None or self._mark is not None:
            return
        with closing(self._to.target.rows()) as rows:  # type: ignore[type-var]
            has_rows = any(batch.num_rows for batch in rows)
        if has_rows:
            raise invalid_request(
                "target",
                f"{self._to.name} has rows, and no mark of a mirror: something else has filled it",
                "name a new table; or pass adopt=True (--adopt) to make it the mirror, after which rows that "
                "are not in the collection count as deleted",
                ErrorReason.WRONG_RESOURCE,
            )

    def _again(self) -> str:
        return (
            f"if {self._address} was made again, run once with resync=True (--resync), which copies it and "
            "buries the old rows; else drop the table, or stop running this mirror"
        )

    def _check_notices(self, page: ChangeFeedPage) -> None:
        """End with the reason if the rows of the table are those of a collection that is gone."""
        for notice in page.notices:
            what = other_rows(notice)
            if isinstance(notice, FeedEnded):
                what = f"{self._address} has no changes any more ({notice.reason})"
            if what is not None:
                raise invalid_request(
                    "collection",
                    f"{what}, and {self._to.name} still has its rows; nothing of this page was merged",
                    self._again(),
                    ErrorReason.REPLACED,
                )

    def _proved(self, report: MirrorReport) -> MirrorReport:
        """Compare the table with the collection, and go on merging what changes meanwhile.

        A row that has changed since the stored position can only be judged when the change is merged.
        """
        from multiclouddb_verify.verification import Verification, VerifySettings, checked

        def listen() -> None:
            if self._stopped.is_set() or (following.done() and following.exception() is not None):
                raise _Stopped

        how: VerifySettings = {
            "position": self._to.stored,
            "max_scan_rate": self._settings.get("max_scan_rate"),
            "provider_options": self._settings.get("provider_options"),
            "record": True,
            "on_progress": self._settings.get("on_proof_progress"),
        }
        source = checked(self._client, self._address, self._to.target, Target, how)
        settings = self._settings.copy()
        settings.update({"follow": True, "prove": False, "resync": False, "refill": False, "position": None})
        settings.update({"tombstones": None, "compact": False})
        for name in ("on_progress", "spark"):
            settings.pop(name, None)  # type: ignore[misc] # one of two names
        follower = self._follower = Mirror(self._client, self._address, self._to, **settings)
        with ThreadPoolExecutor(1, "multiclouddb-mirror") as aside:
            following = aside.submit(follower._run)
            proof: Report | None = None
            try:
                advice = "a proof of a mirror reads the source again"
                proof = Verification(source, self._to.target, listen=listen, advice=advice, **how).run()
            except _Stopped:
                pass  # by its user, or because merging has failed
            finally:
                follower.stop()
            later = following.result()
        if proof is not None and self._setter is not None:
            proof = self._setter.noted(proof)
        if proof is not None and proof.equal and self._to.found() is not None:
            self._to.store({PROVED: to_micros(datetime.now(UTC))})
        return attrs.evolve(
            report,
            events=report.events + later.events,
            deletes=report.deletes + later.deletes,
            pages=report.pages + later.pages,
            rescued=None if report.rescued is None else report.rescued + (later.rescued or 0),
            caught_up=proof is not None,
            proof=proof,
        )


def page_bounds(*, follows: bool) -> tuple[int, float]:
    """Return the most events of a page, and for how many seconds a read waits for changes.

    Args:
        follows: See `MirrorSettings.follow`.
    """
    return _PAGE_EVENTS, _WAIT_SECONDS if follows else 0.0


def is_outage(error: MulticloudDbError) -> bool:
    """Return whether a server that does not answer now may answer soon."""
    return error.retryable and error.category in (ErrorCategory.TRANSIENT_FAILURE, ErrorCategory.THROTTLED)


class _Stopped(Exception):  # noqa: N818 - nothing is wrong
    """Ends a comparison."""


def _spark_reading() -> Any:
    """Return the class that reads on Spark, which another distribution offers."""
    for point in entry_points(group="multiclouddb.mirrors"):
        if point.name == "spark":
            try:
                return point.load()
            except ImportError as error:
                trouble = f"cannot import {error.name}"
                break
    else:
        trouble = "multiclouddb-spark is not installed"
    raise MulticloudDbError(
        f'spark: {trouble}; run: pip install "multiclouddb[spark]"',
        ErrorDetail(ErrorCategory.INVALID_REQUEST, reason=ErrorReason.NOT_INSTALLED),
    )
