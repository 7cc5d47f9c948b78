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
    units: float | None
    """The charge for the scan, in the service's own unit, without the part that depends on the rows' size."""
    price: str
    """How the service charges for a scan, as text."""
    seconds: float | None
    """The duration of the scan at `max_scan_rate`; None without `max_scan_rate`."""


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
    units = None if rows is None or facts.units_per_row is None else rows * facts.units_per_row
    amount = rows if units is None else units
    seconds = None if amount is None or max_scan_rate is None else amount / max_scan_rate
    return Estimate(rows, None if progress is None else progress.segments, units, facts.price, seconds)
