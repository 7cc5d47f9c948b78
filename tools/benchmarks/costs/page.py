"""Makes the page *What a feed costs* from the counts and from what vendors publish."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.costs.cost import Cost
from benchmarks.costs.published import PUBLISHED
from benchmarks.costs.record import Record
from benchmarks.record import ROOT

__all__ = ["page_text", "ratio_of", "table_of", "write_docs"]

_UNITS: Final = {
    "DynamoDB": "Unit: a read request unit is a call of `GetRecords`, even one that returns no records. "
    "[Other calls are free](https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/"
    "CostOptimization_StreamsUsage.html).",
    "Cosmos DB": "Unit: request units (RU), as our emulator charges them: one for an empty answer, and one "
    "for each KB read.",
    "Spanner": "A read has no price; queries use the compute capacity of the instance.",
    "MongoDB": "A read has no price; each request is work for the server.",
}
_MORE: Final = {
    "Spanner": "A call with `wait_seconds` sends more requests than Dataflow: before it waits, it asks for "
    "the service's time, and sends a query that does not wait. The query's answer shows within two seconds "
    "that the service can be reached.",
    "MongoDB": "Our reader sends more requests than PyMongo's loop: it asks twice a minute how far back the "
    "log reaches, and for only 500 changes at a time, because such answers are decoded faster than larger "
    "ones.",
}
"""Why a goal is missed."""
_HEAD: Final = """---
hide: [toc]
---

# What a feed costs

What a reader sends to the service (a bill shows that), and how soon the reader sees a change (a user
notices that).
Each row is one reader of one partition.

- *Idle hour*: an hour without changes. *Other* requests find partitions, ask for the time, open sessions,
  look at the log, or keep a state.
- *Delay*: the mean time between two requests. A change waits half as long on average. The delay is 0 if the
  request itself waits at the server.
- *Ours / theirs*: all requests of our reader in an idle hour, divided by those of the cheapest other reader,
  whose requests are scaled to our delay. If only our reader waits at the server, it is compared with the
  requests that the other reader really sends, although that reader sees a change later.
- *A million changes* are read as a backlog.
"""
_HOW: Final = """## Where the figures come from

- *Counted*: our emulators of DynamoDB Streams, Cosmos DB and Spanner, and a server of MongoDB, have counted
  the requests of a reader that read {changes:,} changes, and then followed the idle feed for {seconds:.0f}
  seconds. The tables scale these counts to a million changes and to an hour: one request more in the run is
  a hundred more for a million changes, and sixty more for an hour.
- *Computed*: the vendor's reader does not run here. Its requests follow from the settings that the vendor
  publishes; the page links to them.
- Units are computed from the service's published rule, and were not compared with a bill.
- A dash means that nobody has counted the requests, or that there is no price.

{machine} Recorded on {day}.

---

*Made by `python -m benchmarks.costs --record`.*
"""


def page_text(record: Record) -> str:
    """Return the page."""
    parts = [_HEAD]
    for service, unit in _UNITS.items():
        rows = [cost for cost in (*record.costs, *PUBLISHED) if cost.service == service]
        if rows:
            parts += [f"## {service}\n", f"{unit}\n", table_of(rows)]
            parts += [*dict.fromkeys(f"{note}\n" for cost in rows if (note := _note(cost)))]
            if service in _MORE:
                parts.append(f"{_MORE[service]}\n")
    parts.append(
        _HOW.format(
            changes=record.changes,
            seconds=record.seconds,
            machine=f"Machine: {record.setting}.",
            day=record.day,
        )
    )
    return "\n".join(parts)


def table_of(rows: Sequence[Cost]) -> str:
    """Return the table of a service."""
    lines = [
        "| reader | delay | idle hour: requests | idle hour: other | idle hour: units | ours / theirs "
        "| a million changes: requests | a million changes: units | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for cost in rows:
        ratio = ratio_of(cost, rows)
        figures = [
            f"{cost.delay_seconds:.1f} s" if cost.delay_seconds else "0",
            _number(cost.hour_requests), _number(cost.hour_others), _number(cost.hour_units),
            "" if ratio is None else f"{ratio:.2f}",
            _number(cost.million_requests), _number(cost.million_units),
            "counted" if cost.known == "counted" else "computed",
        ]  # fmt: skip
        lines.append(f"| {cost.reader} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def ratio_of(cost: Cost, rows: Sequence[Cost]) -> float | None:
    """Return our requests of an idle hour, divided by those of the cheapest other reader at our delay.

    A reader that asks in intervals can ask as often as ours, so its requests are scaled to our delay. One of
    ours whose requests wait at the server is compared with others that do so; if there is none, with a later
    one as it is.

    Args:
        cost: A row.
        rows: All rows of the service.

    Returns:
        The ratio; None if the row is not ours, or no other reader can be compared.
    """
    others = [other for other in rows if cost.ours and not other.ours]
    alike = [other for other in others if (other.delay_seconds > 0) == (cost.delay_seconds > 0)]
    if cost.delay_seconds == 0:
        found = [_all(other) for other in alike or others]
    else:
        found = [_all(other) * other.delay_seconds / cost.delay_seconds for other in alike]
    return _all(cost) / min(found) if found else None


def _all(cost: Cost) -> float:
    return cost.hour_requests + (cost.hour_others or 0.0)


def write_docs(record: Record, root: Path = ROOT) -> None:
    """Write the record and its page."""
    record.write(root)
    (root / "reference" / "costs.md").write_text(page_text(record), encoding="utf-8")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    # Two digits more would be noise: what is counted in some seconds is scaled to an hour.
    return f"{float(f'{value:.3g}'):,.0f}"


def _note(cost: Cost) -> str:
    """Say from what a row is computed, and what its reader needs in addition."""
    if cost.known == "counted":
        return ""
    return f"Computed from {cost.known}. This reader also needs {cost.also}."
