"""Finds the position that a sink has stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from multiclouddb_api import (
    CheckpointStore,
    EntireCollection,
    MulticloudDbClient,
    MulticloudDbError,
    ProviderOptions,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.validators import check_type, local_path, type_name
from multiclouddb_spi.continuation.token import Envelope, encode_token, scope_text
from multiclouddb_spi.planning.planner import offsets_in
from multiclouddb_verify.source import Source

__all__ = ["spark_position", "stored_position"]


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

    The position is the end of the last micro-batch that Spark has committed: the table contains it.

    Args:
        client: The client of the source.
        address: The collection that the query reads.
        checkpoint: The `checkpointLocation` of the query, a folder that this process can read.
        provider_options: The options of the provider with which the query reads.

    Raises:
        MulticloudDbError: Raised by the function: `INVALID_REQUEST` if the folder is no checkpoint of this
            source, or no micro-batch is complete yet.
    """
    source, folder = Source(client, address, provider_options), Path(local_path("checkpoint", checkpoint))
    digest = "" if provider_options is None else provider_options.position_digest()

    def position() -> str | None:
        # Spark removes old files while they are listed, and writes a file under another name first.
        for number in sorted(_numbers(folder / "commits"), reverse=True):
            try:
                text = (folder / "offsets" / str(number)).read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            offsets = [offset for line in text.splitlines()[2:] for offset in offsets_in(line)]
            if len(offsets) != 1 or not isinstance(offsets[0].get("c"), dict):
                raise _wrong(folder, "does not belong to a query with this source alone")
            [offset] = offsets
            return encode_token(
                Envelope(
                    client.config.provider, source.address, offset.get("inc"), scope_text(EntireCollection()),
                    digest, offset["c"],
                )
            )  # fmt: skip
        raise _wrong(folder, "has no complete micro-batch")

    return position


def _numbers(folder: Path) -> Iterator[int]:
    for name in os.listdir(folder) if folder.is_dir() else ():
        if name.isdigit():
            yield int(name)


def _wrong(folder: Path, problem: str) -> MulticloudDbError:
    return invalid_request(
        "position", f"{folder} {problem}", "give the checkpointLocation of the sink's query"
    )
