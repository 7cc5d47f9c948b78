"""Runs a consumer of a snapshot that reads each page in a new process.

    python scan_lives.py URL DATABASE TABLE ORDER

The program merges rows and changes by key and `order_key`. When the scan is over, the program prints
"scanned". After the program has been told to stop, it continues until it is idle. At the end, the program
prints the number of processes and the rows.
"""

import json
import os
import pickle
import select
import sys
import tempfile
from pathlib import Path

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedRequest,
    FromContinuationToken,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    connect,
)
from multiclouddb_conformance.sink import Sink
from multiclouddb_spanner.provider import PLUGIN  # noqa: F401 - so that no life has to import it


def live(url, address, order, state):
    """Run the consumer once: read a page of one row during the scan, and a larger page after the scan."""
    token, sink, scanned = pickle.loads(state.read_bytes()) if state.exists() else (None, Sink(), False)
    start = Snapshot(SnapshotOrder(order), segments=3) if token is None else FromContinuationToken(token)
    with connect(url) as client:
        page = client.read_changes(ChangeFeedRequest(address, start, max_page_size=0 if scanned else 2))
    sink.apply(page.events)
    done = scanned or any(isinstance(notice, BackfillDone) for notice in page.notices)
    state.with_suffix(".new").write_bytes(pickle.dumps((page.continuation_token, sink, done)))
    state.with_suffix(".new").rename(state)
    return 3 if not done else 0 if page.idle else 2


def main(url, database, table, order):
    with tempfile.TemporaryDirectory() as folder:
        state, lives, told, idle = Path(folder, "state"), 0, False, 0
        while idle < 3:
            child = os.fork()
            if child == 0:
                os._exit(live(url, ResourceAddress(database, table), order, state))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            lives += 1
            if code not in (0, 2, 3):
                sys.exit(f"a life ended with {code}")
            if code != 3 and not told:
                print("scanned", flush=True)  # noqa: T201
                told = True
            stopping = bool(select.select([sys.stdin], [], [], 0)[0])
            idle = idle + 1 if code == 0 and stopping else 0
        _, sink, _ = pickle.loads(state.read_bytes())
        rows = sorted([row[name] for name in ("id", "n", "text")] for row in sink.rows().values())
        print(json.dumps([lives, rows]))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
