"""`multiclouddb mirror status` says how mirrored tables are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from multiclouddb_api import MulticloudDbError, connect
from multiclouddb_cli.arguments import is_mirror_file
from multiclouddb_cli.exits import SET_ASIDE
from multiclouddb_cli.failure import installed
from multiclouddb_cli.mirrored import each_of, end_with, print_json, told_failure
from multiclouddb_cli.screen import Cell, duration, moment, print_fields, print_table, print_text

if TYPE_CHECKING:
    from multiclouddb_api.set_aside import SetAsideFolder
    from multiclouddb_mirror import MirrorJob, MirrorStatus


def status(target: str, position: str | None, folder: Path | None, *, as_json: bool) -> None:
    """Print how a table is, or each table of a file, and end with 18 if rows are missing."""
    with installed("mirror"):
        from multiclouddb_mirror import destination_of, mirror_status
    from multiclouddb_api.set_aside import SetAsideFolder

    kept = None if folder is None else SetAsideFolder(folder)
    if is_mirror_file(target):
        if position is not None:
            raise typer.BadParameter("is for one table: write it into the file", param_hint="--position")
        _of_file(target, kept, as_json=as_json)
        return
    found = mirror_status(destination_of(target, position), kept)
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        _print(found, _not_counted(kept))
    end_with([_code(found)])


def _code(found: MirrorStatus) -> int:
    """Return the code with which a run of the mirror would end too."""
    return SET_ASIDE if found.set_aside or found.incomplete_since else 0


def _not_counted(folder: SetAsideFolder | None) -> str:
    """Return why nobody knows how many records are set aside."""
    if folder is None:
        return "not asked: give --set-aside"
    if not folder.path.is_dir():
        return f"not known: there is no folder {folder.path} (yet)"
    return "not known: the collection is not"


def _print(found: MirrorStatus, not_counted: str) -> None:
    rows = "there is no table"
    if found.rows is not None:
        rows = f"{found.rows:,}, and {found.deleted:,} of deleted documents"
    aside = not_counted if found.set_aside is None else f"{found.set_aside:,}"
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


def _of_file(path: str, folder: SetAsideFolder | None, *, as_json: bool) -> None:
    from multiclouddb_mirror import MirrorFile, destination_of, mirror_status

    file = MirrorFile.read(path)
    with connect(file.config) as client:  # asked only for the collections of *
        jobs = file.jobs(client)
    found = each_of(jobs, lambda job: mirror_status(destination_of(job.target, job.position), folder))
    if as_json:
        print_json(found)
    else:
        print_table(
            ["collection", "table", "rows", "right at", "lag at most", "state", "proved equal", "set aside"],
            [_row(job, each, folder) for job, each in found],
        )
        if folder is not None and not folder.path.is_dir():
            print_text(f"set aside: {_not_counted(folder)}")
    codes = list[int]()
    for job, each in found:
        if isinstance(each, MulticloudDbError):
            codes.append(told_failure(job, each))
        else:
            codes.append(_code(each))
    end_with(codes)


def _row(
    job: MirrorJob, found: MirrorStatus | MulticloudDbError, folder: SetAsideFolder | None
) -> list[Cell]:
    if isinstance(found, MulticloudDbError):
        return [str(job.address), job.table, *["-"] * 3, "not known", *["-"] * 2]
    if not found.exists:
        state = "there is no table"
    elif found.is_copying:
        state = "the copy is not complete"
    else:
        state = "complete" if found.incomplete_since is None else f"incomplete since {found.incomplete_since}"
    return [
        str(job.address),
        job.table,
        "-" if found.rows is None else f"{found.rows:,}",
        moment(found.watermark),
        duration(found.lag_seconds),
        state,
        moment(found.proved_at) if found.proved_at else "never",
        _not_counted(folder).partition(":")[0] if found.set_aside is None else f"{found.set_aside:,}",
    ]
