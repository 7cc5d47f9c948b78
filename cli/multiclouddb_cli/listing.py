"""`multiclouddb collections` lists the collections of a URL's database whose changes can be followed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import typer

from multiclouddb_api import ClientConfig, ErrorCategory, ErrorDetail, MulticloudDbError, ResourceAddress
from multiclouddb_cli.arguments import to_config
from multiclouddb_cli.screen import printable
from multiclouddb_cli.session import CALL_SECONDS
from multiclouddb_spi import Deadline, SupportsCollections, open_provider
from multiclouddb_spi.errors import user_errors
from multiclouddb_spi.retry import Tries

__all__ = ["collections", "known_collections"]

_COMPLETION_SECONDS = 2.0


def collections(config: ClientConfig, database: str | None, *, as_json: bool) -> None:
    """Print the address of each collection.

    Raises:
        MulticloudDbError: An error with a category; see `ErrorCategory`.
    """
    found = _listed(config, database, CALL_SECONDS)
    if as_json:
        typer.echo(orjson.dumps([_facts(address) for address in found]))
    elif found:
        typer.echo("\n".join(printable(str(address)) for address in found))
    else:
        typer.echo("there is no collection here, or none that this user may see", err=True)


def known_collections(url: str) -> tuple[str, ...]:
    """Return the collections for completion; an empty result if they cannot be listed quickly."""
    with suppress(Exception):
        return tuple(str(address) for address in _listed(to_config(url), None, _COMPLETION_SECONDS))
    return ()


def _listed(config: ClientConfig, database: str | None, seconds: float) -> list[ResourceAddress]:
    provider = open_provider(config)
    try:
        if not isinstance(provider, SupportsCollections):
            raise MulticloudDbError(
                f"{config.provider} does not list collections; name the one to follow",
                ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, config.provider, "collections"),
            )
        lister, deadline = provider, Deadline.after(seconds)
        with user_errors(provider, "collections"):
            found = Tries(provider).call(lambda: lister.collections(database, deadline), deadline)
    finally:
        provider.close()
    return sorted(found, key=str)


def _facts(address: ResourceAddress) -> dict[str, Any]:
    return {"database": address.database, "collection": address.collection}
