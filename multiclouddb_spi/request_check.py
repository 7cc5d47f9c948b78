"""Refuses requests that the database does not support, before any call; each error names an alternative.

Requests are also refused in other places: wrong values where they are made (`multiclouddb_api.request`), the
token of another request in `consumer_opener`, a damaged token in `continuation.token`, the id of another
resource in `partition`, a start in the future in `continuation.state`, an `INTERLEAVED` snapshot of a
backfill in `scan.start`, a recreated resource in `open_feed`, and what only the service knows in the
provider's `open_feed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeFeedRequest,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    LogicalPartition,
    MulticloudDbError,
    OldItemStateMode,
    PhysicalPartition,
    ProviderOptions,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    StartPosition,
    Support,
    invalid_request,
)
from multiclouddb_spi.continuation.entry import Plan
from multiclouddb_spi.contract import FeedSpec, Provider

_TITLES = {
    Capability.CHANGE_FEED: "a change feed",
    Capability.CHANGE_FEED_BEGINNING: "Beginning()",
    Capability.CHANGE_FEED_POINT_IN_TIME: "AtTime(…)",
    Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: "LogicalPartition(…)",
    Capability.CHANGE_FEED_SNAPSHOT: "Snapshot()",
    Capability.CHANGE_FEED_ROWS: "Snapshot(changes=False)",
    Capability.CHANGE_FEED_ALL_VERSIONS: "every version of a document",
    Capability.CHANGE_FEED_DELETES: "a DELETE for every deleted document",
    Capability.CHANGE_FEED_CHANGE_TYPES: "CREATE apart from UPDATE",
    Capability.CHANGE_FEED_OLD_ITEM_STATE: "an old_item_state_mode other than OMIT",
    Capability.CHANGE_FEED_DATABASE_SCOPE: "EntireDatabase()",
    Capability.CHANGE_FEED_CLUSTER_SCOPE: "EntireCluster()",
    Capability.LOOKUP: "lookup",
    Capability.RUN_COMMAND: "run_command",
}

_SNAPSHOT: Final = Capability.CHANGE_FEED_SNAPSHOT
_NEEDS: Final[dict[type, Capability]] = {
    Beginning: Capability.CHANGE_FEED_BEGINNING,
    AtTime: Capability.CHANGE_FEED_POINT_IN_TIME,
    Snapshot: Capability.CHANGE_FEED_SNAPSHOT,
    Resnapshot: Capability.CHANGE_FEED_SNAPSHOT,
    LogicalPartition: Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE,
    EntireDatabase: Capability.CHANGE_FEED_DATABASE_SCOPE,
    EntireCluster: Capability.CHANGE_FEED_CLUSTER_SCOPE,
}
"""The parts of a request that need a capability besides `CHANGE_FEED`."""


def require(
    provider: Provider, parts: Sequence[object], options: ProviderOptions | None, operation: str
) -> None:
    """Accept capabilities, or parts of a request, that are native, or emulated if the caller has opted in."""
    needed = list[Capability]()
    for part in parts:
        if isinstance(part, Capability):
            needed.append(part)
        for kind, capability in _NEEDS.items():
            if isinstance(part, kind):
                alone = isinstance(part, Snapshot) and not part.changes
                needed.append(Capability.CHANGE_FEED_ROWS if alone else capability)
    known = provider.capabilities()
    known = known if options is None else options.narrow(known)
    for capability in needed:
        note = known[capability]
        if note.support is Support.NATIVE:
            continue
        if note.support is Support.EMULATED:
            if options is not None and options.opts_into(capability):
                continue
            problem, reason = "is only emulated here and needs an opt-in", ErrorReason.NEEDS_OPT_IN
        else:
            problem, reason = "is not supported", ErrorReason.NOT_OFFERED
        raise MulticloudDbError(
            f"{_TITLES[capability]} {problem} on {provider.provider_id}; "
            f"{note.note or 'check client.capabilities().is_supported(…) before the call'}",
            ErrorDetail(
                ErrorCategory.UNSUPPORTED_CAPABILITY,
                provider=provider.provider_id,
                operation=operation,
                reason=reason,
            ),
        )


def options_of(provider: Provider, given: ProviderOptions | None) -> ProviderOptions | None:
    """Return the options of a request; what the caller has not given comes from the connection."""
    kind = provider.options_type
    if given is not None and (kind is None or not isinstance(given, kind)):
        wanted = kind.__name__ if kind is not None else "None"
        raise invalid_request(
            "ChangeFeedRequest.provider_options",
            f"is {type(given).__name__}, which {provider.provider_id} does not understand",
            f"pass {wanted}",
        )
    return None if kind is None else provider.complete(kind() if given is None else given)


def spec_of(provider: Provider, request: ChangeFeedRequest, operation: str) -> FeedSpec:
    """Check whether the provider supports a request, and return the spec of the feed to open."""
    address = request.address
    match request.scope:
        case EntireCluster():
            wrong = address != ResourceAddress()
            way_out = "pass ResourceAddress() with EntireCluster()"
        case EntireDatabase():
            wrong = address.database is None or address.collection is not None
            way_out = "with EntireDatabase(), name the database and no collection"
        case _:
            wrong = address.collection is None
            way_out = "name the collection: ResourceAddress(collection=…)"
    if wrong:
        raise invalid_request(
            "ChangeFeedRequest.address", f"does not fit {type(request.scope).__name__}()", way_out
        )
    options = options_of(provider, request.provider_options)
    parts = (Capability.CHANGE_FEED, request.start_position, request.scope, request.on_expired)
    require(provider, parts, options, operation)
    if request.old_item_state_mode is not OldItemStateMode.OMIT:
        require(provider, (Capability.CHANGE_FEED_OLD_ITEM_STATE,), options, operation)
    start = request.start_position
    begins = isinstance(start, Snapshot)
    if isinstance(start, Snapshot) and not start.changes and isinstance(request.on_expired, Resnapshot):
        raise invalid_request(
            "ChangeFeedRequest.on_expired",
            "is Resnapshot(), which reads changes, but the start is Snapshot(changes=False)",
            "leave out on_expired: the rows alone do not expire while the collection exists",
        )
    scannable = isinstance(request.scope, EntireCollection | EntireDatabase | LogicalPartition)
    if (begins or isinstance(request.on_expired, Resnapshot)) and not scannable:
        what = "Snapshot()" if begins else "on_expired=Resnapshot()"
        way_out = "read each database with EntireDatabase(), or each collection with EntireCollection()"
        if isinstance(request.scope, PhysicalPartition):
            way_out = "read EntireCollection(), or spread it over processes with client.plan_partitions"
        raise MulticloudDbError(
            f"{what} is not supported for {type(request.scope).__name__}; {way_out}",
            ErrorDetail(
                ErrorCategory.UNSUPPORTED_CAPABILITY,
                provider=provider.provider_id,
                operation=operation,
                reason=ErrorReason.NOT_OFFERED,
            ),
        )
    return FeedSpec(
        provider.full_address(request.address),
        EntireCollection() if isinstance(request.scope, PhysicalPartition) else request.scope,
        request.new_item_state_mode,
        request.old_item_state_mode,
        request.include_native,
        options,
    )


def check_planned(position: StartPosition) -> None:
    """Refuse a snapshot that cannot be distributed over several processes."""
    match position:
        case Snapshot(order=order, changes=True) if order is not SnapshotOrder.INTERLEAVED:
            raise _holding("Snapshot.order", f"is {order.name}")
        case _:
            pass


def check_plan(plan: Plan | None) -> None:
    """Refuse to distribute a feed over several processes while its changes wait for the rows of a scan."""
    if plan is not None and plan.holds:
        raise _holding(
            "ChangeFeedRequest.start_position", "begins with an ordered scan, or is a token of such a scan"
        )


def _holding(field: str, problem: str) -> MulticloudDbError:
    return invalid_request(
        field,
        f"{problem}: no process knows when the other processes have read their rows",
        "read it in one process and plan after BackfillDone; or plan a new "
        "Snapshot(order=SnapshotOrder.INTERLEAVED); or, if Beginning() is a backfill, read each "
        "PhysicalPartition(…) from Beginning()",
    )
