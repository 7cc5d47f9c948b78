"""Reads a collection through `iterate_changes`."""

from __future__ import annotations

from datetime import UTC, datetime

from benchmarks.peers.programs.meter import Meter, read_spec
from multiclouddb_api import AtTime, ChangeFeedRequest, ClientConfig, ResourceAddress, connect


def main() -> None:
    """Read until the last change."""
    spec = read_spec()
    address = ResourceAddress(spec["database"], spec["collection"])
    request = ChangeFeedRequest(address, AtTime(datetime.fromtimestamp(spec["second"], UTC)))
    with Meter(spec) as meter, connect(ClientConfig("mongo", {"url": spec["url"]})) as client:
        for event in client.iterate_changes(request):
            if meter.take(event.key.components["_id"]):
                break
        meter.report()


if __name__ == "__main__":
    main()
