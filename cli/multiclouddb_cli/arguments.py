"""Converts command-line arguments to values; a wrong argument causes a usage error that names the option."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import typer

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    Checkpoint,
    ClientConfig,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    Fail,
    FeedScope,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OnExpired,
    PhysicalPartition,
    ProviderOptions,
    Resnapshot,
    ResourceAddress,
    SkipToOldest,
    Snapshot,
    SnapshotOrder,
    StartPosition,
    connect,
    decode_json,
    invalid_request,
)
from multiclouddb_api.checkpoint import CheckpointFile, checkpoint_at
from multiclouddb_api.validators import suggestion
from multiclouddb_cli.failure import installed
from multiclouddb_cli.screen import shorter


class Bookmark:
    """The checkpoint in a file or at a URL, which can be held back."""

    def __init__(self, where: str) -> None:
        self.store, self.name = checkpoint_at(where)
        self.is_held = False

    def hold(self) -> None:
        """Save nothing after this call, because a later run has to continue from the saved position."""
        self.is_held = True

    def save(self, name: str, token: str, expected: str | None) -> Checkpoint:
        """Replace the checkpoint, unless `hold` was called."""
        if self.is_held:
            return Checkpoint(token, expected or "held")
        return self.store.save(name, token, expected)

    def load(self, name: str | None = None) -> Checkpoint | None:
        """Return the checkpoint, or None if there is none yet."""
        return self.store.load(name or self.name)


_MOST_CHARACTERS: Final = 64 * 1024 * 1024
_AGE: Final = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+", re.ASCII)
_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SNAPSHOTS: Final = {"snapshot": SnapshotOrder.AUTO} | {
    f"snapshot:{order.value}": order for order in SnapshotOrder
}
_WHOLE: Final[dict[str, FeedScope]] = {
    "collection": EntireCollection(),
    "database": EntireDatabase(),
    "cluster": EntireCluster(),
}
_SCOPES: Final = f"{', '.join(_WHOLE)}, partition:ID, descendants:ID and key:JSON"


def _wrong(option: str, problem: str) -> typer.BadParameter:
    return typer.BadParameter(problem, param_hint=option)


def to_config(url: str) -> ClientConfig:
    """Read a URL or the path of a TOML file; a TOML file may read secrets from the environment."""
    if "://" not in url and url.endswith(".toml"):
        return ClientConfig.from_toml(url)
    return ClientConfig.from_url(url)


def to_address(text: str) -> ResourceAddress:
    """Read an address: `DATABASE/COLLECTION`, or only the collection."""
    try:
        return ResourceAddress.parse(text)
    except MulticloudDbError as error:
        problem = "names no collection: multiclouddb collections URL lists them"
        raise _wrong("COLLECTION", problem) from error


def to_target(where: str | None, scope: str, provider: str) -> tuple[ResourceAddress, FeedScope]:
    """Read the target and the scope: a collection or, with `--scope`, a database or a cluster."""
    kind = _to_scope(scope, provider)
    match kind:
        case EntireCluster():
            if where is not None:
                raise _wrong("COLLECTION", "cannot be given with --scope cluster: leave it out")
            return ResourceAddress(), kind
        case EntireDatabase():
            database, _, collection = (where or "").partition("/")
            if collection:
                raise _wrong(
                    "COLLECTION", "names a collection, but --scope database needs only the name of a database"
                )
            return ResourceAddress(database=database or None), kind
        case _:
            return to_address(where or ""), kind


def to_start(text: str, *, max_scan_rate: float | None = None) -> StartPosition:
    """Read a start: `beginning`, `now`, a time, an age, `@FILE` with a token, or `snapshot`."""
    if text in _SNAPSHOTS:
        return Snapshot(_SNAPSHOTS[text], max_scan_rate=max_scan_rate)
    if text == "beginning":
        return Beginning()
    if text == "now":
        return Now()
    if text.startswith("@"):
        return FromContinuationToken(to_token(text, "--from"))
    known = "beginning, now, snapshot, @FILE"
    return AtTime(to_moment(text, "--from", known))


def to_moment(text: str, option: str, known: str = "now") -> datetime:
    """Read a time with its zone, `now`, or an age like `-1h30m` by this machine's clock."""
    now = datetime.now(UTC)
    if text == "now":
        return now
    try:
        if text.startswith("-") and (age := _age(text[1:])) is not None:
            return now - age
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        example = "a time like 2026-01-31T12:00:00Z or an age like -1h"
        raise _wrong(option, f"{text!r} is not one of these: {known}, {example}") from error
    if time.utcoffset() is None:
        whole = time.isoformat(timespec="auto" if time.second or time.microsecond else "minutes")
        raise _wrong(
            option, f"{text} has no time zone: write {whole}Z, or an offset like +02:00 in place of Z"
        )
    return time


def to_age(text: str, option: str) -> timedelta:
    """Read an age like `1h30m`."""
    with suppress(OverflowError):
        if (age := _age(text)) is not None:
            return age
    raise _wrong(option, f"{text!r} is not an age like 90s, 1h or 1h30m (s, m, h, d, w)")


def _age(text: str) -> timedelta | None:
    if _AGE.fullmatch(text) is None:
        return None
    return timedelta(**{_UNITS[unit]: float(count) for count, unit in _PARTS.findall(text)})


def to_checkpoint(where: str | None) -> str | None:
    """Check a checkpoint's path or URL; nothing else is asked of a service than the checkpoint."""
    if where is None:
        return None
    if "://" in where:
        try:
            Bookmark(where)
        except MulticloudDbError as error:
            raise _wrong("--checkpoint", error.message) from error
        return where
    path = Path(where)
    if path.is_dir():
        raise _wrong("--checkpoint", f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise _wrong("--checkpoint", f"the folder {path.parent} does not exist: make it first")
    if not path.name.removesuffix(".checkpoint.json").strip("."):
        raise _wrong("--checkpoint", f"{str(path)!r} names no file")
    try:
        CheckpointFile(path).check()
    except MulticloudDbError as error:
        raise _wrong("--checkpoint", error.message) from error
    return where


def to_token(text: str, option: str = "TOKEN") -> str:
    """Read a token: the token itself, `-` for stdin, or what names a checkpoint.

    That is `@FILE` with a token or a checkpoint, the URL of a checkpoint in a store, `spark:FOLDER` for the
    `checkpointLocation` of a Spark query, or `table:TARGET` for a table with which a mirror has stored it.
    """
    path, where = None, ""
    if text.startswith("spark:"):
        return _spark_token(text.removeprefix("spark:"))
    if text.startswith("table:"):
        return _table_token(text.removeprefix("table:"), option)
    if "://" in text and not text.startswith("@"):
        bookmark = Bookmark(text)
        if (stored := bookmark.load()) is None:
            raise _wrong(option, f"there is no checkpoint {bookmark.name!r} in the store yet")
        return stored.token
    if text == "-":
        text, where = sys.stdin.read(_MOST_CHARACTERS).strip(), "standard input "
    elif text.startswith("@"):
        if "://" in text:
            raise _wrong(option, "what stands after the @ is a URL; write it without the @")
        path = Path(text[1:])
        text, where = _content(path, option).strip(), f"{path} "
    if not text.strip():
        raise _wrong(option, f"{where}is empty")
    is_file = False
    with suppress(OSError, ValueError):  # most tokens are longer than a file's name may be
        is_file = not where and Path(text).is_file()
    if is_file:
        raise _wrong(option, f"{text!r} is a file: write @{text}")
    if path is None or not text.startswith("{"):
        return text
    checkpoint = Bookmark(str(path)).load()
    assert checkpoint is not None
    return checkpoint.token


def _content(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        found = "" if path.is_absolute() else f", looked for in {Path.cwd()}"
        raise _wrong(option, f"{path} cannot be read ({reason}{found})") from error


_DONE: Final = "done"
_FREE: Final = "free "


def to_group(text: str, option: str = "TOKEN") -> dict[str, str] | None:
    """Read the positions of workers that share a feed, from the URL of their plan.

    The page *Spread over machines* has the form: the plan maps the name of a checkpoint, beside the plan, to
    an object whose `start` is the token for as long as there is no such checkpoint. A checkpoint has a token,
    after `free ` if nobody follows the partition now, or `done`.

    Args:
        text: As in `to_token`.
        option: The option, for a message.

    Returns:
        The token of each partition that is not done, by the name of its checkpoint; None if the text names no
        plan.
    """
    if "://" not in text or text.startswith(("@", "table:")):
        return None
    bookmark = Bookmark(text)
    stored = bookmark.load()
    if stored is None or not stored.token.startswith("{"):
        return None
    found = dict[str, str]()
    try:
        starts = {name: each["start"] for name, each in orjson.loads(stored.token).items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _wrong(option, "is neither a token nor the plan of workers") from error
    for name, start in starts.items():
        if not isinstance(start, str):
            raise _wrong(option, f"the plan has no token as the start of {name}")
        beside = bookmark.load(name)
        token = start if beside is None else beside.token
        if token != _DONE:
            found[name] = token.removeprefix(_FREE)
    return found


def is_mirror_file(url: str) -> bool:
    """Return whether what stands in the place of a URL may be the file of a mirror."""
    return ":" not in url or Path(url).is_file()


def to_tables(path: str) -> dict[str, str | MulticloudDbError]:
    """Read the positions of a mirror's tables, from its file.

    Args:
        path: The file, in the place of a URL.

    Returns:
        The token of each table, by the names of its collection and of the table; an error where the position
        is missing, or cannot be read.

    Raises:
        MulticloudDbError: The errors of reading the file, and of listing the collections of `*`.
    """
    if not is_mirror_file(path):
        raise _wrong("TOKEN", "is missing; only the file of a mirror, in place of URL, needs none")
    with installed("mirror"):
        from multiclouddb_mirror import MirrorFile, destination_of
    file, found = MirrorFile.read(path), dict[str, str | MulticloudDbError]()
    with connect(file.config) as client:  # asked only for the collections of *
        jobs = file.jobs(client)
    for job in jobs:
        try:
            token = destination_of(job.target, job.position).stored()
            if token is None:
                raise invalid_request(job.table, "has no position yet", f"run multiclouddb mirror {path}")
        except MulticloudDbError as error:
            found[f"{job.address}, {job.table}"] = error
        else:
            found[f"{job.address}, {job.table}"] = token
    return found


def _table_token(target: str, option: str) -> str:
    with installed("table:"):
        from multiclouddb_mirror import destination_of
    destination = destination_of(target)
    token = destination.stored()
    if token is None:
        raise _wrong(option, f"there is no position with {destination.name} yet")
    return token


def _spark_token(folder: str) -> str:
    with installed("spark:"):
        from multiclouddb_verify.position import spark_token
    return spark_token(folder)


def _to_scope(text: str, provider: str) -> FeedScope:
    """Read `collection`, `database`, `cluster`, `partition:ID`, `descendants:ID`, `key:JSON`, or an ID."""
    kind, _, value = text.partition(":")
    if text in _WHOLE:
        return _WHOLE[text]
    if kind == provider and value:
        return PhysicalPartition(text)
    if kind in ("partition", "descendants") and value:
        return PhysicalPartition(value, with_descendants=kind == "descendants")
    if kind == "key" and value:
        return LogicalPartition(to_key(value, "--scope"))
    hint = "" if value else f"; for a partition with that name, write partition:{text}"
    raise _wrong("--scope", f"{text!r} is not one of {_SCOPES}{hint}")


def to_key(text: str, option: str) -> MulticloudDbKey:
    """Read a partition key: a JSON object that contains the components of the key in order."""
    example = 'a key is a JSON object like {"customer": "c-1"}'
    try:
        components: Any = decode_json(text)
    except MulticloudDbError as error:
        raise _wrong(option, f"the text is not JSON; {example}") from error
    if not isinstance(components, dict) or not components:
        raise _wrong(option, example)
    try:
        return MulticloudDbKey(components, len(components))
    except MulticloudDbError as error:
        raise _wrong(option, error.message) from error


_HINT = "--option"


def to_keys(texts: Sequence[str], option: str) -> list[MulticloudDbKey]:
    """Read keys, each as in `to_key`, or `@FILE` with a key in each line."""
    found = list[MulticloudDbKey]()
    for text in texts:
        if not text.startswith("@"):
            found.append(to_key(text, option))
            continue
        path = Path(text[1:])
        lines = [line.strip() for line in _content(path, option).split("\n")]
        if not any(lines):
            raise _wrong(option, f"{path} has no key")
        for number, line in enumerate(lines, 1):
            if line:
                try:
                    found.append(to_key(line, option))
                except typer.BadParameter as error:
                    raise _wrong(option, f"line {number} of {path}: {error.message}") from error
    return found


def to_options(config: ClientConfig, texts: Sequence[str]) -> ProviderOptions | None:
    """Return the provider's options, or None if there are none."""
    if not texts:
        return None
    kind = _kind(config)
    if kind is None:
        raise typer.BadParameter(f"{config.provider} has no options", param_hint=_HINT)
    fields = {field.name: field for field in attrs.fields(kind)}
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=_HINT)
        if name not in fields:
            hint = suggestion(name, fields)
            raise typer.BadParameter(f"{config.provider} has no option {name!r}: {hint}", param_hint=_HINT)
        if name in values:
            raise typer.BadParameter(f"{name} is given twice", param_hint=_HINT)
        values[name] = _value(name, str(fields[name].type), value)
    return kind(**values)


def option_names(url: str) -> list[str]:
    """Return the names of the provider's options, for completion."""
    with suppress(MulticloudDbError):
        kind = _kind(to_config(url))
        return [] if kind is None else [field.name for field in attrs.fields(kind)]
    return []


def _kind(config: ClientConfig) -> type[ProviderOptions] | None:
    from multiclouddb_spi import open_provider

    provider = open_provider(config)
    try:
        return provider.options_type
    finally:
        provider.close()


def _value(name: str, kind: str, text: str) -> Any:
    """Convert the text to a value for a field whose type annotation is `kind`."""
    if kind.startswith(("str", "Literal")):
        return text
    if kind.startswith("bool"):
        if text not in ("true", "false"):
            raise typer.BadParameter(f"{name} must be true or false, not {text!r}", param_hint=_HINT)
        return text == "true"
    try:
        return decode_json(text)
    except MulticloudDbError as error:
        raise typer.BadParameter(f"the value of {name} is not JSON: {text!r}", param_hint=_HINT) from error


@attrs.frozen
class Selection:
    """Selects the events to print; by default, all events."""

    types: frozenset[ChangeType] = frozenset()
    since: datetime | None = None
    until: datetime | None = None
    key: MulticloudDbKey | None = None

    def of(self, events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
        """Return those of the given events that must be printed."""
        return [event for event in events if self._holds(event)]

    def is_of_the_past(self) -> bool:
        """Return True if all changes up to `until` have already been written."""
        return self.until is not None and self.until < datetime.now(UTC)

    def leaves_for_later(self, page: ChangeFeedPage) -> bool:
        """Return True if this page contains an event that is later than `until`."""
        until = self.until
        return until is not None and any(event.timestamp > until for event in page.events)

    def is_over(self, page: ChangeFeedPage, asked_at: datetime) -> bool:
        """Return True if no later page can contain an event up to `until`."""
        if self.until is None:
            return False
        watermark = page.diagnostics.watermark
        if watermark is not None and watermark > self.until:
            return True
        # After an idle page, everything up to the time of its request was read.
        return page.idle and asked_at.astimezone(UTC) > self.until

    def _holds(self, event: ChangeEvent) -> bool:
        if self.types and event.type not in self.types:
            return False
        # Some services report only whole seconds, so an event with this second may be later than `since`.
        if self.since is not None and event.timestamp < self.since.replace(microsecond=0):
            return False
        if self.until is not None and event.timestamp > self.until:
            return False
        return self.key is None or event.key.partition_key == self.key.components


def public_scope(config: ClientConfig, address: ResourceAddress, scope: FeedScope) -> FeedScope:
    """Return the scope with the public id of its partition."""
    if not isinstance(scope, PhysicalPartition) or scope.partition_id.startswith(f"{config.provider}:"):
        return scope
    from multiclouddb_cli.session import ConnectedFeed

    with ConnectedFeed(config, ChangeFeedRequest(address, Now())) as session:
        asked = session.feed.for_one_call()
        listed = session.opened.call("survey", lambda deadline: asked.survey({}, deadline)).present
        names = [item.partition_id for item in listed]
        if scope.partition_id in names:
            return attrs.evolve(scope, partition_id=session.feed.public_id(scope.partition_id))
    known = shorter(", ".join(shorter(name, 24) for name in names), 200)
    raise typer.BadParameter(
        f"the service does not list the partition {scope.partition_id!r}; it lists {known}",
        param_hint="--scope",
    )


_MODES = {"omit": "OMIT", "include": "INCLUDE_IF_AVAILABLE", "require": "REQUIRE"}


def to_request(
    url: str,
    collection: str | None,
    start: str,
    scope: str,
    state: str,
    old_state: str,
    on_expired: str,
    options: Sequence[str] | None,
    *,
    max_scan_rate: float | None = None,
    last: int | None = None,
) -> ChangeFeedRequest:
    """Return the request that a command line describes."""
    config = to_config(url)
    address, kind = to_target(collection, scope, config.provider)
    if last is not None and start != "now":
        raise typer.BadParameter("give only one of them", param_hint="--last and --from")
    position = to_start(start, max_scan_rate=max_scan_rate)
    if max_scan_rate is not None and not (isinstance(position, Snapshot) or on_expired == "snapshot"):
        raise typer.BadParameter("can only be used with --from snapshot", param_hint="--max-scan-rate")
    ways: dict[str, OnExpired] = {
        "fail": Fail(),
        "skip": SkipToOldest(),
        "snapshot": Resnapshot(Snapshot(max_scan_rate=max_scan_rate)),
    }
    return ChangeFeedRequest(
        address,
        Now() if last is not None else position,
        public_scope(config, address, kind),
        new_item_state_mode=NewItemStateMode[_MODES[state]],
        old_item_state_mode=OldItemStateMode[_MODES[old_state]],
        on_expired=ways[on_expired],
        provider_options=to_options(config, options or ()),
    )


def to_selection(
    kinds: Sequence[str] | None, since: str | None, until: str | None, key: str | None
) -> Selection:
    """Return the selection of events to print."""
    selection = Selection(
        frozenset(ChangeType[kind.upper()] for kind in kinds or ()),
        None if since is None else to_moment(since, "--since"),
        None if until is None else to_moment(until, "--to"),
        None if key is None else to_key(key, "--only-key"),
    )
    if selection.since is not None and selection.until is not None and selection.since > selection.until:
        raise typer.BadParameter("is later than --to: no change can be between them", param_hint="--since")
    return selection
