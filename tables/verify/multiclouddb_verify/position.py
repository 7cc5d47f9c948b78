"""Finds the position that a sink has stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from multiclouddb_api import (
    CheckpointStore,
    EntireCollection,
    MulticloudDbClient,
    MulticloudDbError,
    ProviderOptions,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.validators import check_type, path_here, type_name
from multiclouddb_spi.continuation.token import Envelope, encode_token, scope_text
from multiclouddb_spi.planning.offset_log import logged_end
from multiclouddb_verify.source import Source

__all__ = ["spark_position", "spark_token", "stored_position"]


def stored_position(store: CheckpointStore, name: str) -> Callable[[], str | None]:
    """Return a function that reads the position of a sink from its checkpoint store.

    Args:
        store: The checkpoint store of the sink.
        name: The name of its checkpoint.
    """
    if isinstance(store, type) or not callable(getattr(store, "load", None)):
        problem = f"must have load, which {type_name(store)} lacks"
        raise invalid_request("store", problem, 'pass a store: FileCheckpointStore("checkpoints")')
    check_type("name", name, str)

    def position() -> str | None:
        found = store.load(name)
        return None if found is None else found.token

    return position


def spark_position(
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    checkpoint: str | os.PathLike[str],
    provider_options: ProviderOptions | None = None,
) -> Callable[[], str | None]:
    """Return a function that reads the position of a Spark query from its checkpoint.

    The position is the end of the last micro-batch that Spark has committed; the table has all changes up to
    it.

    Args:
        client: The client of the source.
        address: The collection that the query reads.
        checkpoint: The `checkpointLocation` of the query, a folder that this process can read.
        provider_options: The options of the provider with which the query reads.

    Raises:
        MulticloudDbError: From the returned function, `INVALID_REQUEST` if the folder is no checkpoint of
            this source, or no micro-batch is complete yet.
    """
    source, folder = Source(client, address, provider_options), path_here("checkpoint", checkpoint)
    digest = "" if provider_options is None else provider_options.position_digest()

    def position() -> str | None:
        return _token(folder, _committed(folder), client.config.provider, source.address, digest)

    return position


def spark_token(checkpoint: str | os.PathLike[str]) -> str:
    """Return the position of a Spark query as a continuation token.

    The position is the end of the last micro-batch that Spark has committed.

    Args:
        checkpoint: The `checkpointLocation` of the query, a folder that this process can read.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the folder is no checkpoint of this source, or no
            micro-batch is complete yet.
    """
    folder = path_here("checkpoint", checkpoint)
    offset = _committed(folder)
    match offset.get("feed"):
        case [str(provider), str() | None as database, str() | None as collection]:
            return _token(folder, offset, provider, ResourceAddress(database, collection), "")
        case _:
            raise _wrong(folder, "does not name the collection that its query reads")


def _token(
    folder: Path, offset: Mapping[str, Any], provider: str, address: ResourceAddress, digest: str
) -> str:
    incarnation = offset.get("inc")
    if not isinstance(incarnation, str | None):
        raise _wrong(folder, "has a damaged offset")
    envelope = Envelope(provider, address, incarnation, scope_text(EntireCollection()), digest, offset["c"])
    return encode_token(envelope)


def _committed(folder: Path) -> dict[str, Any]:
    """Return the offset at the end of the last micro-batch that Spark has committed."""
    # Spark removes old files while they are listed, and writes a file under another name first.
    for number in sorted(_numbers(folder / "commits"), reverse=True):
        try:
            text = (folder / "offsets" / str(number)).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        try:
            end = logged_end(text)
        except ValueError as error:
            raise _wrong(folder, f"has a file offsets/{number} that {error}") from None
        if len(end.offsets) != 1 or not isinstance(end.offsets[0].get("c"), dict):
            raise _wrong(folder, "does not belong to a query with this source alone")
        return end.offsets[0]
    raise _wrong(folder, "has no complete micro-batch")


def _numbers(folder: Path) -> Iterator[int]:
    for name in os.listdir(folder) if folder.is_dir() else ():
        if name.isdigit():
            yield int(name)


def _wrong(folder: Path, problem: str) -> MulticloudDbError:
    return invalid_request(
        "position", f"{folder} {problem}", "give the checkpointLocation of the sink's query"
    )
