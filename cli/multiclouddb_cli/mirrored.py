"""The tables of a mirror's file, for the commands that look at each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import typer

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError
from multiclouddb_cli.exits import SET_ASIDE
from multiclouddb_cli.failure import facts_of
from multiclouddb_cli.failure import report as report_error

if TYPE_CHECKING:
    from multiclouddb_mirror import MirrorJob

_Found = TypeVar("_Found")


@contextmanager
def installed() -> Iterator[None]:
    """Say what to install if an import in the block fails."""
    try:
        yield
    except ImportError as error:
        raise MulticloudDbError(
            f'mirror: cannot import {error.name}; run: pip install "multiclouddb[verify]"',
            ErrorDetail(ErrorCategory.INVALID_REQUEST, reason=ErrorReason.NOT_INSTALLED),
        ) from error


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
    typer.echo(f"{job.address}, {job.table}{what}:", err=True)
    return report_error(error, debug=False)


def failure_of(job: MirrorJob, error: MulticloudDbError) -> dict[str, object]:
    """Return the error of a table for JSON."""
    return {"address": str(job.address), "table": job.table, "error": facts_of(error)}


def end_with(codes: Sequence[int]) -> None:
    """End with the highest code; what is set aside comes after each failure, which says more."""
    code = max((each for each in codes if each != SET_ASIDE), default=0) or max(codes, default=0)
    if code:
        raise typer.Exit(code)
