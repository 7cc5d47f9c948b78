"""Finds partitions by the service's own ids, as printed by `multiclouddb partitions`."""

from __future__ import annotations

import attrs
import typer

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    FeedScope,
    Now,
    PhysicalPartition,
    ResourceAddress,
)
from multiclouddb_cli.screen import shorter
from multiclouddb_cli.session import Session

__all__ = ["public_scope"]


def public_scope(config: ClientConfig, address: ResourceAddress, scope: FeedScope) -> FeedScope:
    """Return the scope with the public id of its partition.

    If the user gave the service's own id of the partition, the function asks the service for its
    list of partitions.

    Raises:
        MulticloudDbError: Raised if the partitions cannot be listed.
        typer.BadParameter: Raised if no partition has this id.
    """
    if not isinstance(scope, PhysicalPartition) or scope.partition_id.startswith(f"{config.provider}:"):
        return scope
    with Session(config, ChangeFeedRequest(address, Now())) as session:
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
