"""Reads a collection as the Spark source does: in Arrow batches, with documents as JSON text."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

from benchmarks.peers.programs.meter import Meter, read_spec
from multiclouddb_api import (
    AtTime,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    OperationOptions,
    ResourceAddress,
)
from multiclouddb_api.request import StartPosition
from multiclouddb_spi import open_provider
from multiclouddb_spi.engine import Engine


def main() -> None:
    """Read until the last change."""
    spec = read_spec()
    config = ClientConfig("mongo", {"url": spec["url"]})
    address = ResourceAddress(spec["database"], spec["collection"])
    position: StartPosition = AtTime(datetime.fromtimestamp(spec["second"], UTC))
    finished = False
    with Meter(spec) as meter, closing(Engine(open_provider(config), config)) as engine:
        while not finished:
            request = ChangeFeedRequest(address, position)
            reading = engine.read(request, OperationOptions(), lambda batch, i, j: batch.arrow(i, j))
            for arrow in reading.values:
                if arrow is not None:
                    finished = meter.take_all(arrow.column("key").to_pylist())
            position = FromContinuationToken(reading.page.continuation_token)
        meter.report()


if __name__ == "__main__":
    main()
