"""Tests what the table of a sink contains after replays, old changes, snapshots, kills and repairs.

To test a kind of table, import these tests and define the fixture `sink`, a `SinkHarness` of an empty place
(see `sink_harness.py`):

    from multiclouddb_conformance.targets import *

    @pytest.fixture
    def sink(tmp_path):
        return MySink(tmp_path)

For a sink with `columns=`, import those of `multiclouddb_conformance.targets.declared` too.
"""

from multiclouddb_conformance.targets.feeds import TestEmptied, TestMarked, TestReplaced
from multiclouddb_conformance.targets.lives import TestLives
from multiclouddb_conformance.targets.merges import TestMerged, TestRepeated
from multiclouddb_conformance.targets.snapshots import (
    TestNoticed,
    TestNoticesOfPages,
    TestSnapshot,
    TestTexts,
    TestVanished,
)
from multiclouddb_conformance.targets.verified import TestFixed, TestJudged, TestRead

__all__ = [
    "TestEmptied",
    "TestFixed",
    "TestJudged",
    "TestLives",
    "TestMarked",
    "TestMerged",
    "TestNoticed",
    "TestNoticesOfPages",
    "TestRead",
    "TestRepeated",
    "TestReplaced",
    "TestSnapshot",
    "TestTexts",
    "TestVanished",
]
