"""Scans a database: plans the segments of one collection after the other.

The collections are scanned in the order of their UUIDs, which a rename does not change: no collection is left
out because it has another name when its turn comes. They are listed again each time, so a token contains only
those that are being read. A collection that is dropped before its turn has no rows any more; one that is
created meanwhile may be scanned, and all its documents are in the stream.

The rest of a plan is `[segments for each collection, or 0, the UUID of the last collection that was begun,
its rest or null]`.
"""

from __future__ import annotations

from datetime import datetime

from multiclouddb_mongo.catalog import FoundResource, collections_after
from multiclouddb_mongo.position import Rest, is_uuid, place_of, rest_of, scan_at
from multiclouddb_mongo.snapshots import ScanSource, check_has_uuid, cut, cuts, time_in
from multiclouddb_spi import Cursor, Deadline, InvalidCursor, Scan, ScanPlan, Seed, Segment

__all__ = ["cut_database", "plan_database"]


def plan_database(source: ScanSource, seeds: list[Seed], segments: int | None, began: datetime) -> ScanPlan:
    """Plan a scan whose stream has begun, after a time by the server's clock."""
    _listed(source, "")  # refuses a collection whose UUID is not known
    scan = scan_at(time_in(place_of(seeds[0].cursor)), began, "", ())
    return ScanPlan(scan, [segments or 0, "", None], tuple(seeds))


def cut_database(
    source: ScanSource, scan: Scan, rest: Cursor, count: int, deadline: Deadline
) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan."""
    match rest:
        case [int() as wanted, str() as uuid, part] if type(wanted) is int and wanted >= 0 and is_uuid(uuid):
            pass
        case _:
            raise InvalidCursor("it is not a plan of a database's scan")
    if part is not None and not rest_of(scan, part).collection:
        raise InvalidCursor("it is not a plan of a database's scan")
    left: list[tuple[str, str, FoundResource]] | None = None
    found: list[Segment] = []
    while len(found) < count and not (found and deadline.passed()):
        if part is None:
            left = _listed(source, uuid) if left is None else left
            if not left:
                return found, None
            uuid, name, collection = left.pop(0)
            part = _planned(source.of(name), scan, name, collection, wanted or None).cursor()
        current = rest_of(scan, part)
        more, part = cut(source.of(current.collection), current, count - len(found), deadline)
        found += more
    return found, [wanted, uuid, part]


def _listed(source: ScanSource, uuid: str) -> list[tuple[str, str, FoundResource]]:
    """Return the collections after a UUID: the UUID, the name, and what is known of each, in this order."""
    assert source.address.database is not None
    listed = collections_after(source.client, source.address.database, uuid)
    for found in listed.values():
        check_has_uuid(found)
    return sorted((found.uuid or "", name, found) for name, found in listed.items())


def _planned(source: ScanSource, scan: Scan, name: str, found: FoundResource, segments: int | None) -> Rest:
    """Return the rest of the plan of a collection, of which nothing is divided yet."""
    names = source.shard_key()
    width, left = (0, 1) if found.clustered else cuts(source.count(), segments, sharded=bool(names))
    return Rest(scan, found.uuid or "", width, left, names=names, collection=name)
