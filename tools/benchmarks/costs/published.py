"""Computes what the vendors' readers cost, from the defaults that they publish. They do not run here."""

from __future__ import annotations

from typing import Final

from benchmarks.costs.cost import HOUR, MILLION, Cost

__all__ = ["PUBLISHED"]

_ADAPTER: Final = (
    "https://github.com/awslabs/dynamodb-streams-kinesis-adapter/blob/master/src/main/java/com/amazonaws/"
    "services/dynamodbv2/streamsadapter"
)
_BEAM: Final = (
    "https://github.com/apache/beam/blob/master/sdks/java/io/google-cloud-platform/src/main/java/org/apache/"
    "beam/sdk/io/gcp/spanner/changestreams/action/QueryChangeStreamAction.java"
)
_PAGE: Final = 1000
"""The largest number of records in an answer of GetRecords, which is also the adapter's."""
_LEASES: Final = (
    "a table of leases: the lease of each shard is written every 3.3 s (`failoverTimeMillis` of 10 s), 1,090 "
    "times an hour"
)
_LEASE_ITEMS: Final = (
    "a container of leases: each lease is written every 17 s, and all leases are listed every 13 s; both "
    "cost request units too"
)


def _adapter(idle: float) -> Cost:
    # After an answer without records, the adapter waits twice as long.
    asked = HOUR / (2 * idle)
    return Cost(
        "DynamoDB",
        f"KCL with the adapter for DynamoDB Streams, `idleTimeBetweenReadsInMillis={1000 * idle:.0f}`"
        + (", its default" if idle == 1 else ""),
        ours=False,
        million_requests=MILLION / _PAGE,
        million_units=MILLION / _PAGE,
        hour_requests=asked,
        hour_others=None,
        hour_units=asked,
        delay_seconds=2 * idle,
        known=f"[the adapter's settings]({_ADAPTER}/polling/DynamoDBStreamsPollingConfig.java), and "
        f"[its pause]({_ADAPTER}/DynamoDBStreamsSleepTimeController.java)",
        also=_LEASES,
    )


def _processor(delay: float) -> Cost:
    return Cost(
        "Cosmos DB",
        f"the change feed processor of .NET and Java, a poll delay of {delay:g} s"
        + (", its default" if delay == 5 else ""),
        ours=False,
        million_requests=None,
        million_units=None,
        hour_requests=HOUR / delay,
        hour_others=None,
        hour_units=HOUR / delay,
        delay_seconds=delay,
        known="[the processor's defaults](https://github.com/Azure/azure-sdk-for-java/blob/main/sdk/cosmos/"
        "azure-cosmos/src/main/java/com/azure/cosmos/models/ChangeFeedProcessorOptions.java)",
        also=_LEASE_ITEMS,
    )


def _dataflow() -> Cost:
    # What a query has found is passed on when it has ended. Before each query, the connector reads its row of
    # the state of the partitions, and after it, it writes the row.
    between = 5.0
    return Cost(
        "Spanner",
        "Dataflow with `SpannerIO`, which ends each query after 5 s or 5 MB, and passes on what it found",
        ours=False,
        million_requests=None,
        million_units=None,
        hour_requests=HOUR / between,
        hour_others=2 * HOUR / between,
        hour_units=None,
        delay_seconds=between,
        known="[the connector's authors](https://github.com/apache/beam/pull/34967), and [its "
        f"code]({_BEAM}): for each query, it reads and writes the state of the partition once (*other*)",
        also="repeated queries that look for new partitions in this state",
    )


PUBLISHED: Final = (_adapter(1.0), _adapter(0.5), _processor(5.0), _processor(1.0), _dataflow())
