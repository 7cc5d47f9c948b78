"""`multiclouddb columns` proposes columns for a table, and tests a declaration against the documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from multiclouddb_api import (
    BackfillDone,
    ChangeEvent,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FeedEnded,
    FromContinuationToken,
    MulticloudDbClient,
    MulticloudDbError,
    ProviderOptions,
    RecordSkipped,
    ResourceAddress,
    Snapshot,
    SnapshotProgress,
    connect,
)
from multiclouddb_cli.exits import UNFIT
from multiclouddb_cli.failure import installed
from multiclouddb_cli.screen import ProgressLine, counted, print_table, print_text, printable, scan_line
from multiclouddb_cli.session import until_signal
from multiclouddb_spi.faults import key_digest

if TYPE_CHECKING:
    from multiclouddb_tables.proposal import Check, Unfit

MOST: Final = 10_000
"""How many documents are read for a proposal, unless the user gives another number."""
_PAGE: Final = 1_000
_MOST_KINDS: Final = 3
_LONGEST: Final = 100


def propose(
    config: ClientConfig,
    address: ResourceAddress,
    options: ProviderOptions | None,
    *,
    check: Path | None,
    most: int | None,
    max_scan_rate: float | None,
    as_json: bool,
    show_values: bool,
) -> None:
    """Run the command; with `check`, test the declaration in this file."""
    with installed("columns"):
        from multiclouddb_tables import Columns
        from multiclouddb_tables.proposal import FEWEST, Check, Survey
    found = Survey() if check is None else Check(Columns.from_toml(check))
    limit = MOST if most is None and check is None else most or 0
    skipped, is_whole = 0, True
    line = ProgressLine(scan_line)
    with until_signal() as interrupt, connect(config) as client:
        try:
            with interrupt.reading():
                for events, lost, progress in _pages(client, address, options, max_scan_rate):
                    skipped += lost
                    for event in events:
                        if limit and found.documents >= limit:
                            is_whole = False
                            break
                        found.add(event)
                    if not is_whole:
                        break
                    if progress is not None:
                        line.show(progress)
        finally:
            line.clear()
    read = f"{counted(found.documents, 'document')} of {address}"
    read += ", which are all of them" if is_whole else ", the first ones that a scan returned"
    if skipped:
        read += f"; without {counted(skipped, 'record')} that cannot be decoded"
    if isinstance(found, Survey):
        if as_json:
            typer.echo(
                json.dumps(
                    {
                        "documents": found.documents,
                        "whole": is_whole,
                        "skipped": skipped,
                        "unlisted": found.unlisted,
                        "columns": found.rows(),
                    }
                )
            )
            return
        typer.echo(printable(f"# Proposed from {read}."))
        if found.unlisted:
            typer.echo(f"# There are too many paths: {found.unlisted:,} values are at further ones.")
        if found.documents < FEWEST:
            typer.echo(f"# Nothing is proposed from fewer than {FEWEST} documents.")
        for text in found.toml():
            typer.echo(printable(text))
        return
    if as_json:
        typer.echo(json.dumps(_checked(found, whole=is_whole, skipped=skipped, show_values=show_values)))
    else:
        _print(found, read, show_values=show_values)
    if found.unfit and found.columns.misfits == "refuse":
        raise typer.Exit(UNFIT)


def _pages(
    client: MulticloudDbClient,
    address: ResourceAddress,
    options: ProviderOptions | None,
    max_scan_rate: float | None,
) -> Iterator[tuple[tuple[ChangeEvent, ...], int, SnapshotProgress | None]]:
    """Yield the rows of a scan, with how many records before them cannot be decoded, and the progress."""
    start: Any = Snapshot(max_scan_rate=max_scan_rate, changes=False)
    while True:
        request = ChangeFeedRequest(address, start, max_page_size=_PAGE, provider_options=options)
        try:
            page = client.read_changes(request)
        except MulticloudDbError as error:
            if error.category is not ErrorCategory.PROVIDER_ERROR or error.detail.skip_token is None:
                raise
            start = FromContinuationToken(error.detail.skip_token)
            continue
        lost = sum(isinstance(each, RecordSkipped) for each in page.notices)
        yield tuple(page.events), lost, page.diagnostics.snapshot
        if any(isinstance(each, BackfillDone | FeedEnded) for each in page.notices):
            return
        start = FromContinuationToken(page.continuation_token)


def _checked(found: Check, *, whole: bool, skipped: int, show_values: bool) -> dict[str, Any]:
    unfit = [
        {
            "column": name,
            "documents": each.count,
            "types": dict(each.kinds.most_common()),
            "keys": [key if show_values else key_digest(key) for key in each.keys],
            **({"values": each.values} if show_values else {}),
        }
        for name, each in found.unfit.items()
    ]
    return {"documents": found.documents, "whole": whole, "skipped": skipped, "unfit": unfit}


def _print(found: Check, read: str, *, show_values: bool) -> None:
    types = {each.name: each.type for each in found.columns.columns}
    rows = [
        (
            name,
            types[name],
            f"{each.count:,}",
            _listed(each),
            ", ".join(
                f"{key}: {shortened(value)}" if show_values else key_digest(key)
                for key, value in zip(each.keys, each.values, strict=True)
            ),
        )
        for name, each in found.unfit.items()
    ]
    if rows:
        print_table(["column", "type", "do not fit", "which are", "for example"], rows)
    rescue = "; _rescued gets the others" if rows and found.columns.misfits == "rescue" else ""
    print_text(f"{read}: {'not all' if rows else 'all'} values fit into the declared columns{rescue}")


def _listed(unfit: Unfit) -> str:
    """Return of which kind the values are; numbers have many kinds."""
    told = ", ".join(f"{count:,} with {kind}" for kind, count in unfit.kinds.most_common(_MOST_KINDS))
    rest = len(unfit.kinds) - _MOST_KINDS
    return told if rest <= 0 else f"{told}, and {counted(rest, 'further kind')}"


def shortened(text: str) -> str:
    """Return a text of at most 100 characters."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
