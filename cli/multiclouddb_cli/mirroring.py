"""`multiclouddb mirror` keeps a table equal to a collection."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Unpack

import typer

from multiclouddb_api import (
    ClientConfig,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbError,
    ResourceAddress,
    connect,
)
from multiclouddb_cli.screen import ProgressLine, duration, moment, print_fields, snapshot_line
from multiclouddb_cli.session import until_signal
from multiclouddb_cli.tail import OutageReport, StatusLine
from multiclouddb_cli.verifying import print_report, verify_line

if TYPE_CHECKING:
    from multiclouddb_mirror import MirrorProgress, MirrorReport, MirrorSettings


def mirror(
    config: ClientConfig,
    address: ResourceAddress,
    target: str,
    *,
    as_json: bool,
    **settings: Unpack[MirrorSettings],
) -> None:
    """Run the command with the text of `--target`, and the settings of `mirror`."""
    try:
        from multiclouddb_mirror import Mirror
    except ImportError as error:
        raise MulticloudDbError(
            f'mirror: cannot import {error.name}; run: pip install "multiclouddb[verify]"',
            ErrorDetail(ErrorCategory.INVALID_REQUEST),
        ) from error
    line, proof = ProgressLine(_line), ProgressLine(verify_line)
    outages = OutageReport(StatusLine())
    report: MirrorReport | None = None
    follows = settings.get("follow", False)
    try:
        with until_signal() as interrupt, connect(config, observer=outages) as client:
            job = Mirror(
                client, address, target,
                **{**settings, "on_progress": line.show, "on_proof_progress": proof.show},
            )  # fmt: skip
            interrupt.stop = job.stop
            try:
                report = job.run()
            finally:
                line.clear()
                proof.clear()
            _print(report, as_json=as_json)
    except typer.Exit as end:
        # What follows until it is stopped has done its work when it is.
        if not (follows and report is not None and end.exit_code == 128 + signal.SIGTERM):
            raise
    if report is not None and report.proof is not None:
        raise typer.Exit(report.proof.exit_code)


def _line(progress: MirrorProgress, a_second: float | None) -> str:
    if progress.snapshot is not None:
        return snapshot_line(progress.snapshot, a_second)
    words = [f"{progress.events:,} changes", f"lag {duration(progress.lag_seconds)}"]
    if a_second:
        words.append(f"{a_second:,.0f} a second")
    return "  ".join(words)


_BEGAN = {
    "snapshot": "with a copy of every row",
    "position": "where the last run ended",
    "start": "where --from says",
}


def _print(report: MirrorReport, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
        return
    print_fields(
        [
            ("table", report.table),
            ("began", _BEGAN[report.began]),
            ("merged", f"{report.events:,} rows and changes, of them {report.deletes:,} deletes"),
            ("state", "every change is read" if report.caught_up else "stopped"),
            ("right at", moment(report.watermark)),
            ("behind", duration(report.lag_seconds)),
            ("time", duration(report.seconds)),
        ]
    )
    if report.proof is not None:
        print_report(report.proof, show_values=False)
