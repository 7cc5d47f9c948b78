"""`multiclouddb mirror` keeps a table equal to a collection."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Unpack

import attrs
import typer

from multiclouddb_api import (
    ClientConfig,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    ProviderOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_api.request import is_same_collection
from multiclouddb_cli.arguments import to_options
from multiclouddb_cli.exits import SET_ASIDE
from multiclouddb_cli.failure import facts_of, scrub
from multiclouddb_cli.failure import report as report_error
from multiclouddb_cli.screen import ProgressLine, duration, moment, print_fields, snapshot_line
from multiclouddb_cli.session import until_signal
from multiclouddb_cli.tail import OutageReport, StatusLine
from multiclouddb_cli.verifying import print_report, verify_line
from multiclouddb_cli.watched import Watched, WatchedTable, served

if TYPE_CHECKING:
    from multiclouddb_mirror import MirrorJob, MirrorProgress, MirrorReport, MirrorSettings, Outcome
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
    with _installed():
        from multiclouddb_mirror import Mirror, MirrorJob
    line, proof = ProgressLine(_line), ProgressLine(verify_line)
    watched, table = Watched(), _watched(MirrorJob(address, target), settings)
    watched.add(table)

    def on_progress(progress: MirrorProgress) -> None:
        line.show(progress)
        table.turned(progress)
        watched.turned()

    def on_proof_progress(progress: Progress) -> None:
        proof.show(progress)
        table.alive()
        watched.turned()

    settings.update({"on_progress": on_progress, "on_proof_progress": on_proof_progress})
    outages, code = _Outages(lambda: [(address, table)]), 0
    with (
        served(watched, listen),
        _ends_well(follows=settings.get("follow", False)),
        until_signal() as interrupt,
        connect(config, observer=outages) as client,
    ):
        proved: Report | None = None
        while True:
            job = Mirror(client, address, target, **settings)
            interrupt.stop = job.stop
            if interrupt.signal is not None:  # meanwhile
                job.stop()
            is_following = settings.get("follow", False)
            try:
                with _after(prove_seconds if is_following else None, job.stop):
                    report = job.run()
            finally:
                line.clear()
                proof.clear()
            table.run_ended()
            if report.proof is not None:
                proved = report.proof
                table.proved(int(proved.exit_code))
            if prove_seconds is None or interrupt.signal is not None:
                break
            if report.proof is not None:
                typer.echo(f"proof: {_counts(report.proof)}", err=True)
            # It follows until a proof is due; the proof goes on merging, and the next run from there.
            settings.update(
                {"follow": not is_following, "prove": is_following, "resync": False, "refill": False}
            )
        watched.stopping()
        report = attrs.evolve(report, proof=proved)
        _print(report, as_json=as_json)
        code = _code(report)
    if code:
        raise typer.Exit(code)


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
        for other, table in self._tables():
            if is_same_collection(address, other):
                table.outage(seconds)


@contextmanager
def _after(seconds: float | None, call: Callable[[], None]) -> Iterator[None]:
    """Call a function when a block has run for some time."""
    timer = None if seconds is None else Timer(seconds, call)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def retry(
    config: ClientConfig,
    address: ResourceAddress,
    target: str,
    position: str | None,
    folder: Path,
    options: ProviderOptions | None,
    *,
    as_json: bool,
) -> None:
    """Run the command with the folder of `--retry`."""
    with _installed():
        from multiclouddb_mirror import destination_of, retry_set_aside
    from multiclouddb_api.set_aside import SetAsideFolder

    with connect(config) as client:
        table = destination_of(target, position)
        report = retry_set_aside(client, address, table, SetAsideFolder(folder), options)
    if as_json:
        typer.echo(json.dumps(attrs.asdict(report)))
    else:
        print_fields(
            [
                ("table", report.table),
                ("written", f"{report.written:,} rows"),
                ("newer", f"{report.newer:,} of which the table has a newer change"),
                ("left", f"{report.left:,}"),
                *(("because", scrub(each)) for each in report.reasons),
            ]
        )
    if report.left:
        raise typer.Exit(SET_ASIDE)


def estimate(
    config: ClientConfig,
    address: ResourceAddress,
    target: str,
    position: str | None,
    max_scan_rate: float | None,
    options: ProviderOptions | None,
    *,
    as_json: bool,
) -> None:
    """Print what a run will read, and end with the code of the first thing that is missing."""
    with _installed():
        from multiclouddb_mirror import destination_of, estimate_mirror
    with until_signal() as interrupt, connect(config) as client, interrupt.reading():
        found = estimate_mirror(
            client, address, destination_of(target, position), max_scan_rate=max_scan_rate,
            provider_options=options,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        fields = [("table", found.table), ("begins", _BEGAN[found.begins])]
        if (scan := found.scan) is not None:
            fields += [
                ("rows", "not known" if scan.rows is None else f"about {scan.rows:,}"),
                ("units", "not known" if scan.units is None else f"{scan.units:,.0f}: {scan.price}"),
                ("time", duration(scan.seconds) if scan.seconds else "not known: give --max-scan-rate"),
            ]
        may = {None: "not known", True: "yes", False: "no"}[found.may_write]
        print_fields([*fields, ("may write", may), ("missing", f"{len(found.problems)}")])
    codes = [report_error(each, debug=False) for each in found.problems]
    if codes:
        raise typer.Exit(codes[0])


def status(target: str, position: str | None, folder: Path | None, *, as_json: bool) -> None:
    """Print how a table is, and end with 18 if something is set aside."""
    with _installed():
        from multiclouddb_mirror import destination_of, mirror_status
    from multiclouddb_api.set_aside import SetAsideFolder

    found = mirror_status(
        destination_of(target, position), None if folder is None else SetAsideFolder(folder)
    )
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        rows = "there is no table"
        if found.rows is not None:
            rows = f"{found.rows:,}, and {found.deleted:,} of deleted documents"
        aside = "not asked: give --set-aside" if found.set_aside is None else f"{found.set_aside:,}"
        print_fields(
            [
                ("table", found.table),
                ("collection", "not known" if found.address is None else str(found.address)),
                ("rows", rows),
                *([("copy", "not complete: rows may be missing")] if found.is_copying else []),
                ("right at", moment(found.watermark)),
                ("lag", f"at most {duration(found.lag_seconds)}" if found.watermark else "not known"),
                ("position of", moment(found.stored_at)),
                ("incomplete", "no" if found.incomplete_since is None else f"since {found.incomplete_since}"),
                ("proved equal", moment(found.proved_at) if found.proved_at else "never with --prove"),
                ("set aside", aside),
            ]
        )
    if found.set_aside:
        raise typer.Exit(SET_ASIDE)


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
    **settings: Unpack[MirrorSettings],
) -> None:
    """Run the mirrors of a file, with the texts of `--option`."""
    with _installed():
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
        typer.echo(f"{job.address}, {job.table}, which is tried again every minute:", err=True)
        report_error(error, debug=False)

    def told(job: MirrorJob, outcome: Outcome) -> None:
        lines[job].clear()
        if isinstance(outcome, MulticloudDbError):
            tables[job].failed(outcome, ends=True)
            watched.turned()
            follows = settings.get("follow", False) and len(tables) > 1
            what = ", which is not followed any more" if follows else ""
            typer.echo(f"{job.address}, {job.table}{what}:", err=True)
            codes.append(report_error(outcome, debug=False))
            if as_json:
                failed = {"address": str(job.address), "table": job.table, "error": facts_of(outcome)}
                typer.echo(json.dumps(failed))
            return
        codes.append(_code(outcome))
        if as_json:
            typer.echo(json.dumps(outcome.to_dict()))
            return
        state = "every change is read" if outcome.caught_up else "stopped"
        proof = "" if outcome.proof is None else "  EQUAL" if outcome.proof.equal else "  NOT EQUAL"
        aside = f"  {outcome.set_aside:,} set aside" if outcome.set_aside else ""
        if outcome.incomplete_since:
            aside = f"  incomplete since {outcome.incomplete_since}"
        rescued = "" if outcome.rescued is None else f"  {outcome.rescued:,} with values in _rescued"
        merged = f"{outcome.events:,} merged{rescued}{aside}"
        typer.echo(f"{outcome.address}  {outcome.table}  {merged}  {state}{proof}")

    outages = _Outages(lambda: [(job.address, table) for job, table in tables.items()], several=True)
    with (
        served(watched, listen),
        _ends_well(follows=settings.get("follow", False)),
        until_signal() as interrupt,
        connect(file.config, observer=outages) as client,
    ):
        with interrupt.reading():
            jobs = file.jobs(client)
        tables |= {job: _watched(job, settings) for job in jobs}
        lines |= {job: ProgressLine(_line_of(job)) for job in jobs}
        watched.add(*tables.values())
        mirrors = Mirrors(client, jobs, told, on_page=on_page, on_pause=paused, **settings)
        interrupt.stop = mirrors.stop
        mirrors.run()
        watched.stopping()
    # What is set aside comes after the failure of another table, which says more.
    code = max((each for each in codes if each != SET_ASIDE), default=0) or max(codes, default=0)
    if code:
        raise typer.Exit(code)


@contextmanager
def _ends_well(*, follows: bool) -> Iterator[None]:
    """Take SIGTERM for the usual end of what follows until it is stopped; an error is one all the same."""
    try:
        yield
    except typer.Exit as end:
        if not follows or end.exit_code != 128 + signal.SIGTERM:
            raise


@contextmanager
def _installed() -> Iterator[None]:
    """Say what to install if an import in the block fails."""
    try:
        yield
    except ImportError as error:
        raise MulticloudDbError(
            f'mirror: cannot import {error.name}; run: pip install "multiclouddb[verify]"',
            ErrorDetail(ErrorCategory.INVALID_REQUEST, reason=ErrorReason.NOT_INSTALLED),
        ) from error


def _line(progress: MirrorProgress, a_second: float | None) -> str:
    if progress.snapshot is not None:
        return snapshot_line(progress.snapshot, a_second)
    words = [
        f"{progress.events:,} change{'' if progress.events == 1 else 's'}",
        f"lag {duration(progress.lag_seconds)}",
    ]
    if a_second:
        words.append(f"{a_second:,.0f} a second")
    return "  ".join(words)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


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
    deletes = f"{report.deletes:,} delete{'' if report.deletes == 1 else 's'}"
    print_fields(
        [
            ("table", report.table),
            ("began", _BEGAN[report.began]),
            ("merged", f"{report.events:,} rows and changes, of them {deletes}"),
            *([] if report.tombstones is None else [("tombstones", f"{_rows(report.tombstones)} removed")]),
            *([] if report.rescued is None else [("rescued", _rescued(report.rescued))]),
            ("state", "every change is read" if report.caught_up else "stopped"),
            ("right at", moment(report.watermark)),
            ("behind", duration(report.lag_seconds)),
            ("time", duration(report.seconds)),
            *(
                [("set aside", f"{_rows(report.set_aside)}, which the table lacks as they are now")]
                if report.set_aside
                else []
            ),
            *(
                [("incomplete", f"since {report.incomplete_since}: give --set-aside, or --prove")]
                if report.incomplete_since
                else []
            ),
        ]
    )
    if report.proof is not None:
        print_report(report.proof, show_values=False)
