"""Until the engine has them."""

from enum import StrEnum

import attrs

from multiclouddb_api import *

LOOKUP_KEYS = 1000


class ScanFloor(StrEnum):
    HIGH = "high"
    LOW = "low"
    ROW = "row"


@attrs.frozen
class ScanFacts:
    floor: ScanFloor
    settle_seconds: float
    price: str = ""
    units_per_row: float | None = None


def facts_of(client):  # noqa
    return ScanFacts(ScanFloor.HIGH, 0.0)


def snapshot_of(rate):
    return Snapshot(max_scan_rate=rate, changes=False)


def lookup_of(source, keys):
    found = dict.fromkeys(keys)
    page = source.first_page()
    for page in source.scan(page.continuation_token):
        for e in page.events:
            if e.backfilled and e.key in found:
                found[e.key] = e
    return found
