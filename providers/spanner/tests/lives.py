"""Runs a consumer in many processes, each of which reads a few pages.

    python lives.py URL DATABASE TABLE FOLDER PAGES SIZE

The program forks a process for each run of the consumer. A run continues from the token in FOLDER, appends
what it reads to FOLDER/events, and then stores its token. The program ends after an idle run, if FOLDER/stop
exists.
"""

import json
import os
import sys
from pathlib import Path

from multiclouddb_api import Beginning, ChangeFeedRequest, FromContinuationToken, ResourceAddress, connect
from multiclouddb_spanner.provider import PLUGIN  # noqa: F401 - so that no life has to import it


def live(url, address, folder, pages, size):
    """Run the consumer once. Return 0 if the consumer was idle at the end."""
    position, idle = folder / "token", False
    start = FromContinuationToken(position.read_text()) if position.exists() else Beginning()
    with connect(url) as client, (folder / "events").open("a") as out:
        for _ in range(pages):
            page = client.read_changes(ChangeFeedRequest(address, start, max_page_size=size))
            for event in page.events:
                partition = event.partition_id.rpartition(":")[2]
                told = [event.event_id, event.key.components["id"], event.timestamp.isoformat()]
                out.write(json.dumps([*told, event.type.value, event.order_key, partition]) + "\n")
            out.flush()
            (folder / "new").write_text(page.continuation_token)
            (folder / "new").rename(position)
            start, idle = FromContinuationToken(page.continuation_token), page.idle
    return 0 if idle else 3


def main(url, database, table, folder, pages, size):
    folder, lives = Path(folder), 0
    while True:
        stopping = (folder / "stop").exists()
        child = os.fork()
        if child == 0:
            os._exit(live(url, ResourceAddress(database, table), folder, int(pages), int(size)))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        lives += 1
        if code not in (0, 3):
            sys.exit(f"a life ended with {code}")
        if stopping and code == 0:
            print(lives)  # noqa: T201
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
