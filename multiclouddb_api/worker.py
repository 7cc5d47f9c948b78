"""Follows a feed with one call, which connects, reads, and keeps the position."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from multiclouddb_api.checkpoint import CheckpointFile, CheckpointStore, checkpoint_at
from multiclouddb_api.client import connect
from multiclouddb_api.config import ClientConfig
from multiclouddb_api.errors import check_type, invalid_request
from multiclouddb_api.iterator import ChangeFeedIterator, check_settings
from multiclouddb_api.request import (
    ChangeFeedRequest,
    FromContinuationToken,
    Now,
    ResourceAddress,
    StartPosition,
    check_start,
    to_address,
)

if TYPE_CHECKING:
    from typing import Unpack

    from multiclouddb_api.iterator import IteratorSettings


def follow(
    source: str | os.PathLike[str] | ClientConfig,
    address: ResourceAddress | str,
    *,
    start: StartPosition | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    **settings: Unpack[IteratorSettings],
) -> ChangeFeedIterator:
    """Connect to a database and iterate over the events of one collection.

    No event is skipped, and some may come again: the position is saved when all events of a page are done,
    and an event is done when you ask for the next one, so after a crash the last page is delivered again. Use
    the iterator as a context manager, which closes the connection; the end of the iteration closes it too.

    Args:
        source: What `connect` takes: a URL, the path of a TOML file, or a `ClientConfig`.
        address: The collection, for example `"shop/orders"`.
        start: Where to start as long as there is no checkpoint. Once it exists, the read starts there
            instead.
        checkpoint: The file that keeps the position, or the URL of a checkpoint
            (`"s3://bucket/prefix/orders"`), as `multiclouddb tail --checkpoint` takes it. Without it, nothing
            is saved.
        **settings: The settings of `ChangeFeedIterator`. `max_start_seconds` is 0 by default, so a failure of
            the first read, for example because of a wrong port, is raised at once; pass `math.inf` to wait
            for the service.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if `start` is missing and there is no checkpoint, or for the
            reasons of `connect`; `PERMANENT_FAILURE` if the file cannot be written. Both are raised before
            anything is read.

    Examples:
        >>> with follow(
        ...     "embedded:///tmp/store.db", "orders", start=Beginning(), checkpoint="o.checkpoint"
        ... ) as events:
        ...     for event in events:
        ...         print(event.type, event.key["id"])
    """
    client = connect(source)
    try:
        request, settings, check = followed(address, start, checkpoint, settings)
        changes = client.iterate_changes(request, **settings)
        check()
    except BaseException:  # whatever ends it: nobody else can close the client
        client.close()
        raise
    changes._feed.at_close = client.close
    return changes


def followed(
    address: ResourceAddress | str,
    start: StartPosition | None,
    checkpoint: str | os.PathLike[str] | None,
    settings: IteratorSettings,
) -> tuple[ChangeFeedRequest, IteratorSettings, Callable[[], None]]:
    """Return the request and the settings of the iterator that `follow` makes, and what to check then.

    Args:
        address: See `follow`.
        start: See `follow`.
        checkpoint: See `follow`.
        settings: See `follow`.
    """
    check_settings("follow", settings, "start", "checkpoint")
    settings = {"max_start_seconds": 0.0, **settings}
    address = to_address(address)
    check_type("address", address, ResourceAddress)
    if start is not None:
        check_start("start", start)
    store: CheckpointStore | None = None
    if checkpoint is not None:
        if "checkpoint_store" in settings or "checkpoint_name" in settings:
            raise invalid_request("checkpoint", "is given beside checkpoint_store", "pass one of the two")
        store, name = checkpoint_at(checkpoint)
        if (stored := store.load(name)) is not None:
            start = FromContinuationToken(stored.token)
        settings = {**settings, "checkpoint_store": store, "checkpoint_name": name}

    def check() -> None:
        if start is None:
            none_yet = "" if checkpoint is None else f", and there is no checkpoint {checkpoint} yet"
            raise invalid_request("start", f"is missing{none_yet}", "pass start=Beginning() or start=Now()")
        if isinstance(store, CheckpointFile):
            store.check()

    return ChangeFeedRequest(address, start or Now()), settings, check
