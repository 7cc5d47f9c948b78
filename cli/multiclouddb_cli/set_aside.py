"""`multiclouddb set-aside list` shows what is set aside, and `retry` tries it again.

The events of a handler go to the handler, and the rows of a mirror into their table.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import typer

from multiclouddb_api import ChangeEvent, ClientConfig, MulticloudDbError, connect, encode_json
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.set_aside import SetAside, SetAsideFolder
from multiclouddb_cli.arguments import to_config, to_options
from multiclouddb_cli.exits import SET_ASIDE
from multiclouddb_cli.failure import installed, scrub
from multiclouddb_cli.mirrored import each_of, end_with, failure_of, told_failure
from multiclouddb_cli.screen import Cell, counted, print_fields, print_table, safe_json, shorter

if TYPE_CHECKING:
    from multiclouddb_mirror import MirrorJob, RetryReport

_TABLES: Final = ("delta", "postgres", "sqlite")
"""What the text of a table begins with, before a colon."""
_KEY_COLUMNS: Final = 60
"""How much is shown of a key; --json has it whole."""


def list_records(folder: Path, *, as_json: bool) -> None:
    """Print what a folder contains, in the order of the changes."""
    records = SetAsideFolder(_existing(folder)).records()
    if as_json:
        for each in records:
            typer.echo(safe_json(each.to_json()))
        return
    rows = [
        [
            rfc3339(each.at),
            str(each.address),
            each.target or "a handler",
            each.type or "-",
            shorter(_key(each), _KEY_COLUMNS),
            each.reason,
        ]
        for each in records
    ]
    print_table(["at", "collection", "for", "type", "key", "reason"], rows)
    for line in _next(folder, records):
        typer.echo(line, err=True)


def _next(folder: Path, records: Sequence[SetAside]) -> Iterator[str]:
    """Return what to do with the records, for a handler and for each table of a mirror."""
    given = shlex.quote(str(folder))
    if not records:
        yield f"{folder} has nothing that is set aside"
        return
    if any(not each.target for each in records):
        yield (
            "correct the handler or the documents, then: multiclouddb set-aside retry "
            f"{given} MODULE:FUNCTION URL"
        )
    for address, table in sorted({(str(each.address), each.target) for each in records if each.target}):
        yield (
            f"correct {table} or the documents of {address}, then: multiclouddb set-aside retry {given} "
            "TARGET URL"
        )


def retry(folder: Path, to: str, url: str | None, options: Sequence[str], *, as_json: bool) -> None:
    """Try again what is for a handler, for a table or for those of a file; exit with 18 if some is left."""
    kept = SetAsideFolder(_existing(folder))
    if to.partition(":")[0] in _TABLES:
        if url is None:
            raise typer.BadParameter("is missing: a row is read from its database", param_hint="URL")
        _retry_table(kept, to, to_config(url), options, as_json=as_json)
    elif ":" not in to and Path(to).is_file():
        if url is not None:
            raise typer.BadParameter(
                f"has no meaning beside {to}, which has the connection", param_hint="URL"
            )
        _retry_file(kept, to, options, as_json=as_json)
    else:
        config = None if url is None else to_config(url)
        _retry_handler(kept, to, config, options, as_json=as_json)


def _retry_handler(
    folder: SetAsideFolder, name: str, config: ClientConfig | None, options: Sequence[str], *, as_json: bool
) -> None:
    handle = _handler(name)
    with ExitStack() as stack:
        client = None if config is None else stack.enter_context(connect(config))
        chosen = None if config is None else to_options(config, options)
        runner = stack.enter_context(asyncio.Runner())

        def call(event: ChangeEvent) -> None:
            if iscoroutinefunction(handle):
                runner.run(handle(event))
            else:
                handle(event)

        done = folder.retry(call, client, chosen)
    if as_json:
        typer.echo(json.dumps({"handled": done.handled, "left": done.left, "reasons": done.reasons}))
    else:
        print_fields(
            [
                ("handled", f"{done.handled:,}"),
                ("left", f"{done.left:,}"),
                *(("because", reason) for reason in done.reasons),
            ]
        )
    if done.left:
        raise typer.Exit(SET_ASIDE)


def _retry_table(
    folder: SetAsideFolder, target: str, config: ClientConfig, options: Sequence[str], *, as_json: bool
) -> None:
    with installed("mirror"):
        from multiclouddb_mirror import destination_of, retry_set_aside
    table = destination_of(target)
    records = folder.records(target=table.name)
    if not records:
        raise typer.BadParameter(
            f"{folder.path} has nothing of {table.name}; set-aside list shows what it has", param_hint="TO"
        )
    with connect(config) as client:
        done = retry_set_aside(client, records[0].address, table, folder, to_options(config, options))
    if as_json:
        typer.echo(json.dumps(attrs.asdict(done)))
    else:
        print_fields(
            [
                ("table", done.table),
                ("written", counted(done.written, "row")),
                ("newer", f"{done.newer:,} of which the table has a newer change"),
                ("gone", f"{done.gone:,} whose document was deleted, and of which the table has no row"),
                ("left", f"{done.left:,}"),
                *(("because", scrub(each)) for each in done.reasons),
            ]
        )
    end_with([SET_ASIDE if done.left else 0])


def _retry_file(folder: SetAsideFolder, path: str, options: Sequence[str], *, as_json: bool) -> None:
    with installed("mirror"):
        from multiclouddb_mirror import MirrorFile, destination_of, retry_set_aside
    file = MirrorFile.read(path)
    with connect(file.config) as client:
        chosen = to_options(file.config, options)

        def retry(job: MirrorJob) -> RetryReport:
            job.check()
            return retry_set_aside(client, job.address, destination_of(job.target), folder, chosen)

        found = each_of(file.jobs(client), retry)
    answers, rows, codes = list[dict[str, object]](), list[list[Cell]](), list[int]()
    for job, each in found:
        name = str(job.address)
        if isinstance(each, MulticloudDbError):
            codes.append(told_failure(job, each))
            answers.append(failure_of(job, each))
            rows.append([name, job.table, "-", "-", "-", "not known", ""])
        else:
            codes.append(SET_ASIDE if each.left else 0)
            answers.append({"address": name, **attrs.asdict(each)})
            because = "; ".join(map(scrub, each.reasons))
            counts = (each.written, each.newer, each.gone, each.left)
            rows.append([name, each.table, *(f"{count:,}" for count in counts), because])
    if as_json:
        typer.echo(json.dumps(answers))
    else:
        print_table(["collection", "table", "written", "newer", "gone", "left", "because"], rows)
    end_with(codes)


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder", param_hint="FOLDER")
    return folder


def _key(record: SetAside) -> str:
    return "-" if record.key is None else safe_json(encode_json(dict(record.key.components)))


def _handler(name: str) -> Callable[[ChangeEvent], Any]:
    """Return the function that `MODULE:FUNCTION` names; the module may be in the current folder."""
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function) if module and function else None
    except (ModuleNotFoundError, AttributeError) as error:
        raise typer.BadParameter(f"{name}: {error}", param_hint="TO") from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        raise typer.BadParameter(
            f"{name} is no function: write MODULE:FUNCTION, such as worker:handle", param_hint="TO"
        )
    return found  # type: ignore[no-any-return]  # its arguments show when it is called
