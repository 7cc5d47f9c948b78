"""The tables of a mirror's file, for the commands that look at each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import typer

from multiclouddb_api import MulticloudDbError
from multiclouddb_cli.exits import SET_ASIDE
from multiclouddb_cli.failure import facts_of
from multiclouddb_cli.failure import report as report_error
from multiclouddb_cli.log import say

if TYPE_CHECKING:
    from multiclouddb_mirror import MirrorEstimate, MirrorJob, MirrorStatus

_Found = TypeVar("_Found")


def each_of(
    jobs: Sequence[MirrorJob], ask: Callable[[MirrorJob], _Found]
) -> list[tuple[MirrorJob, _Found | MulticloudDbError]]:
    """Return what is found about each table; an error about one hides none of the others."""
    found: list[tuple[MirrorJob, _Found | MulticloudDbError]] = []
    for job in jobs:
        try:
            found.append((job, ask(job)))
        except MulticloudDbError as error:
            found.append((job, error))
    return found


def told_failure(job: MirrorJob, error: MulticloudDbError, what: str = "") -> int:
    """Print the error of a table to stderr, and return its exit code."""
    say(f"{job.address}, {job.table}{what}:")
    return report_error(error, debug=False)


def failure_of(job: MirrorJob, error: MulticloudDbError) -> dict[str, object]:
    """Return the error of a table for JSON."""
    return {"address": str(job.address), "table": job.table, "error": facts_of(error)}


def print_json(found: Iterable[tuple[MirrorJob, MirrorEstimate | MirrorStatus | MulticloudDbError]]) -> None:
    """Print what is found about each table as one list."""
    answers = [
        failure_of(job, each) if isinstance(each, MulticloudDbError) else each.to_dict()
        for job, each in found
    ]
    typer.echo(json.dumps(answers))


def end_with(codes: Sequence[int]) -> None:
    """End with the highest code; what is set aside comes after each failure, which says more."""
    code = max((each for each in codes if each != SET_ASIDE), default=0) or max(codes, default=0)
    if code:
        raise typer.Exit(code)
