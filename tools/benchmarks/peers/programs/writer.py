"""Inserts documents at a steady rate; each document contains the time at which its insert began."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers.data import document
from benchmarks.peers.programs.meter import read_spec


def main() -> None:
    """Insert all documents."""
    from pymongo import MongoClient

    spec = read_spec()
    client: MongoClient[dict[str, Any]] = MongoClient(spec["url"])
    with client:
        collection = client[spec["database"]][spec["collection"]]
        begin = time.monotonic()
        for number in range(spec["warm_up"] + spec["events"]):
            time.sleep(max(0.0, begin + number / spec["rate"] - time.monotonic()))
            collection.insert_one({**document(number), "at": time.monotonic_ns()})


if __name__ == "__main__":
    main()
