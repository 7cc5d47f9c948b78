"""`multiclouddb mirror --estimate` says what a copy reads, and whether rights and settings are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import typer

from multiclouddb_api import ClientConfig, MulticloudDbError, ProviderOptions, ResourceAddress, connect
from multiclouddb_cli.arguments import to_options
from multiclouddb_cli.failure import installed
from multiclouddb_cli.failure import report as report_error
from multiclouddb_cli.mirrored import each_of, end_with, print_json, told_failure
from multiclouddb_cli.screen import Cell, duration, print_fields, print_table
from multiclouddb_cli.session import until_signal

if TYPE_CHECKING:
    from multiclouddb_mirror import MirrorEstimate, MirrorJob

_BEGINS = {"snapshot": "with a copy of every row", "position": "where the last run ended"}
_MAY = {None: "not known", True: "yes", False: "no"}


class RunSettings(TypedDict):
    """What an estimate is told of the run."""

    columns: Path | None
    refill: bool
    max_scan_rate: float | None


def estimate(
    config: ClientConfig,
    address: ResourceAddress,
    target: str,
    position: str | None,
    provider_options: ProviderOptions | None,
    *,
    as_json: bool,
    **settings: Unpack[RunSettings],
) -> None:
    """Print what a run will read, and end with the highest code of what is missing."""
    with installed("mirror"):
        from multiclouddb_mirror import destination_of, estimate_mirror
    with until_signal() as interrupt, connect(config) as client, interrupt.reading():
        found = estimate_mirror(
            client, address, destination_of(target, position), provider_options=provider_options, **settings
        )
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        fields = [("table", found.table), ("begins", _BEGINS[found.begins])]
        if (scan := found.scan) is not None:
            unlimited = "not known" + (": give --max-scan-rate" if settings["max_scan_rate"] is None else "")
            fields += [
                ("rows", _rows(found)),
                ("units", f"{'not known' if scan.units is None else f'{scan.units:,.0f}'}: {scan.price}"),
                ("time", duration(scan.seconds) if scan.seconds else unlimited),
            ]
        missing = f"{len(found.problems)}"
        print_fields([*fields, ("may write", _MAY[found.may_write]), ("missing", missing)])
    end_with([report_error(each, debug=False) for each in found.problems][:1])


def estimate_file(
    path: str, options: Sequence[str], *, as_json: bool, **settings: Unpack[RunSettings]
) -> None:
    """Print what a run of a file will read for each of its tables, and end with the highest code."""
    with installed("mirror"):
        from multiclouddb_mirror import MirrorFile, destination_of, estimate_mirror
    file = MirrorFile.read(path)
    chosen = to_options(file.config, options)
    with until_signal() as interrupt, connect(file.config) as client, interrupt.reading():

        def ask(job: MirrorJob) -> MirrorEstimate:
            job.check()
            columns = job.columns or settings["columns"]
            return estimate_mirror(
                client, job.address, destination_of(job.target, job.position), columns=columns,
                refill=settings["refill"] and columns is not None, max_scan_rate=settings["max_scan_rate"],
                provider_options=chosen,
            )  # fmt: skip

        found = each_of(file.jobs(client), ask)
    if as_json:
        print_json(found)
    else:
        heads = ["collection", "table", "begins", "rows", "units", "time", "may write", "missing"]
        print_table(heads, [_row(job, each) for job, each in found])
    codes = list[int]()
    for job, each in found:
        problems = [each] if isinstance(each, MulticloudDbError) else each.problems
        codes += [told_failure(job, problem) for problem in problems]
    end_with(codes)


def _rows(found: MirrorEstimate) -> str:
    return "not known" if found.scan is None or found.scan.rows is None else f"about {found.scan.rows:,}"


def _row(job: MirrorJob, found: MirrorEstimate | MulticloudDbError) -> list[Cell]:
    if isinstance(found, MulticloudDbError):
        return [str(job.address), job.table, *["-"] * 4, "not known", "1"]
    scan = found.scan
    return [
        str(job.address),
        job.table,
        found.begins,
        _rows(found),
        "not known" if scan is None or scan.units is None else f"{scan.units:,.0f}",
        duration(scan.seconds) if scan is not None and scan.seconds else "not known",
        _MAY[found.may_write],
        f"{len(found.problems)}",
    ]
