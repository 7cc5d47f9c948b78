"""Reads a collection with a PyMongo loop. The loop makes one dict per change, with the fields of an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.peers.programs.meter import Meter, read_spec

_TYPES: Final = {"insert": "CREATE", "update": "UPDATE", "delete": "DELETE"}


def event_of(change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the event for a change."""
    return {
        "event_id": change["_id"]["_data"],
        "key": change["documentKey"],
        "type": _TYPES[change["operationType"]],
        "timestamp": change["wallTime"],
        "new_item_state": change.get("fullDocument"),
        "old_item_state": change.get("fullDocumentBeforeChange"),
        "order_key": change["_id"]["_data"],
        "by_expiry": None,
        "backfilled": False,
        "address": (change["ns"]["db"], change["ns"]["coll"]),
        "partition_id": "0",
    }


def main() -> None:
    """Read until the last change."""
    from bson import Timestamp
    from pymongo import MongoClient

    spec = read_spec()
    client: MongoClient[dict[str, Any]] = MongoClient(spec["url"], tz_aware=True)
    with Meter(spec) as meter, client:
        collection = client[spec["database"]][spec["collection"]]
        start = Timestamp(spec["second"], 0)
        with collection.watch(start_at_operation_time=start, batch_size=spec["batch_size"]) as stream:
            for change in stream:
                if meter.take(event_of(change)["key"]["_id"]):
                    break
        meter.report()


if __name__ == "__main__":
    main()
