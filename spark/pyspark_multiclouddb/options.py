"""Reads and checks the options of the data source.

Names are case-insensitive. Options that begin with `connection.` are passed to the provider's own
configuration, which defines their names. `OPTIONS` lists all other options. The option names of Kafka's
source are also accepted; with these names, a time is a number of milliseconds since 1970.

The value `env:NAME` is replaced by the value of the environment variable `NAME`. Each process reads it
separately: the driver when it plans, and each worker when it connects. So a secret appears neither in the
options nor in the data that Spark sends.

A secret is accepted only in options that Spark hides: in `url`, and in options whose names contain
`password`, `secret`, `token` or `access_key`. Spark prints all other options of a stream in plain text, for
example in `explain(True)`. Spark Connect hides no option: the server's event log contains the values as the
client has sent them, so use `env:NAME` there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    Fail,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OnExpired,
    Resnapshot,
    ResourceAddress,
    SkipToOldest,
    Snapshot,
    SnapshotOrder,
    canonical_json,
    invalid_request,
)
from multiclouddb_spi import FeedStart

if TYPE_CHECKING:
    from pyspark_multiclouddb.source_columns import Columns

CONNECTION: Final = "connection."
"""The prefix of options that are passed to the provider's own configuration."""

BACKLOG_RECORDS: Final = 1_000_000
"""The limit on a micro-batch while a stream without `maxRecordsPerTrigger` has not yet caught up."""

BATCH_PAYLOADS: Final = 8
"""A batch passes at most this many times `maxTaskPayload` to its tasks."""


@attrs.frozen
class Option:
    """One option."""

    name: str
    values: str
    default: str
    only: str = ""


OPTIONS: Final = (
    Option(
        "url", "the URL for `connect`, such as `embedded:///data/store.db`", "`url` or `provider` is required"
    ),
    Option("provider", "the provider id; the provider's settings are options `connection.*`", "from `url`"),
    Option("database", "the name of the database", "the provider's"),
    Option("collection", "the name of the collection, table or container", "required"),
    Option(
        "startingPosition",
        "`beginning`, `now` (see below), `snapshot`, or an ISO time with a zone",
        "`beginning`",
    ),
    Option(
        "snapshotOrder",
        "`ordered`, `interleaved` or `auto` ([Which order](snapshots.md#which-order)); the last two need a "
        "sink that keeps deletes",
        "`ordered`; after `failOnDataLoss=resnapshot`, `auto`",
    ),
    Option(
        "snapshotSegments", "the number of segments of a snapshot; one task reads a segment", "the provider's"
    ),
    Option("endingPosition", "`latest`, or an ISO time with a zone", "`latest`", "batch"),
    Option(
        "maxRecordsPerTrigger",
        "the largest number of rows in a micro-batch; a snapshot is read in whole segments, at least one, by "
        "their estimated rows",
        "see below",
        "stream",
    ),
    Option("maxTasksPerBatch", "the largest number of tasks in a batch", "`32`"),
    Option(
        "minPartitions",
        "the desired number of tasks, at most one for each partition with records; above 32 it raises "
        "`maxTasksPerBatch`",
        "one task for each partition with records",
    ),
    Option(
        "maxTaskPayload",
        "how many bytes of changes the driver passes to one task, which need not read them again, and at "
        "most eight times as many to all tasks of a batch; `0` for none",
        "`524288`",
        "stream",
    ),
    Option(
        "failOnDataLoss",
        "`false` to skip changes that have expired; `resnapshot` (streams only) to read every row again, for "
        "`merge_into_delta(…, checkpoint=…)`",
        "`true`",
    ),
    Option(
        "onPoison",
        "`skip` to leave out a change that cannot be decoded; the driver then reads each micro-batch first, "
        "and the tasks read again what is too large to be passed on",
        "`fail`",
    ),
    Option("newItemState", "`omit`, `include_if_available`, `require`", "`include_if_available`"),
    Option("oldItemState", "the same values", "`omit`"),
    Option(
        "mode",
        "`FAILFAST` or `PERMISSIVE`, for values that do not fit into [columns of "
        "documents](#columns-of-documents)",
        "`FAILFAST`",
    ),
    Option(
        "columnNameOfCorruptRecord",
        "with `PERMISSIVE`: the column for the JSON of a document with such a value",
        "`_corrupt_record`",
    ),
    Option(
        "pollInterval",
        "how often an idle feed is polled, such as `1 second` or `500 ms`",
        "`1 second`",
        "stream",
    ),
    Option(
        "idleCheckpointInterval", "how often the position of an idle feed is saved", "`5 minutes`", "stream"
    ),
)

ALIASES: Final = {
    "startingOffsets": "startingPosition",
    "startingTimestamp": "startingPosition",
    "endingOffsets": "endingPosition",
    "endingTimestamp": "endingPosition",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
}
"""Maps the option names of Kafka's source to the options of this source."""

STARTING_TOKEN: Final = "startingToken"
"""The option with which `multiclouddb_mirror` begins a query at the position of a table. It is not for users,
who cannot know whether their table has what came before a token."""

_NAMES: Final = {option.name.lower(): option.name for option in OPTIONS}
_ALIAS_NAMES: Final = {alias.lower(): alias for alias in ALIASES}
_ONLY: Final = {**{option.name: option.only for option in OPTIONS if option.only}, STARTING_TOKEN: "stream"}
_DEFAULT_TASKS: Final = 32
_DEFAULT_PAYLOAD: Final = 512 * 1024
_MOST_PAYLOAD: Final = 900 * 1024  # Spark warns of tasks with more than 1,000 KiB
_SNAPSHOT_TEXT: Final = re.compile(r"snapshot (ordered|interleaved|auto)(?: ([0-9]+))?")
# The default values of spark.redaction.regex and spark.sql.redaction.options.regex.
_HIDDEN: Final = re.compile(r"secret|password|token|access[._]?key|url")
_SECRET: Final = re.compile(r"key|credential|connection_?string|passw|pwd|sas|auth|signature|private")
_HINTS: Final = {
    "path": 'load() takes no path: name the database with .option("url", …), the documents with collection',
    "topic": "use the option collection",
    "subscribe": "use the option collection",
    "checkpointlocation": "set it on the query: df.writeStream.option(…)",
    "maxpartitionsperbatch": "use the option maxTasksPerBatch",
}
_OF_A_TABLE: Final = "option."
"""With this prefix, Spark repeats each option of a table of a catalog."""
_SECONDS: Final = {
    "ms": 0.001, "millisecond": 0.001, "": 1, "s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60,
    "h": 3600, "hour": 3600,
}  # fmt: skip
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_WAY_OUT_POSITION: Final = (
    "write beginning, now, snapshot, or a time with its zone such as 2026-01-31T12:00:00Z"
)
# As milliseconds, values below this number would be times from 1970 to 1973, so they are probably seconds.
_LEAST_MILLIS: Final = 100_000_000_000
_Mode = TypeVar("_Mode", bound=Enum)
_T = TypeVar("_T")


@attrs.frozen
class Settings:
    """The checked options of the data source."""

    connection: tuple[tuple[str, str], ...] = attrs.field(repr=lambda given: f"{[name for name, _ in given]}")
    address: ResourceAddress
    start: FeedStart | Snapshot | FromContinuationToken
    end: datetime | None
    max_records: int | None
    max_tasks: int
    max_payload: int
    on_loss: OnExpired
    skip_poison: bool
    new_item_state: NewItemStateMode
    old_item_state: OldItemStateMode
    poll_seconds: float
    idle_checkpoint_seconds: float
    is_strict: bool | None  # None if the option `mode` is not given
    corrupt_column: str | None
    given: tuple[tuple[str, str], ...]
    columns: Columns | None = None  # None for the columns of the events

    @property
    def config(self) -> ClientConfig:
        """Return the configuration of the client in this process."""
        found = {name: _from_environment(name, value) for name, value in self.connection}
        ours = {name: found.pop(name, None) for name in ("url", "provider")}
        own = {name.removeprefix(CONNECTION): value for name, value in found.items()}
        return _config(ours["url"], ours["provider"], own)

    @property
    def on_expired(self) -> OnExpired:
        """Defines what a planned read does if its position has expired."""
        return Fail() if isinstance(self.on_loss, Resnapshot) else self.on_loss

    @property
    def source(self) -> str:
        """A short digest that identifies the source, to detect a checkpoint of another source."""
        what = [self.config.provider, self.address.database, self.address.collection]
        return hashlib.sha256(canonical_json(what)).hexdigest()[:12]

    @property
    def modes(self) -> dict[str, str]:
        """The options that determine the columns, with their values. Defaults are left out."""
        modes = {}
        if self.new_item_state is not NewItemStateMode.INCLUDE_IF_AVAILABLE:
            modes["newItemState"] = str(self.new_item_state.value)
        if self.old_item_state is not OldItemStateMode.OMIT:
            modes["oldItemState"] = str(self.old_item_state.value)
        return modes

    @property
    def of_the_connection(self) -> Hashable:
        """The options that affect the connection; settings that are equal in them share one."""
        states = self.new_item_state, self.old_item_state
        return self.connection, self.address, states, self.on_loss, self.skip_poison, self.max_payload

    def request(self) -> ChangeFeedRequest:
        """Return the request that opens the feed; its start position is not used."""
        return ChangeFeedRequest(
            self.address,
            Now(),
            new_item_state_mode=self.new_item_state,
            old_item_state_mode=self.old_item_state,
            on_expired=self.on_loss,
        )

    def named(self, name: str) -> str:
        """Return the name of an option as the user spelled it."""
        return dict(self.given).get(name, name)

    def for_stream(self) -> Settings:
        """Return these settings, checked for a stream."""
        self._refuse("batch", "a stream", "end it with trigger(availableNow=True), or use spark.read")
        return self

    def for_batch(self) -> Settings:
        """Return these settings, checked for a batch."""
        self._refuse("stream", "a batch", "leave it out, or use spark.readStream")
        start, end = self.named("startingPosition"), self.named("endingPosition")
        if isinstance(self.start, Now):
            raise invalid_request(
                start, "is now, but a batch that starts now reads nothing", "start at beginning or a time"
            )
        if isinstance(self.on_loss, Resnapshot):
            raise invalid_request(
                self.named("failOnDataLoss"),
                "is resnapshot, which has no meaning in a batch",
                f"leave it out, and set {start}=snapshot",
            )
        if self.end is not None and isinstance(self.start, Snapshot):
            raise invalid_request(
                end,
                f"is a time, but {start} is snapshot, and a snapshot begins now",
                "leave it out, or start at a time",
            )
        if self.end is not None and isinstance(self.start, AtTime) and self.end < self.start.utc:
            raise invalid_request(end, f"is before {start}", "give an end that is later than the start")
        return self

    def _refuse(self, only: str, where: str, way_out: str) -> None:
        for name, spelled in self.given:
            if _ONLY.get(name) == only:
                raise invalid_request(spelled, f"has no meaning in {where}", way_out)


def parse_options(options: Mapping[str, str]) -> Settings:
    """Check options."""
    given, connection = _sorted_out(options)

    def text(name: str, default: str) -> tuple[str, str]:
        return given.get(name, (name, default))

    if "collection" not in given:
        raise invalid_request("collection", "is missing", 'add .option("collection", "NAME")')
    end_name, end_text = text("endingPosition", "latest")
    end = _position(end_name, end_text)
    if isinstance(end, Beginning | Snapshot):
        what = "the beginning" if isinstance(end, Beginning) else "snapshot"
        raise invalid_request(end_name, f"is {what}", "write latest, or a time with its zone")
    settings = Settings(
        connection=tuple(sorted(connection.items())),
        address=ResourceAddress(
            given["database"][1] if "database" in given else None, given["collection"][1]
        ),
        start=_start(given),
        end=end.utc if isinstance(end, AtTime) else None,
        max_records=_count(*given["maxRecordsPerTrigger"]) if "maxRecordsPerTrigger" in given else None,
        max_tasks=_tasks(given),
        max_payload=_payload(*text("maxTaskPayload", str(_DEFAULT_PAYLOAD))),
        on_loss=_on_loss(given),
        skip_poison=_choice(*text("onPoison", "fail"), {"fail": False, "skip": True}),
        new_item_state=_mode(*text("newItemState", "include_if_available"), NewItemStateMode),
        old_item_state=_mode(*text("oldItemState", "omit"), OldItemStateMode),
        poll_seconds=_duration(*text("pollInterval", "1 second")),
        idle_checkpoint_seconds=_duration(*text("idleCheckpointInterval", "5 minutes")),
        is_strict=_strict(*given["mode"]) if "mode" in given else None,
        corrupt_column=text("columnNameOfCorruptRecord", "")[1] or None,
        given=tuple((name, spelled) for name, (spelled, _) in given.items()),
    )
    _ = settings.config
    return settings


def _strict(name: str, text: str) -> bool:
    """Return whether a value that does not fit its column ends the query."""
    if text.lower() == "dropmalformed":
        raise invalid_request(
            name, f"is {text}, which would lose changes", "write FAILFAST, or PERMISSIVE, which keeps the row"
        )
    return _choice(name, text, {"failfast": True, "permissive": False})


def _start(given: Mapping[str, tuple[str, str]]) -> FeedStart | Snapshot | FromContinuationToken:
    """Return the start position. Options of a snapshot are allowed only if the start is a snapshot."""
    if STARTING_TOKEN in given:
        if "startingPosition" in given:
            spelled = given["startingPosition"][0]
            raise invalid_request(spelled, f"is set beside {STARTING_TOKEN}", "give one of them")
        return FromContinuationToken(given[STARTING_TOKEN][1])
    name, text = given.get("startingPosition", ("startingPosition", "beginning"))
    start = _position(name, text)
    if isinstance(start, Snapshot):
        return _as_given(start, given)
    if isinstance(_on_loss(given), Resnapshot):
        return start
    for option in ("snapshotOrder", "snapshotSegments"):
        if option in given:
            spelled = given[option][0]
            raise invalid_request(
                spelled, f"has no meaning if {name} is {text}", f"set {name}=snapshot, or leave it out"
            )
    return start


def _on_loss(given: Mapping[str, tuple[str, str]]) -> OnExpired:
    """Return the action after data loss. A snapshot that repairs a loss has the order `AUTO` by default."""
    name, text = given.get("failOnDataLoss", ("failOnDataLoss", "true"))
    known: dict[str, OnExpired] = {"true": Fail(), "false": SkipToOldest(), "resnapshot": Resnapshot()}
    on_loss = _choice(name, text.removesuffix("()"), known)
    return Resnapshot(_as_given(on_loss.snapshot, given)) if isinstance(on_loss, Resnapshot) else on_loss


def _as_given(snapshot: Snapshot, given: Mapping[str, tuple[str, str]]) -> Snapshot:
    """Return a snapshot with the options that the user gave."""
    if "snapshotOrder" in given:
        snapshot = attrs.evolve(snapshot, order=_mode(*given["snapshotOrder"], SnapshotOrder))
    if "snapshotSegments" in given:
        snapshot = attrs.evolve(snapshot, segments=_count(*given["snapshotSegments"]))
    return snapshot


def position_from_text(text: str) -> FeedStart | Snapshot:
    """Return a start position from its stored form; the inverse of `position_text`."""
    if found := _SNAPSHOT_TEXT.fullmatch(text):
        return Snapshot(SnapshotOrder(found[1]), None if found[2] is None else int(found[2]))
    return _position("startingPosition", text)


def position_text(position: FeedStart | Snapshot | FromContinuationToken) -> str:
    """Return a start position in the form that an offset stores."""
    match position:
        case Beginning():
            return "beginning"
        case Now():
            return "now"
        case AtTime(utc):
            return utc.isoformat()
        case Snapshot(order, segments):
            return f"snapshot {order.value}" + ("" if segments is None else f" {segments}")
        case FromContinuationToken(token):
            # Spark shows this text, and a token may hold the key of a document.
            return f"token {hashlib.sha256(token.encode()).hexdigest()[:16]}"


def _tasks(given: Mapping[str, tuple[str, str]]) -> int:
    least = _count(*given["minPartitions"]) if "minPartitions" in given else 1
    if "maxTasksPerBatch" not in given:
        return max(least, _DEFAULT_TASKS)
    most = _count(*given["maxTasksPerBatch"])
    if most < least:
        raise invalid_request("maxTasksPerBatch", "is less than minPartitions", "give one of them")
    return most


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Return the source's options with the user's spelling, and the connection's options."""
    given: dict[str, tuple[str, str]] = {}
    connection: dict[str, str] = {}
    for name, value in options.items():
        lower, text = name.lower(), str(value).strip()
        if lower.startswith(CONNECTION):
            setting = lower.removeprefix(CONNECTION)
            if _SECRET.search(setting) and not _HIDDEN.search(setting):
                raise invalid_request(
                    name,
                    "would show a secret: Spark prints this option in plain text",
                    "provide it with the vendor's environment variable or credential chain, or put it into "
                    "url",
                )
            connection[lower] = str(value)
            continue
        option = ALIASES[_ALIAS_NAMES[lower]] if lower in _ALIAS_NAMES else _NAMES.get(lower)
        if lower == STARTING_TOKEN.lower():
            option = STARTING_TOKEN
        if option is None:
            raise _unknown(name)
        spelled = _ALIAS_NAMES.get(lower, option)
        if option in given:
            raise invalid_request(spelled, f"is given twice, also as {given[option][0]}", "give it once")
        if not text:
            raise invalid_request(spelled, "is empty", "give a value, or leave the option out")
        if option in ("url", "provider"):
            connection[option] = text
        else:
            text = _from_environment(spelled, text)
        given[option] = spelled, _moment_of_millis(spelled, text) if "Timestamp" in spelled else text
    return given, connection


def _unknown(name: str) -> MulticloudDbError:
    known = {**_NAMES, **_ALIAS_NAMES}
    close = get_close_matches(name.lower(), known, n=1)
    hint = _HINTS.get(name.lower())
    if name.lower().startswith(_OF_A_TABLE):
        hint = "Spark adds it for a table of a catalog; use CREATE TEMPORARY VIEW … USING multiclouddb"
    elif hint is None:
        hint = f"did you mean {known[close[0]]}?" if close else f"known are {', '.join(_NAMES.values())}."
        hint += " The names of the provider's own options begin with connection."
    return invalid_request(name, "is not an option of this source", hint)


def _config(url: str | None, provider: str | None, connection: Mapping[str, str]) -> ClientConfig:
    if url is None and provider is None:
        way_out = 'add .option("url", "embedded:///data/store.db"), or provider and connection.*'
        raise invalid_request("url", "is missing", way_out)
    if url is None:
        assert provider is not None
        return ClientConfig(provider, connection)
    config = ClientConfig.from_url(url)
    if provider not in (None, config.provider):
        raise invalid_request("provider", f"is {provider}, but url is of {config.provider}", "leave it out")
    if "url" in connection:
        raise invalid_request("connection.url", "is set beside the option url", "leave one of them out")
    return ClientConfig(config.provider, {**config.connection, **connection})


def _from_environment(name: str, value: str) -> str:
    """Return the value, or for `env:NAME` the value of this environment variable in this process."""
    if not value.startswith("env:"):
        return value
    variable = value.removeprefix("env:").strip()
    found = os.environ.get(variable)
    if found is None:
        raise invalid_request(
            name,
            f"is {value!r}, but no such variable is set in a process of Spark",
            f"set {variable} in the environment of the driver and of every executor",
        )
    return found


def _position(name: str, text: str) -> FeedStart | Snapshot:
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


def _moment_of_millis(name: str, text: str) -> str:
    """Convert Kafka's milliseconds since 1970 to an ISO time."""
    way_out = "give milliseconds since 1970 as a whole number"
    try:
        moment = datetime.fromtimestamp(int(text) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise invalid_request(name, f"is {text!r}", way_out) from None
    if 0 < int(text) < _LEAST_MILLIS:
        raise invalid_request(name, f"is {text!r}, which seems to be in seconds", f"{way_out}: {text}000")
    return moment.isoformat()


def _count(name: str, text: str) -> int:
    """Parse a whole number that is 1 or more."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise invalid_request(name, f"is {text!r}", "give a whole number, 1 or more")
    return int(text)


def _payload(name: str, text: str) -> int:
    """Parse a number of bytes that a task may carry."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) > _MOST_PAYLOAD:
        way_out = f"give a number of bytes up to {_MOST_PAYLOAD}, or 0 to pass no changes"
        raise invalid_request(name, f"is {text!r}", way_out)
    return int(text)


def _mode(name: str, text: str, kind: type[_Mode]) -> _Mode:
    return _choice(name, text, {each.value: each for each in kind})


def _choice(name: str, text: str, known: Mapping[str, _T]) -> _T:
    if text.lower() not in known:
        raise invalid_request(name, f"is {text!r}", f"write one of {', '.join(known)}")
    return known[text.lower()]


def _duration(name: str, text: str) -> float:
    found = _DURATION.fullmatch(text.lower())
    unit = found and (_SECONDS.get(found[2]) or _SECONDS.get(found[2].removesuffix("s")))
    if found is None or unit is None:
        raise invalid_request(name, f"is {text!r}", "write it as 1 second, 500 ms or 2 minutes")
    return float(found[1]) * unit


def options_table() -> str:
    """Return the table of options in Markdown, as the docs show it."""
    also = {option.name: [name for name in ALIASES if ALIASES[name] == option.name] for option in OPTIONS}
    lines = ["| option | values | default |", "|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in (option.name, *also[option.name]))
        only = f"; {option.only} only" if option.only else ""
        lines.append(f"| {names} | {option.values}{only} | {option.default} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(options_table())  # noqa: T201 - for the docs
