"""Converts command-line arguments to values; a wrong argument causes a usage error that names the option."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import typer

from multiclouddb_api import (
    AtTime,
    Beginning,
    ClientConfig,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    FeedScope,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    PhysicalPartition,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    StartPosition,
    decode_json,
)
from multiclouddb_cli.bookmark import Bookmark

__all__ = [
    "to_address",
    "to_checkpoint",
    "to_config",
    "to_key",
    "to_moment",
    "to_start",
    "to_target",
    "to_token",
]

_MOST_CHARACTERS: Final = 64 * 1024 * 1024
_AGE: Final = re.compile(r"-((?:\d+(?:\.\d+)?[smhdw])+)", re.ASCII)
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
    database, slash, collection = text.partition("/")
    if not slash:
        database, collection = "", text
    if not collection.strip():
        raise _wrong("COLLECTION", "names no collection: multiclouddb collections URL lists them")
    return ResourceAddress(database or None, collection)


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
            return ResourceAddress(database or None), kind
        case _:
            return to_address(where or ""), kind


def to_start(text: str, *, snapshots: bool = False, max_scan_rate: float | None = None) -> StartPosition:
    """Read a start: `beginning`, `now`, a time, an age, `@FILE` with a token, or `snapshot` if allowed."""
    if text in _SNAPSHOTS:
        if not snapshots:
            raise _wrong("--from", f"{text!r} can only be used with tail, because it reads every row")
        return Snapshot(_SNAPSHOTS[text], max_scan_rate=max_scan_rate)
    if text == "beginning":
        return Beginning()
    if text == "now":
        return Now()
    if text.startswith("@"):
        return FromContinuationToken(to_token(text, "--from"))
    known = "beginning, now, snapshot, @FILE" if snapshots else "beginning, now, @FILE"
    return AtTime(to_moment(text, "--from", known))


def to_moment(text: str, option: str, known: str = "now") -> datetime:
    """Read a time with its zone, an age like `-1h30m`, or `now`; ages are relative to this machine's clock.

    Args:
        text: The text that the user entered.
        option: The option to which the text belongs.
        known: The other values that the option accepts; the error message lists them.
    """
    now = datetime.now(UTC)
    if text == "now":
        return now
    try:
        if (age := _AGE.fullmatch(text)) is not None:
            parts = _PARTS.findall(age[1])
            return now - timedelta(**{_UNITS[unit]: float(count) for count, unit in parts})
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        example = "a time like 2026-01-31T12:00:00Z or an age like -1h"
        raise _wrong(option, f"{text!r} is not one of these: {known}, {example}") from error
    if time.utcoffset() is None:
        raise _wrong(option, f"{text} has no time zone: add Z, or an offset like +02:00")
    return time


def to_checkpoint(path: Path | None) -> Path | None:
    """Check a checkpoint's path.

    The folder of the file must already exist, but the file itself need not exist.
    """
    if path is None:
        return None
    if path.is_dir():
        raise _wrong("--checkpoint", f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise _wrong("--checkpoint", f"the folder {path.parent} does not exist: make it first")
    if not path.name.removesuffix(".checkpoint.json").strip("."):
        raise _wrong("--checkpoint", f"{str(path)!r} names no file")
    return path


def to_token(text: str, option: str = "TOKEN") -> str:
    """Read a token: the token itself, `@FILE` with a token or a checkpoint, or `-` for stdin."""
    if text == "-":
        text = _stripped(sys.stdin.read(_MOST_CHARACTERS), option, "standard input")
    elif text.startswith("@"):
        text = _from_file(Path(text[1:]), option)
    if not text.strip():
        raise _wrong(option, "is empty")
    return text


def _from_file(path: Path, option: str) -> str:
    try:
        text = _stripped(path.read_text(encoding="utf-8"), option, str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise _wrong(option, f"{path} cannot be read ({reason})") from error
    if not text.startswith("{"):
        return text
    checkpoint = Bookmark(path).load()
    assert checkpoint is not None
    return checkpoint.token


def _stripped(text: str, option: str, where: str) -> str:
    if not text.strip():
        raise _wrong(option, f"{where} is empty")
    return text.strip()


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
    hint = "" if value else f"; a partition of that name is partition:{text}"
    raise _wrong("--scope", f"{text!r} is not one of {_SCOPES}{hint}")


def to_key(text: str, option: str) -> MulticloudDbKey:
    """Read a partition key: a JSON object that contains the components of the key in order."""
    example = 'a key is a JSON object like {"customer": "c-1"}'
    try:
        components: Any = decode_json(text)
    except MulticloudDbError as error:
        raise _wrong(option, f"{text!r} is not JSON; {example}") from error
    if not isinstance(components, dict) or not components:
        raise _wrong(option, example)
    try:
        return MulticloudDbKey(components, len(components))
    except MulticloudDbError as error:
        raise _wrong(option, error.message) from error
