"""Converts the options of a command to a request."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from multiclouddb_api import (
    ChangeFeedRequest,
    ChangeType,
    Fail,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OnExpired,
    Resnapshot,
    SkipToOldest,
    Snapshot,
)
from multiclouddb_cli.arguments import (
    Selection,
    public_scope,
    to_config,
    to_key,
    to_moment,
    to_options,
    to_start,
    to_target,
)
from multiclouddb_cli.options import Expired, Kind, Want

__all__ = ["to_request", "to_selection"]

_MODES = {"INCLUDE": "INCLUDE_IF_AVAILABLE"}


def to_request(
    url: str,
    collection: str | None,
    start: str,
    scope: str,
    state: Want,
    old_state: Want,
    on_expired: Expired,
    options: Sequence[str] | None,
    *,
    snapshots: bool = False,
    max_scan_rate: float | None = None,
    last: int | None = None,
) -> ChangeFeedRequest:
    """Return the request that a command line describes."""
    config = to_config(url)
    address, kind = to_target(collection, scope, config.provider)
    if last is not None and start != "now":
        raise typer.BadParameter("give only one of them", param_hint="--last and --from")
    position = to_start(start, snapshots=snapshots, max_scan_rate=max_scan_rate)
    if max_scan_rate is not None and not (isinstance(position, Snapshot) or on_expired is Expired.SNAPSHOT):
        raise typer.BadParameter("can only be used with --from snapshot", param_hint="--max-scan-rate")
    return ChangeFeedRequest(
        address,
        Now() if last is not None else position,
        public_scope(config, address, kind),
        new_item_state_mode=NewItemStateMode[_MODES.get(state.name, state.name)],
        old_item_state_mode=OldItemStateMode[_MODES.get(old_state.name, old_state.name)],
        on_expired=_to_on_expired(on_expired, max_scan_rate),
        provider_options=to_options(config, options or ()),
    )


def to_selection(
    kinds: Sequence[Kind] | None, since: str | None, until: str | None, key: str | None
) -> Selection:
    """Return the selection of events to print."""
    selection = Selection(
        frozenset(ChangeType[kind.name] for kind in kinds or ()),
        None if since is None else to_moment(since, "--since"),
        None if until is None else to_moment(until, "--to"),
        None if key is None else to_key(key, "--only-key"),
    )
    if selection.since is not None and selection.until is not None and selection.since > selection.until:
        raise typer.BadParameter("is later than --to: no change can be between them", param_hint="--since")
    return selection


def _to_on_expired(wanted: Expired, max_scan_rate: float | None) -> OnExpired:
    match wanted:
        case Expired.SKIP:
            return SkipToOldest()
        case Expired.SNAPSHOT:
            return Resnapshot(Snapshot(max_scan_rate=max_scan_rate))
        case _:
            return Fail()
