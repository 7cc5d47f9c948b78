"""Estimates what a comparison will read, without reading a row."""

from __future__ import annotations

import attrs

from multiclouddb_api import MulticloudDbClient, ProviderOptions, ResourceAddress
from multiclouddb_verify.source import Source

__all__ = ["Estimate", "estimate"]


@attrs.frozen
class Estimate:
    """What a comparison will read and cost; a value is None if the service reports too little to know it."""

    rows: int | None
    """The approximate number of rows of the source."""
    segments: int | None
    """The number of segments of the scan."""
    units: int | None
    """The approximate charge for the scan, in the service's own unit; 0 if it has no price of its own."""
    price: str
    """How the service charges for a scan, as text."""
    seconds: float | None
    """The duration of the scan at `max_scan_rate`; None without it, and if it limits units that are not
    known."""


def estimate(
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    *,
    max_scan_rate: float | None = None,
    provider_options: ProviderOptions | None = None,
) -> Estimate:
    """Return about how large, expensive and long the scan of `verify` will be, without reading a row.

    Args:
        client: The client of the source.
        address: The collection, or its text.
        max_scan_rate: As `verify` will get it.
        provider_options: As `verify` will get them.
    """
    source = Source(client, address, provider_options, max_scan_rate)
    facts, progress = source.facts, source.first_page().diagnostics.snapshot
    rows = None if progress is None else progress.records
    units: int | None = 0
    if facts.is_charged:
        units = None if progress is None else progress.units
    amount = units if facts.is_charged else rows
    seconds = None if amount is None or max_scan_rate is None else amount / max_scan_rate
    return Estimate(rows, None if progress is None else progress.segments, units, facts.price, seconds)
