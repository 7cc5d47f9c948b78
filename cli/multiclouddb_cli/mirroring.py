"""`multiclouddb mirror` keeps a table equal to a collection."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

import typer

from multiclouddb_api import ClientConfig, MulticloudDbError, ResourceAddress, connect
from multiclouddb_api.request import is_same_collection
from multiclouddb_cli.arguments import to_options
from multiclouddb_cli.exits import SET_ASIDE
from multiclouddb_cli.failure import installed
from multiclouddb_cli.failure import report as report_error
from multiclouddb_cli.log import say
from multiclouddb_cli.mirrored import end_with, failure_of, told_failure
from multiclouddb_cli.screen import ProgressLine, counted, duration, moment, print_fields, snapshot_line
from multiclouddb_cli.session import until_signal
from multiclouddb_cli.tail import OutageReport, StatusLine
from multiclouddb_cli.verifying import print_report, verify_line, verify_warnings
from multiclouddb_cli.watched import Watched, WatchedTable, served

if TYPE_CHECKING:
    from multiclouddb_mirror import (
        Mirror,
        MirrorJob,
        MirrorProgress,
        MirrorReport,
        MirrorSettings,
        Outcome,
        ProvedMirror,
    )
    from multiclouddb_verify import Progress, Report


def mirror(
    config: ClientConfig,
    address: ResourceAddress,
    target: str,
    *,
    as_json: bool,
    listen: tuple[str, int] | None = None,
    prove_seconds: float | None = None,
    **settings: Unpack[MirrorSettings],
) -> None:
    """Run the command with the text of `--target`, and the settings of `mirror`."""
    with installed("mirror"):
        from multiclouddb_mirror import Mirror, MirrorJob, ProvedMirror
    line, proof = ProgressLine(_line), ProgressLine(verify_line)
    job = MirrorJob(address, target)
    watched, table = Watched(), _watched(job, settings)
    watched.add(table)

    def clear() -> None:
        line.clear()
        proof.clear()

    def on_progress(progress: MirrorProgress) -> None:
        line.show(progress)
        table.turned(progress)
        watched.turned()

    def on_proof_progress(progress: Progress) -> None:
        proof.show(progress)
        table.alive()
        watched.turned()

    def on_run(report: MirrorReport) -> None:
        clear()
        table.run_ended()
        if report.proof is not None:
            table.proved(int(report.proof.exit_code))
            if prove_seconds is not None:
                say(f"proof: {_counts(report.proof)}")

    settings.update({"on_progress": on_progress, "on_proof_progress": on_proof_progress})
    outages = _Outages(lambda: [(address, table)])
    with (
        served(watched, listen),
        verify_warnings(clear),
        _ends_well(follows=settings.get("follow", False)),
        until_signal() as interrupt,
        connect(config, observer=outages) as client,
    ):

        def made(chosen: MirrorSettings) -> Mirror:
            return Mirror(client, address, target, **chosen)

        if prove_seconds is None:
            running: Mirror | ProvedMirror = made(settings)
        else:
            running = ProvedMirror(made, settings, prove_seconds, on_run)
        interrupt.stop = running.stop
        if interrupt.signal is not None:  # meanwhile
            running.stop()
        try:
            report = running.run()
        finally:
            clear()
        if prove_seconds is None:
            on_run(report)
        watched.stopping()
        _print(report, as_json=as_json)
    end_with([_code(report)])


class _Outages(OutageReport):
    """Prints an outage, and notes it for the tables of the collection."""

    def __init__(
        self, tables: Callable[[], Iterable[tuple[ResourceAddress, WatchedTable]]], *, several: bool = False
    ) -> None:
        super().__init__(StatusLine(), several=several)
        self._tables = tables

    def outage(self, address: ResourceAddress, seconds: float, reason: str) -> None:
        super().outage(address, seconds, reason)
        self._note(address, seconds)

    def outage_ended(self, address: ResourceAddress, seconds: float) -> None:
        super().outage_ended(address, seconds)
        self._note(address, None)

    def _note(self, address: ResourceAddress, seconds: float | None) -> None:
        # Several tables may share a reading of their database.
        shared = address.database if address.collection is None else None
        for other, table in self._tables():
            if is_same_collection(address, other) or (shared is not None and other.database == shared):
                table.outage(seconds)


def _code(report: MirrorReport) -> int:
    """Return the exit code of a run; differences come before what is set aside, which may be their cause."""
    proof = 0 if report.proof is None else int(report.proof.exit_code)
    return proof or (SET_ASIDE if report.set_aside or report.incomplete_since else 0)


def _watched(job: MirrorJob, settings: MirrorSettings) -> WatchedTable:
    """Return what is told of a table."""
    from multiclouddb_api.set_aside import SetAsideFolder

    labels, folder = {"collection": str(job.address), "table": job.table}, settings.get("set_aside")
    if folder is None:
        return WatchedTable(labels)
    kept = SetAsideFolder(folder)
    # The files are counted when somebody asks, because a retry removes them meanwhile.
    return WatchedTable(labels, lambda: len(kept.records(job.address, job.table)))


def mirror_file(
    path: str,
    options: Sequence[str],
    *,
    as_json: bool,
    listen: tuple[str, int] | None = None,
    prove_seconds: float | None = None,
    **settings: Unpack[MirrorSettings],
) -> None:
    """Run the mirrors of a file, with the texts of `--option`."""
    with installed("mirror"):
        from multiclouddb_mirror import MirrorFile, Mirrors
    file, codes = MirrorFile.read(path), list[int]()
    settings["provider_options"] = to_options(file.config, options)

    watched = Watched()
    tables: dict[MirrorJob, WatchedTable] = {}
    lines: dict[MirrorJob, ProgressLine[MirrorProgress]] = {}

    def on_page(job: MirrorJob, progress: MirrorProgress) -> None:
        lines[job].show(progress)
        tables[job].turned(progress)
        watched.turned()

    def paused(job: MirrorJob, error: MulticloudDbError) -> None:
        tables[job].failed(error, ends=False)
        watched.turned()
        lines[job].clear()
        told_failure(job, error, ", which is tried again every minute")

    def ran(job: MirrorJob, report: MirrorReport) -> None:
        lines[job].clear()
        tables[job].run_ended()
        if report.proof is not None:
            tables[job].proved(int(report.proof.exit_code))
            say(f"{job.address}, {job.table}: proof: {_counts(report.proof)}")

    def told(job: MirrorJob, outcome: Outcome) -> None:
        lines[job].clear()
        if isinstance(outcome, MulticloudDbError):
            tables[job].failed(outcome, ends=True)
            watched.turned()
            follows = settings.get("follow", False) and len(tables) > 1
            codes.append(told_failure(job, outcome, ", which is not followed any more" if follows else ""))
            if as_json:
                typer.echo(json.dumps(failure_of(job, outcome)))
            return
        codes.append(_code(outcome))
        typer.echo(json.dumps(outcome.to_dict()) if as_json else _summary(outcome))

    def listed() -> list[MirrorJob]:
        found = file.jobs(client)
        new = [job for job in found if job not in tables]
        lines.update({job: ProgressLine(_line_of(job)) for job in new})
        tables.update({job: _watched(job, settings) for job in new})
        watched.add(*(tables[job] for job in new))
        return found

    def listed_again() -> list[MirrorJob]:
        try:
            return listed()
        except MulticloudDbError as error:
            say(f"the collections of {file.path.name}, which are listed again every minute:")
            report_error(error, debug=False)
            return []

    def clear() -> None:
        for line in tuple(lines.values()):
            line.clear()

    # A copy, because collections may be found meanwhile.
    outages = _Outages(lambda: [(job.address, table) for job, table in tuple(tables.items())], several=True)
    with (
        served(watched, listen),
        verify_warnings(clear),
        _ends_well(follows=settings.get("follow", False)),
        until_signal() as interrupt,
        connect(file.config, observer=outages) as client,
    ):
        with interrupt.reading():
            jobs = listed()
        mirrors = Mirrors(
            client, jobs, told, on_page=on_page, on_pause=paused, find=listed_again if file.lists else None,
            prove_seconds=prove_seconds, on_run=ran, **settings,
        )  # fmt: skip
        interrupt.stop = mirrors.stop
        mirrors.run()
        watched.stopping()
    end_with(codes)


def _summary(report: MirrorReport) -> str:
    """Return what became of one of several tables, in a line."""
    state = "every change is read" if report.caught_up else "stopped"
    proof = "" if report.proof is None else "  EQUAL" if report.proof.equal else "  NOT EQUAL"
    aside = f"  {report.set_aside:,} set aside" if report.set_aside else ""
    if report.incomplete_since:
        aside = f"  incomplete since {report.incomplete_since}"
    rescued = "" if report.rescued is None else f"  {report.rescued:,} with values in _rescued"
    return f"{report.address}  {report.table}  {report.events:,} merged{rescued}{aside}  {state}{proof}"


@contextmanager
def _ends_well(*, follows: bool) -> Iterator[None]:
    """Take SIGTERM for the usual end of what follows until it is stopped; an error is one all the same."""
    try:
        yield
    except typer.Exit as end:
        if not follows or end.exit_code != 128 + signal.SIGTERM:
            raise


def _line(progress: MirrorProgress, a_second: float | None) -> str:
    if progress.snapshot is not None:
        return snapshot_line(progress.snapshot, a_second)
    words = [
        counted(progress.events, "change"),
        f"lag {duration(progress.lag_seconds)}",
    ]
    if a_second:
        words.append(f"{a_second:,.0f} a second")
    return "  ".join(words)


def _rows(count: int) -> str:
    return counted(count, "row")


def _counts(proof: Report) -> str:
    """Return what a proof has found, in a line."""
    counts = proof.counts
    parts = [f"{counts.equal:,} equal"]
    parts += [f"{count:,} {kind.value}" for kind, count in counts.differences.items()]
    parts += [f"{counts.unsettled:,} not settled"] if counts.unsettled else []
    return f"{proof.outcome.value}: {', '.join(parts)}"


def _line_of(job: MirrorJob) -> Callable[[MirrorProgress, float | None], str]:
    """Return `_line` for one of several tables."""
    return lambda progress, a_second: f"{job.address}, {job.table}: {_line(progress, a_second)}"


def _rescued(count: int) -> str:
    """Return how many rows have values that do not fit."""
    return f"{_rows(count)} {'has' if count == 1 else 'have'} values in _rescued, of the merged ones"


_BEGAN = {
    "snapshot": "with a copy of every row",
    "position": "where the last run ended",
    "start": "where --from says",
    "expired": "with a copy of every row, because changes after the last run were no longer kept",
}


def _print(report: MirrorReport, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
        return
    merged = "1 row or change" if report.events == 1 else f"{report.events:,} rows and changes"
    began = _BEGAN[report.began]
    if report.began == "snapshot" and not (report.caught_up or report.pages or report.watermark):
        began = "not yet: it was stopped before a row was copied"
    print_fields(
        [
            ("table", report.table),
            ("began", began),
            ("merged", f"{merged}, of them {counted(report.deletes, 'delete')}"),
            *([] if report.tombstones is None else [("tombstones", f"{_rows(report.tombstones)} removed")]),
            *([] if report.rescued is None else [("rescued", _rescued(report.rescued))]),
            ("state", "every change is read" if report.caught_up else "stopped"),
            ("right at", moment(report.watermark)),
            ("behind", duration(report.lag_seconds)),
            ("time", duration(report.seconds)),
            *(
                [("set aside", f"{_rows(report.set_aside)}, of which the table lacks the present one")]
                if report.set_aside
                else []
            ),
            *(
                [("incomplete", f"since {report.incomplete_since}: retry what is set aside, then --prove")]
                if report.incomplete_since
                else []
            ),
        ]
    )
    if report.proof is not None:
        print_report(report.proof, show_values=False)
