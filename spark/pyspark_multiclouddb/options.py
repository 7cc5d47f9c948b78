"""The options of the data source.

Names are case-insensitive. Options that begin with `connection.` go to the provider's own configuration.

| option | values | default |
|---|---|---|
| `url` | as for `connect`: `embedded:///data/store.db` | `url` or `provider` is required |
| `provider`, `connection.*` | provider id, and its settings | |
| `database`, `collection` | where the documents are | the provider's; `collection` is required |
| `startingPosition` | `beginning`, `now`, or an ISO time with a zone | `beginning` |
| `endingPosition` | `latest`, or an ISO time with a zone; batch only | `latest` |
| `maxRecordsPerTrigger` | hard bound on the rows of a micro-batch; stream only | none |
| `maxPartitionsPerBatch` | maximum number of tasks of a batch | the driver's cores |
| `failOnDataLoss` | `false` to skip changes that have expired | `true` |
| `newItemState` | `omit`, `include_if_available`, `require` | `include_if_available` |
| `oldItemState` | the same values | `omit` |
| `pollInterval` | how often an idle feed is polled: `1 second`, `500 ms`; stream only | `1 second` |
| `idleCheckpointInterval` | how often an idle position is saved; stream only | `5 minutes` |

The default start is `beginning` for streams and for batches, so that nothing is left out unless you ask for
it (Kafka's source starts a stream at the end). It applies only to a new query: a query with a checkpoint
resumes from the checkpoint. The names of Kafka's source work too: `startingOffsets` and `endingOffsets`
(`earliest`, `latest`), `startingTimestamp` and `endingTimestamp` (milliseconds since 1970),
`maxOffsetsPerTrigger`.

The position of an idle feed moves with the service's log, and an old position in the checkpoint expires. So a
query saves the new position when it resumes from a checkpoint, and then once per `idleCheckpointInterval`, in
a micro-batch without rows that reads nothing. When the position has not moved, there is no such micro-batch.
Durations have a unit: `ms`, `seconds`, `minutes`, `hours`; without a unit they are seconds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import Enum
from typing import Final, TypeVar

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    Fail,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OnExpired,
    ResourceAddress,
    SkipToOldest,
    canonical_json,
    invalid_request,
)
from multiclouddb_spi import FeedStart

__all__ = ["Settings", "parse_options", "position_from_text", "position_text"]

_NAMES: Final = {
    name.lower(): name
    for name in (
        "url",
        "provider",
        "database",
        "collection",
        "startingPosition",
        "endingPosition",
        "maxRecordsPerTrigger",
        "maxPartitionsPerBatch",
        "failOnDataLoss",
        "newItemState",
        "oldItemState",
        "pollInterval",
        "idleCheckpointInterval",
    )
}
_ALIASES: Final = {
    "startingOffsets": "startingPosition",
    "startingTimestamp": "startingPosition",
    "endingOffsets": "endingPosition",
    "endingTimestamp": "endingPosition",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
}
_ALIAS_NAMES: Final = {alias.lower(): alias for alias in _ALIASES}
_CONNECTION: Final = "connection."
_ONLY_STREAM: Final = ("maxRecordsPerTrigger", "pollInterval", "idleCheckpointInterval")
_ONLY_BATCH: Final = ("endingPosition",)
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
_WAY_OUT_POSITION: Final = "write beginning, now, or a time with its zone such as 2026-01-31T12:00:00Z"
_Mode = TypeVar("_Mode", bound=Enum)


@attrs.frozen
class Settings:
    """The options, checked.

    Attributes:
        config: How to reach the database.
        address: The collection.
        start: The start of a new query or a batch.
        end: The end of a batch; None means the current end.
        max_records: Hard bound on the rows of a micro-batch, or None.
        max_tasks: Maximum number of tasks of a batch, or None for the driver's cores.
        fail_on_data_loss: False to skip changes that have expired.
        new_item_state: Whether rows have the new document.
        old_item_state: Whether rows have the old document.
        poll_seconds: How often an idle feed is polled.
        idle_checkpoint_seconds: How often a position that moved without a record is saved.
        given: Lower-case names of the options that were given.
    """

    config: ClientConfig
    address: ResourceAddress
    start: FeedStart
    end: datetime | None
    max_records: int | None
    max_tasks: int | None
    fail_on_data_loss: bool
    new_item_state: NewItemStateMode
    old_item_state: OldItemStateMode
    poll_seconds: float
    idle_checkpoint_seconds: float
    given: frozenset[str]

    @property
    def on_expired(self) -> OnExpired:
        """The reaction to a position that is older than retention."""
        return Fail() if self.fail_on_data_loss else SkipToOldest()

    @property
    def source(self) -> str:
        """A short digest of the source; it shows when a checkpoint belongs to another source."""
        what = [self.config.provider, self.address.database, self.address.collection]
        return hashlib.sha256(canonical_json(what)).hexdigest()[:12]

    def request(self) -> ChangeFeedRequest:
        """The request that opens the feed; its start position is not used."""
        return ChangeFeedRequest(
            self.address,
            Now(),
            new_item_state_mode=self.new_item_state,
            old_item_state_mode=self.old_item_state,
        )

    def for_stream(self) -> Settings:
        """These settings, checked for a stream.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` when an option is only for batches.
        """
        self._refuse(_ONLY_BATCH, "a stream", "end it with trigger(availableNow=True), or use spark.read")
        return self

    def for_batch(self) -> Settings:
        """These settings, checked for a batch.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` when an option is only for streams, or nothing can be between
                the start and the end.
        """
        self._refuse(_ONLY_STREAM, "a batch", "leave it out, or use spark.readStream")
        if isinstance(self.start, Now):
            raise invalid_request(
                "startingPosition",
                "is now, after which a batch finds nothing",
                "start at beginning or a time",
            )
        if self.end is not None and isinstance(self.start, AtTime) and self.end < self.start.utc:
            raise invalid_request(
                "endingPosition", "is before startingPosition", "make the end the later of the two"
            )
        return self

    def _refuse(self, names: Iterable[str], where: str, way_out: str) -> None:
        for name in names:
            if name.lower() in self.given:
                raise invalid_request(name, f"has no meaning in {where}", way_out)


def parse_options(options: Mapping[str, str]) -> Settings:
    """Check options.

    Args:
        options: Names in any case; values are text, as Spark passes them.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` that names the option and the way out.
    """
    given, connection = _sorted_out(options)
    collection = given.get("collection")
    if collection is None:
        raise invalid_request("collection", "is missing", 'add .option("collection", "NAME")')
    end = _position("endingPosition", given.get("endingposition", "latest"))
    if isinstance(end, Beginning):
        raise invalid_request("endingPosition", "is the beginning", "write latest, or a time with its zone")
    return Settings(
        config=_config(given, connection),
        address=ResourceAddress(given.get("database"), collection),
        start=_position("startingPosition", given.get("startingposition", "beginning")),
        end=end.utc if isinstance(end, AtTime) else None,
        max_records=_count("maxRecordsPerTrigger", given),
        max_tasks=_count("maxPartitionsPerBatch", given),
        fail_on_data_loss=_truth("failOnDataLoss", given.get("failondataloss", "true")),
        new_item_state=_mode("newItemState", given, NewItemStateMode.INCLUDE_IF_AVAILABLE),
        old_item_state=_mode("oldItemState", given, OldItemStateMode.OMIT),
        poll_seconds=_duration("pollInterval", given.get("pollinterval", "1 second")),
        idle_checkpoint_seconds=_duration(
            "idleCheckpointInterval", given.get("idlecheckpointinterval", "5 minutes")
        ),
        given=frozenset(given),
    )


def position_from_text(text: str) -> FeedStart:
    """The inverse of `position_text`."""
    return _position("startingPosition", text)


def position_text(position: FeedStart) -> str:
    """A start as it is written in an offset."""
    match position:
        case Beginning():
            return "beginning"
        case Now():
            return "now"
        case AtTime(utc):
            return utc.isoformat()


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Our own options by their lower-case names, with aliases resolved, and the provider's options."""
    given: dict[str, str] = {}
    connection: dict[str, str] = {}
    for name, value in options.items():
        lower, text = name.lower(), str(value).strip()
        if lower.startswith(_CONNECTION):
            connection[lower.removeprefix(_CONNECTION)] = str(value)
            continue
        if lower in _ALIAS_NAMES:
            alias = _ALIAS_NAMES[lower]
            lower = _ALIASES[alias].lower()
            text = _from_millis(alias, text) if alias.endswith("Timestamp") else text
        if lower not in _NAMES:
            raise _unknown(name)
        if lower in given:
            raise invalid_request(_NAMES[lower], f"is given twice, also as {name}", "give it once")
        if not text:
            raise invalid_request(_NAMES[lower], "is empty", "give a value, or leave the option out")
        given[lower] = text
    return given, connection


def _unknown(name: str) -> MulticloudDbError:
    known = {**_NAMES, **_ALIAS_NAMES}
    close = get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {known[close[0]]}?" if close else f"known are {', '.join(_NAMES.values())}."
    return invalid_request(
        name, "is not an option of this source", f"{hint} The provider's own options begin with connection."
    )


def _config(given: Mapping[str, str], connection: Mapping[str, str]) -> ClientConfig:
    url, provider = given.get("url"), given.get("provider")
    if url is None and provider is None:
        raise invalid_request(
            "url",
            "is missing",
            'add .option("url", "embedded:///data/store.db"), or provider and connection.*',
        )
    if url is None:
        assert provider is not None
        return ClientConfig(provider, connection)
    config = ClientConfig.from_url(url)
    if provider not in (None, config.provider):
        raise invalid_request("provider", f"is {provider}, but url is of {config.provider}", "leave it out")
    return ClientConfig(config.provider, {**connection, **config.connection})


def _position(name: str, text: str) -> FeedStart:
    match text.lower():
        case "beginning" | "earliest":
            return Beginning()
        case "now" | "latest":
            return Now()
        case _:
            return AtTime(_moment(name, text))


def _moment(name: str, text: str) -> datetime:
    way_out = (
        _WAY_OUT_POSITION.replace("beginning, now", "latest")
        if name == "endingPosition"
        else _WAY_OUT_POSITION
    )
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid_request(name, f"is {text!r}", way_out) from None
    if moment.utcoffset() is None:
        raise invalid_request(name, f"has no time zone: {text!r}", way_out)
    return moment.astimezone(UTC)


def _from_millis(name: str, text: str) -> str:
    try:
        return datetime.fromtimestamp(int(text) / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        raise invalid_request(
            name, f"is {text!r}", "give milliseconds since 1970 as a whole number"
        ) from None


def _count(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise invalid_request(name, f"is {text!r}", "give a whole number, 1 or more")
    return int(text)


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise invalid_request(name, f"is {text!r}", "write true or false")
    return text.lower() == "true"


def _mode(name: str, given: Mapping[str, str], default: _Mode) -> _Mode:
    text = given.get(name.lower())
    if text is None:
        return default
    modes = {mode.value: mode for mode in type(default)}
    if text.lower() not in modes:
        raise invalid_request(name, f"is {text!r}", f"write one of {', '.join(modes)}")
    return modes[text.lower()]


def _duration(name: str, text: str) -> float:
    found = _DURATION.fullmatch(text.lower())
    unit = None
    if found:
        unit = _SECONDS.get(found[2]) or _SECONDS.get(found[2].removesuffix("s"))
    if found is None or unit is None:
        raise invalid_request(name, f"is {text!r}", "write it as 1 second, 500 ms or 2 minutes")
    return float(found[1]) * unit
