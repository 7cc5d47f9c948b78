"""`multiclouddb token check` for several positions: of workers that share a feed, or of a mirror's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import orjson
import typer

from multiclouddb_api import ClientConfig, ErrorCategory, MulticloudDbError, NotKnown, ProviderOptions
from multiclouddb_cli.exits import LATE, NOT_KNOWN
from multiclouddb_cli.failure import report, scrub
from multiclouddb_cli.screen import Cell, duration, print_fields, print_table, safe_json
from multiclouddb_cli.tokens import Verdict, judged, late_facts, late_text
from multiclouddb_spi.lateness import Late, Lateness
from multiclouddb_spi.token_report import resumes_after


def check_group(
    config: ClientConfig,
    group: Mapping[str, str | MulticloudDbError],
    options: ProviderOptions | None,
    *,
    max_lag: timedelta | None,
    as_json: bool,
) -> None:
    """Print what `check` finds for each of several positions, and the worst of it.

    An error about one position hides none of the others.

    Args:
        config: The database.
        group: The tokens by the names of their positions; an error where there is no token.
        options: The provider's options.
        max_lag: As in `check`.
        as_json: True to print one JSON object.
    """
    verdicts = dict[str, Verdict | MulticloudDbError]()
    for name, token in group.items():
        try:
            if isinstance(token, MulticloudDbError):
                raise token
            with judged(config, token, None, options, max_lag) as (_, verdict):
                verdicts[name] = verdict
        except MulticloudDbError as error:
            verdicts[name] = error
    oldest, headroom = _worst_of(verdicts.values())
    if as_json:
        each = {name: _group_facts(verdict) for name, verdict in verdicts.items()}
        facts = {"lag_seconds": oldest, "retention_headroom_seconds": headroom, "positions": each}
        typer.echo(safe_json(orjson.dumps(facts)))
    else:
        print_fields(
            [
                ("positions", str(len(verdicts))),
                ("lag", duration(oldest)),
                ("kept for", "not known" if headroom is None else duration(headroom)),
            ]
        )
        if verdicts:
            typer.echo()
            rows = [_group_row(name, verdict) for name, verdict in verdicts.items()]
            print_table(["position", "lag", "kept for", "late", "answer"], rows)
    _end_group(verdicts)


def _worst_of(verdicts: Iterable[Verdict | MulticloudDbError]) -> tuple[float | None, float | None]:
    """Return the lag and the headroom of several positions: the worst; no lag if one of them is not known."""
    lags, headrooms = list[float | None](), list[float]()
    for each in verdicts:
        lags.append(None if isinstance(each, MulticloudDbError) else each.lag)
        if not isinstance(each, MulticloudDbError) and each.headroom is not None:
            headrooms.append(each.headroom)
    known = [each for each in lags if each is not None]
    return max(known) if known and len(known) == len(lags) else None, min(headrooms, default=None)


def _error_of(verdict: Verdict | MulticloudDbError) -> MulticloudDbError | None:
    return verdict if isinstance(verdict, MulticloudDbError) else verdict.error


def _weight(error: MulticloudDbError) -> int:
    """Return how much an error says about several positions: most if changes of one are lost."""
    if error.category == ErrorCategory.CHECKPOINT_EXPIRED:
        return 2
    return int(resumes_after(error) is False)


def _late_of(verdict: Verdict | MulticloudDbError) -> Lateness | None:
    return None if isinstance(verdict, MulticloudDbError) else verdict.late


def _end_group(verdicts: Mapping[str, Verdict | MulticloudDbError]) -> None:
    errors = {name: error for name, each in verdicts.items() if (error := _error_of(each)) is not None}
    if errors:
        # The last one is raised, and the others are printed before it.
        *others, last = sorted(errors, key=lambda name: _weight(errors[name]))
        for name in others:
            typer.echo(f"error: the position {scrub(name)}:", err=True)
            report(errors[name], debug=False)
        typer.echo(f"error: the position {scrub(last)}:", err=True)
        raise errors[last]
    late = {name: found for name, each in verdicts.items() if isinstance(found := _late_of(each), Late)}
    if late:
        name, found = max(late.items(), key=lambda each: each[1].seconds)
        typer.echo(f"error: [LATE] {scrub(name)}: {late_text(found)}", err=True)
        raise typer.Exit(LATE)
    for name, verdict in verdicts.items():
        if isinstance(found := _late_of(verdict), NotKnown):
            typer.echo(f"error: [NOT_KNOWN] {scrub(name)}: {scrub(found.reason)}", err=True)
            raise typer.Exit(NOT_KNOWN)


def _group_row(name: str, verdict: Verdict | MulticloudDbError) -> list[Cell]:
    error = _error_of(verdict)
    if isinstance(verdict, MulticloudDbError):
        return [name, "not known", "not known", "not known", (str(verdict.category), "red")]
    late = "-" if verdict.late is None else late_text(verdict.late)
    headroom = "not known" if verdict.headroom is None else duration(verdict.headroom)
    answer = (verdict.changes, "") if error is None else (str(error.category), "red")
    return [name, duration(verdict.lag), headroom, late, answer]


def _group_facts(verdict: Verdict | MulticloudDbError) -> dict[str, Any]:
    error, read = _error_of(verdict), None if isinstance(verdict, MulticloudDbError) else verdict
    return {
        "resumes": resumes_after(error),
        "error": None if error is None else str(error.category),
        "reason": None if error is None else error.reason,
        "lag_seconds": None if read is None else read.lag,
        "retention_headroom_seconds": None if read is None else read.headroom,
        "late": None if read is None else late_facts(read.late),
    }
