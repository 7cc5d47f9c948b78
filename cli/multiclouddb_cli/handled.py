"""`multiclouddb set-aside list` shows what is set aside, and `retry` gives a handler its events again."""

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
from typing import Any

import typer

from multiclouddb_api import ChangeEvent, ClientConfig, ProviderOptions, connect, encode_json
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.set_aside import SetAside, SetAsideFolder
from multiclouddb_cli.exits import SET_ASIDE
from multiclouddb_cli.screen import print_fields, print_table, safe_json


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
            _key(each),
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
            f"correct {table} or the documents, then: multiclouddb mirror URL {address} --target … "
            f"--retry {given}"
        )


def retry(
    folder: Path, name: str, config: ClientConfig | None, options: ProviderOptions | None, *, as_json: bool
) -> None:
    """Give the events of a folder to a handler, and exit with 18 if some are left."""
    handle = _handler(name)
    with ExitStack() as stack:
        client = None if config is None else stack.enter_context(connect(config))
        runner = stack.enter_context(asyncio.Runner())

        def call(event: ChangeEvent) -> None:
            if iscoroutinefunction(handle):
                runner.run(handle(event))
            else:
                handle(event)

        done = SetAsideFolder(_existing(folder)).retry(call, client, options)
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
        raise typer.BadParameter(f"{name}: {error}", param_hint="HANDLER") from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        raise typer.BadParameter(
            f"{name} is no function: write MODULE:FUNCTION, such as worker:handle", param_hint="HANDLER"
        )
    return found  # type: ignore[no-any-return]  # its arguments show when it is called
