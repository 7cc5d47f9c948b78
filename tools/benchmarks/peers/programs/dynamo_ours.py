"""Reads a table's stream through `iterate_changes`."""

from __future__ import annotations

import boto3

from benchmarks.peers.programs.meter import Meter, read_spec
from multiclouddb_api import Beginning, ChangeFeedRequest, ClientConfig, ResourceAddress, connect


def main() -> None:
    """Read until the last change."""
    spec = read_spec()
    session = boto3.Session(region_name=spec["region"])
    config = ClientConfig("dynamo", {"endpoint_url": spec["endpoint_url"], "session": session})
    request = ChangeFeedRequest(ResourceAddress(collection=spec["table"]), Beginning())
    with Meter(spec) as meter, connect(config) as client:
        for event in client.iterate_changes(request):
            if meter.take(event.key.components["pk"]):
                break
        meter.report()


if __name__ == "__main__":
    main()
