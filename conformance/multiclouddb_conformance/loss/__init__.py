"""The loss oracle kills a consumer after every step and compares its events with the writes.

    oracle = LossOracle(world=make_world, client=make_client, request=request, life=scripted_life())
    report = oracle.run()
    print(report)
    report.assert_nothing_lost()

The oracle uses only the API. The caller provides the world (a database with one collection) and the
world's script. So the oracle works with any provider and with the caller's own consumer.
"""

from multiclouddb_conformance.loss.consumer import (
    Consumer,
    Delivered,
    Failed,
    Pause,
    Received,
    Stored,
    iterator_consumer,
    page_consumer,
    page_consumer_with,
)
from multiclouddb_conformance.loss.life import (
    Act,
    Author,
    Read,
    ReadUntilIdle,
    ScriptedWorld,
    Step,
    WrittenChange,
    public_lineage,
    scripted_life,
)
from multiclouddb_conformance.loss.oracle import LossOracle
from multiclouddb_conformance.loss.report import LossReport, RunReport
from multiclouddb_conformance.loss.verdict import marker_in

__all__ = [
    "Act",
    "Author",
    "Consumer",
    "Delivered",
    "Failed",
    "LossOracle",
    "LossReport",
    "Pause",
    "Read",
    "ReadUntilIdle",
    "Received",
    "RunReport",
    "ScriptedWorld",
    "Step",
    "Stored",
    "WrittenChange",
    "iterator_consumer",
    "marker_in",
    "page_consumer",
    "page_consumer_with",
    "public_lineage",
    "scripted_life",
]
