"""`multiclouddb verify` proves that a table equals its collection, and repairs it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

import attrs
import typer

from multiclouddb_api import (
    ClientConfig,
    MulticloudDbClient,
    ProviderOptions,
    ResourceAddress,
    connect,
    invalid_request,
)
from multiclouddb_cli.arguments import to_token
from multiclouddb_cli.failure import installed, scrub
from multiclouddb_cli.log import begin_log, say
from multiclouddb_cli.screen import (
    ProgressLine,
    counted,
    duration,
    moment,
    print_fields,
    print_table,
    print_text,
    printable,
    scan_line,
)
from multiclouddb_cli.session import until_signal
from multiclouddb_spi.faults import key_digest

if TYPE_CHECKING:
    from multiclouddb_verify import (
        Difference,
        Estimate,
        Position,
        Progress,
        Report,
        Standing,
        VerifySettings,
    )

_SHOWN: Final = 20
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""What Prometheus' text format escapes in a label."""
_FIRST: Final = 60
"""How many characters of a key are printed, and only with the values that differ."""


def to_sample(text: str | None) -> int | None:
    """Read `1/64`."""
    if text is None:
        return None
    one, slash, count = text.partition("/")
    if one != "1" or not slash or not count.isdigit() or int(count) < 2:
        raise typer.BadParameter(f"{text!r} is not a fraction like 1/64", param_hint="--sample")
    return int(count)


def verify(
    config: ClientConfig,
    address: ResourceAddress,
    table: str,
    stored: str | None,
    *,
    as_json: bool,
    estimate: bool,
    every: timedelta | None,
    metrics: Path | None,
    **settings: Unpack[VerifySettings],
) -> None:
    """Run the command with the texts of `--target` and `--position`, and the other settings of `verify`."""
    with installed("verify"):
        import multiclouddb_verify
        from multiclouddb_mirror import destination_of
    target = destination_of(table, patience_seconds=settings["patience_seconds"]).target
    options = settings["provider_options"]
    if every is not None:
        begin_log()
    with until_signal() as interrupt, connect(config) as client:
        if estimate or every is not None:
            with interrupt.reading():
                found = multiclouddb_verify.estimate(
                    client, address, max_scan_rate=settings["max_scan_rate"], provider_options=options
                )
            _print_estimate(found, every, as_json=as_json)
        if estimate:
            return
        line = ProgressLine(verify_line)
        try:
            with interrupt.reading(), verify_warnings(line.clear):
                settings["position"] = _position(client, address, stored, options)
                settings["on_progress"] = line.show
                if every is not None:
                    for each in multiclouddb_verify.verify_every(client, address, target, every, **settings):
                        line.clear()
                        if metrics is not None:
                            _write_metrics(metrics, address, target.name, each)
                        _print_standing(each, as_json=as_json, show_values=settings["show_values"])
                    return
                report = multiclouddb_verify.verify(client, address, target, **settings)
        finally:
            line.clear()
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        print_report(report, show_values=settings["show_values"])
    raise typer.Exit(report.exit_code)


@contextmanager
def verify_warnings(clear: Callable[[], None]) -> Iterator[None]:
    """Print what `verify` warns of on stderr.

    Args:
        clear: Removes what is shown on the terminal.
    """

    class ToStderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            clear()
            say(printable(scrub(record.getMessage())))

    logger, handler = logging.getLogger("multiclouddb.verify"), ToStderr(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _position(
    client: MulticloudDbClient, address: ResourceAddress, text: str | None, options: ProviderOptions | None
) -> Position | None:
    from multiclouddb_verify import spark_position

    if text is None:
        return None
    if text.startswith("spark:"):
        return spark_position(client, address, text.removeprefix("spark:"), options)
    if text.startswith("@") or "://" in text:
        # The sink replaces the checkpoint while it runs.
        return lambda: to_token(text, "--position")
    return to_token(text, "--position")


def print_report(report: Report, *, show_values: bool) -> None:
    """Print what a comparison has found."""
    counts, cost = report.counts, report.cost
    kinds = ", ".join(f"{count:,} {kind.value}" for kind, count in counts.differences.items())
    read = (
        f"{counted(cost.rows, 'row')} of the source, {cost.looked_up:,} again by key, "
        f"{counted(cost.changes, 'change')}, {counted(cost.target_rows, 'row')} of the table in "
        f"{counted(cost.rounds + 1, 'round')}"
    )
    print_fields(
        [
            ("equal", f"{counts.equal:,}"),
            ("different", kinds or "0"),
            ("repaired", f"{counts.repaired:,}"),
            ("unsettled", f"{counts.unsettled:,}"),
            ("behind", f"{counts.behind:,}"),
            ("read", read),
            ("confirmed after", duration(report.settle_seconds)),
            ("time", duration(cost.seconds)),
        ]
    )
    if report.covered:
        print_text(report.covered)
    shown = report.differences[:_SHOWN]

    def shown_key(key: str) -> str:
        return key[:_FIRST] if show_values else key_digest(key)

    if shown:
        rows = [
            (
                each.kind.value,
                shown_key(each.key),
                each.order_key or "-",
                each.note or ("" if each.path is None else f"{each.path}: {_sides(each)}"),
            )
            for each in shown
        ]
        print_table(["kind", "key", "order_key", "difference"], rows)
        left = sum(counts.differences.values()) - len(shown)
        if left:
            print_text(f"and {left:,} more; --json prints up to 10,000")
    if report.reasons:
        known = [(shown_key(key), reason) for key, reason in list(report.reasons.items())[:_SHOWN]]
        print_table(["not known", "because"], known)
    if report.expected:
        expected = ((counts.expected_ghosts, "ghost"), (counts.expected_missing, "missing row"))
        told = " and ".join(counted(count, name) for count, name in expected if count)
        print_text(f"{told} expected: {report.expected}")
    if report.refused:
        print_text(f"nothing was repaired: {report.refused}; here: --max-repairs N, or --force")
    if report.incomplete_since:
        print_text(
            f"the table is marked as incomplete since {report.incomplete_since}, as by a mirror that sets "
            "rows aside; an equal run with --record or --repair removes that"
        )
    if report.unfilled:
        print_text(
            f"a refill has not filled {', '.join(report.unfilled)} yet: merge its snapshot to the end, with "
            "the declaration of the table"
        )
    left_out = f"; not compared: {', '.join(report.not_compared)}" if report.not_compared else ""
    if report.equal and report.covered:
        print_text(f"EQUAL: the table contains the source's state of every key that was compared{left_out}")
    elif report.equal:
        through = "" if report.verified_at is None else f", at least up to {moment(report.verified_at)}"
        print_text(f"EQUAL: the table contains the source's state of every key{through}{left_out}")
    elif counts.differences:
        print_text("DIFFERENT")
    elif counts.unsettled:
        print_text("UNSETTLED: keys changed all the time, or nobody knows what the source has; try again")
    else:
        print_text("BEHIND: the sink did not reach the last changes of some keys; let it run, and try again")


def _sides(each: Difference) -> str:
    ours, theirs = each.source_value, each.target_value
    if ours is None and theirs is None:
        return f"{each.source_type} in the source, {each.target_type} in the table"
    return f"{ours!r} in the source, {theirs!r} in the table"


def _print_estimate(found: Estimate, every: timedelta | None = None, *, as_json: bool) -> None:
    told = attrs.asdict(found)
    if as_json:
        typer.echo(json.dumps(told))
    else:
        seconds = told.pop("seconds")
        fields = [(name, "unknown" if value is None else str(value)) for name, value in told.items()]
        again = [] if every is None else [("again in", duration(every.total_seconds()))]
        print_fields([*fields, ("duration", duration(seconds)), *again])
    if every is not None and found.seconds is not None and found.seconds > every.total_seconds():
        typer.echo(
            f"a pass takes about {duration(found.seconds)} at this rate, which is longer than --every: the "
            "proof of a row gets older than that; give a higher --max-scan-rate",
            err=True,
        )


def _print_standing(standing: Standing, *, as_json: bool, show_values: bool) -> None:
    """Print one line, and before it what a pass has found, unless everything is equal."""
    if as_json:
        typer.echo(json.dumps(standing.to_dict()))
        return
    age, report = standing.age_seconds(), standing.report
    words = [
        "the oldest proof of a row is " + ("not known" if age is None else f"{duration(age)} old"),
        f"{counted(standing.differences, 'difference')} open",
        f"{standing.healed:,} healed",
    ]
    if report is not None:
        if not report.equal or report.counts.repaired:
            print_report(report, show_values=show_values)
        if skipped := report.counts.unsettled + report.counts.behind:
            words.append(f"{counted(skipped, 'key')} not compared")
    typer.echo(f"{moment(datetime.now(UTC))}  {', '.join(words)}; next pass at {moment(standing.next_at)}")


def _write_metrics(path: Path, address: ResourceAddress, table: str, standing: Standing) -> None:
    """Write a file for the textfile collector of Prometheus' node exporter, at once or not at all."""
    names = {"database": address.database or "", "collection": address.collection or "", "table": table}
    labels = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in names.items())
    proved = 0.0 if standing.proved_at is None else standing.proved_at.timestamp()
    lines = list[str]()
    for name, kind, text, value in (
        ("proved_timestamp_seconds", "gauge", "Every row was compared after this time; 0: not known", proved),
        ("differences", "gauge", "Differences that the last pass has left", standing.differences),
        ("healed_rows_total", "counter", "Rows that the passes have repaired", standing.healed),
    ):
        full = f"multiclouddb_verify_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full}{{{labels}}} {value}", ""]
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.write_text("\n".join(lines), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise invalid_request(
            "--metrics", f"{path} cannot be written ({error.strerror})", "give a file in a folder that exists"
        ) from error


def verify_line(progress: Progress, rows_a_second: float | None) -> str:
    """Return one line about a comparison that runs."""
    if progress.phase == "scan":
        return scan_line(progress, rows_a_second)
    if progress.phase == "table":
        return f"table: {counted(progress.target_rows, 'row')}"
    return f"{progress.phase}: {progress.left:,} keys left"
