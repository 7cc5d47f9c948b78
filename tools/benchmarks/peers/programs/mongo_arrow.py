"""Reads a collection as a task of the Spark source does: in Arrow batches, with documents as JSON text."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Final

from benchmarks.peers.programs.meter import Meter, read_spec
from multiclouddb_api import AtTime, ChangeFeedRequest, ClientConfig, ResourceAddress
from multiclouddb_spi import Deadline, Planner, open_provider, read_range
from multiclouddb_spi.request_check import spec_of

_SECONDS: Final = 60.0


def main() -> None:
    """Read until the last change."""
    spec = read_spec()
    config = ClientConfig("mongo", {"url": spec["url"]})
    position = AtTime(datetime.fromtimestamp(spec["second"], UTC))
    request = ChangeFeedRequest(ResourceAddress(spec["database"], spec["collection"]), position)
    finished = False
    with Meter(spec) as meter, closing(open_provider(config)) as provider:
        feed = provider.open_feed(spec_of(provider, request, "read"), Deadline.after(_SECONDS))
        planner = Planner(provider, feed)
        lineage = planner.start(position, Deadline.after(_SECONDS))
        while not finished:
            step = planner.advance(lineage, None, Deadline.after(_SECONDS))
            for part in step.ranges():
                for batch in read_range(provider, feed, part):
                    arrow = batch.arrow(0, len(batch))
                    assert arrow is not None
                    finished = meter.take_all(arrow.column("key").to_pylist())
            lineage = step.after
        meter.report()


if __name__ == "__main__":
    main()
