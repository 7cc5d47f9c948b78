"""Finds providers through their entry points, and names the package to install if a provider is missing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from multiclouddb_api.entry_points import EntryPoint, entry_points
from multiclouddb_api.errors import (
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    invalid_request,
)
from multiclouddb_api.validators import suggestion

if TYPE_CHECKING:
    from multiclouddb_api.backend import Plugin
    from multiclouddb_api.capability import CapabilitySet

GROUP: Final = "multiclouddb.providers"
CAPABILITIES: Final = "multiclouddb.capabilities"
_EXTRAS: Final = ("dynamo", "spanner", "mongo", "cosmos")
_OURS: Final = {
    "embedded": "multiclouddb",
    **{provider_id: f'"multiclouddb[{provider_id}]"' for provider_id in _EXTRAS},
}
"""What pip installs for each provider of this project."""


def installed_providers() -> tuple[str, ...]:
    """Return the sorted ids of the installed providers, without loading any of them."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def declared_capabilities(provider_id: str) -> CapabilitySet | None:
    """Return what an installed provider declares, without importing the vendor's SDK.

    Args:
        provider_id: The provider.

    Returns:
        The object that the distribution names in the entry point group `multiclouddb.capabilities`. None if
        it names none, if the object cannot be imported, or if several distributions offer the provider.
    """
    from multiclouddb_api.capability import CapabilitySet

    points = _offers(provider_id, CAPABILITIES)
    if len(points) == len(_offers(provider_id, GROUP)) == 1:
        with suppress(ImportError, AttributeError):
            found = points[0].load()
            return found if isinstance(found, CapabilitySet) else None
    return None


def _offers(name: str, group: str) -> list[EntryPoint]:
    """Return the entry points with this name; one that a source tree and its installation contain is one."""
    return list({point.value: point for point in entry_points(group=group) if point.name == name}.values())


def sole_offer(name: str, group: str, field: str) -> EntryPoint | None:
    """Return the entry point with this name; None if no distribution offers it.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if several distributions offer it, because the first one on the
            path would otherwise get what was meant for another.
    """
    points = _offers(name, group)
    if len(points) > 1:
        owners = ", ".join(sorted(point.distribution for point in points))
        raise invalid_request(field, f"{name!r} is offered by {owners}", "uninstall all but one of them")
    return points[0] if points else None


def load_plugin(provider_id: str) -> Plugin:
    """Load one provider together with the vendor's SDK."""
    point = sole_offer(provider_id, GROUP, "provider")
    if point is None:
        raise _missing(provider_id)
    try:
        return cast("Plugin", point.load())
    except ImportError as error:
        raise MulticloudDbError(
            f"provider: {provider_id!r} is installed but cannot be imported ({error}); "
            f'run: pip install "multiclouddb[{provider_id}]"',
            ErrorDetail(
                ErrorCategory.INVALID_REQUEST, provider=provider_id, reason=ErrorReason.NOT_INSTALLED
            ),
        ) from error


def _missing(provider_id: str) -> MulticloudDbError:
    if provider_id in _OURS:
        return MulticloudDbError(
            f"provider: {provider_id!r} is not installed; run: pip install {_OURS[provider_id]}",
            ErrorDetail(
                ErrorCategory.INVALID_REQUEST, provider=provider_id, reason=ErrorReason.NOT_INSTALLED
            ),
        )
    return invalid_request(
        "provider", f"{provider_id!r} is not known", suggestion(provider_id, {*_OURS, *installed_providers()})
    )
