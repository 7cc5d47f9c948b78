"""Runs `verify` on the table that Spark merges: `python -m demo.table_proof FOLDER [--json] [--repair]`."""

from __future__ import annotations

import json
import sys
from contextlib import closing

from demo.places import COLLECTION, Places
from demo.stores import open_store
from demo.targets import SPARK_TABLE, in_catalog
from multiclouddb_api import ResourceAddress, connect
from multiclouddb_verify import spark_position, verify
from pyspark_multiclouddb import TableTarget, local_session

__all__ = ["prove"]


def prove(places: Places, *, repair: bool, as_json: bool) -> int:
    """Print what `verify` found; return 0 if the table is equal."""
    with closing(open_store()) as store:
        url, address = store.url, ResourceAddress(store.database or "main", COLLECTION)
    with local_session("proof") as spark, connect(url) as client:
        report = verify(
            client,
            address,
            TableTarget(in_catalog(spark, places), SPARK_TABLE),
            position=spark_position(client, address, places.checkpoint),
            repair=repair,
            state=places.root / "verify",
        )
    said = f"EQUAL: the table contains the source's state of {report.counts.equal:,} keys"
    said = said if report.equal else f"DIFFERENT: {report.counts}"
    sys.stdout.write((json.dumps(report.to_dict()) if as_json else said) + "\n")
    return 0 if report.equal else 1


if __name__ == "__main__":
    sys.exit(prove(Places(sys.argv[1]), repair="--repair" in sys.argv, as_json="--json" in sys.argv))
