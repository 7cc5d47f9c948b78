"""Finds providers through their entry points, and names the package to install if a provider is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from multiclouddb_api.backend import Plugin
from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request
from multiclouddb_api.validators import suggestion

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "multiclouddb.providers"
_OURS: Final = frozenset({"embedded", "dynamo", "spanner", "mongo", "cosmos"})


def entry_points(*, group: str) -> Iterable[EntryPoint]:
    """Call `importlib.metadata.entry_points`; it is imported here because the import is slow."""
    from importlib.metadata import entry_points

    return entry_points(group=group)


def installed_providers() -> tuple[str, ...]:
    """Return the sorted ids of the installed providers, without loading any of them."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def load_plugin(provider_id: str) -> Plugin:
    """Load one provider together with the vendor's SDK."""
    points = list(
        {point.value: point for point in entry_points(group=GROUP) if point.name == provider_id}.values()
    )
    if not points:
        raise _missing(provider_id)
    if len(points) > 1:
        owners = ", ".join(sorted(point.dist.name if point.dist else point.value for point in points))
        raise invalid_request(
            "provider", f"{provider_id!r} is offered by {owners}", "uninstall all but one of them"
        )
    try:
        return cast("Plugin", points[0].load())
    except ImportError as error:
        raise MulticloudDbError(
            f"provider: {provider_id!r} is installed but cannot be imported ({error}); "
            f'run: pip install "multiclouddb[{provider_id}]"',
            ErrorDetail(ErrorCategory.INVALID_REQUEST, provider=provider_id),
        ) from error


def _missing(provider_id: str) -> MulticloudDbError:
    if provider_id in _OURS:
        return MulticloudDbError(
            f'provider: {provider_id!r} is not installed; run: pip install "multiclouddb[{provider_id}]"',
            ErrorDetail(ErrorCategory.INVALID_REQUEST, provider=provider_id),
        )
    return invalid_request(
        "provider", f"{provider_id!r} is not known", suggestion(provider_id, {*_OURS, *installed_providers()})
    )
