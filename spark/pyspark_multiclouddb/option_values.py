"""Converts the text of an option to a value. Error messages show the option's name as the user spelled it."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from enum import Enum
from typing import Final, TypeVar

from multiclouddb_api import (
    AtTime,
    Beginning,
    Fail,
    Now,
    OnExpired,
    Resnapshot,
    SkipToOldest,
    Snapshot,
    SnapshotOrder,
    invalid_request,
)
from multiclouddb_spi import FeedStart

__all__ = [
    "count",
    "duration",
    "from_environment",
    "mode",
    "moment_of_millis",
    "on_loss",
    "on_poison",
    "position",
    "snapshot_order",
]

_ENVIRONMENT: Final = "env:"
_SECONDS: Final = {
    "ms": 0.001,
    "millisecond": 0.001,
    "": 1,
    "s": 1,
    "sec": 1,
    "second": 1,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_RESNAPSHOT: Final = "resnapshot"
_WAY_OUT_POSITION: Final = (
    "write beginning, now, snapshot, or a time with its zone such as 2026-01-31T12:00:00Z"
)
# As milliseconds, values below this number would be times from 1970 to 1973, so they are probably seconds.
_LEAST_MILLIS: Final = 100_000_000_000
_Mode = TypeVar("_Mode", bound=Enum)


def from_environment(name: str, value: str) -> str:
    """Return the value of an option; an environment variable can supply it.

    If the value is `env:NAME`, return the value of this environment variable in this process. Otherwise,
    return the value unchanged.

    Args:
        name: The name of the option, for the error.
        value: The value that the user gave.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the variable is not set in this process.
    """
    if not value.startswith(_ENVIRONMENT):
        return value
    variable = value.removeprefix(_ENVIRONMENT).strip()
    found = os.environ.get(variable)
    if found is None:
        raise invalid_request(
            name,
            f"is {value!r}, but no such variable is set in a process of Spark",
            f"set {variable} in the environment of the driver and of every executor",
        )
    return found


def position(name: str, text: str) -> FeedStart | Snapshot:
    """Return the start or end position that the text names.

    Args:
        name: The option, as the user spelled it.
        text: Its value.
    """
    match text.lower():
        case "beginning" | "earliest":
            return Beginning()
        case "now" | "latest":
            return Now()
        case "snapshot":
            return Snapshot(SnapshotOrder.ORDERED)
        case "resnapshot":
            raise invalid_request(
                name,
                "is resnapshot, which is not a start position",
                "write snapshot, and set failOnDataLoss=resnapshot",
            )
        case _:
            return AtTime(_moment(name, text))


def snapshot_order(name: str, text: str) -> SnapshotOrder:
    """Return the order of a snapshot.

    Args:
        name: The option, as the user spelled it.
        text: Its value.
    """
    return mode(name, text, SnapshotOrder)


def on_loss(name: str, text: str) -> OnExpired:
    """Return what to do if changes have expired.

    Args:
        name: The option, as the user spelled it.
        text: Its value.
    """
    if text.lower().removesuffix("()") == _RESNAPSHOT:
        return Resnapshot()
    if text.lower() not in ("true", "false"):
        raise invalid_request(name, f"is {text!r}", "write true, false or resnapshot")
    return Fail() if text.lower() == "true" else SkipToOldest()


def on_poison(name: str, text: str) -> bool:
    """Return True if changes that cannot be decoded are left out.

    Args:
        name: The option, as the user spelled it.
        text: Its value.
    """
    if text.lower() not in ("fail", "skip"):
        raise invalid_request(name, f"is {text!r}", "write fail or skip")
    return text.lower() == "skip"


def _moment(name: str, text: str) -> datetime:
    way_out = (
        _WAY_OUT_POSITION.replace("beginning, now, snapshot", "latest")
        if name.startswith("ending")
        else _WAY_OUT_POSITION
    )
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid_request(name, f"is {text!r}", way_out) from None
    if moment.utcoffset() is None:
        raise invalid_request(name, f"has no time zone: {text!r}", way_out)
    return moment.astimezone(UTC)


def moment_of_millis(name: str, text: str) -> str:
    """Convert Kafka's milliseconds since 1970 to an ISO time.

    Args:
        name: The option, as the user spelled it.
        text: Its value.
    """
    way_out = "give milliseconds since 1970 as a whole number"
    try:
        moment = datetime.fromtimestamp(int(text) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise invalid_request(name, f"is {text!r}", way_out) from None
    if 0 < int(text) < _LEAST_MILLIS:
        raise invalid_request(name, f"is {text!r}, which seems to be in seconds", f"{way_out}: {text}000")
    return moment.isoformat()


def count(name: str, text: str) -> int:
    """Parse a whole number that is 1 or more.

    Args:
        name: The option, as the user spelled it.
        text: Its value.
    """
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise invalid_request(name, f"is {text!r}", "give a whole number, 1 or more")
    return int(text)


def mode(name: str, text: str, kind: type[_Mode]) -> _Mode:
    """Parse a mode, which is one of the values of an enumeration.

    Args:
        name: The option, as the user spelled it.
        text: Its value.
        kind: The enumeration.
    """
    modes = {each.value: each for each in kind}
    if text.lower() not in modes:
        raise invalid_request(name, f"is {text!r}", f"write one of {', '.join(modes)}")
    return modes[text.lower()]


def duration(name: str, text: str) -> float:
    """Return a duration in seconds.

    Args:
        name: The option, as the user spelled it.
        text: Its value.
    """
    found = _DURATION.fullmatch(text.lower())
    unit = None
    if found:
        unit = _SECONDS.get(found[2]) or _SECONDS.get(found[2].removesuffix("s"))
    if found is None or unit is None:
        raise invalid_request(name, f"is {text!r}", "write it as 1 second, 500 ms or 2 minutes")
    return float(found[1]) * unit
