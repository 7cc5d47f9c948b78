"""Tests that every gap between databases is a numbered warning, which every affected element names."""

import inspect
import re
from pathlib import Path

import pytest

import multiclouddb_api as api
from multiclouddb_api import MulticloudDbClient

DOCS = Path(__file__).resolve().parents[1]
PAGE = (DOCS / "configuration.md").read_text(encoding="utf-8")
# Maps each warning in docs/configuration.md to the elements where a user can notice the gap. The plan
# contains the numbers of the first seven warnings.
CONCERNED = {
    1: [MulticloudDbClient.read_changes, api.ChangeType],
    2: [api.AtTime],
    3: [api.Beginning, api.FromContinuationToken, api.SkipToOldest, api.Resnapshot, api.Gap],
    4: [MulticloudDbClient.read_changes, api.NewItemStateMode],
    5: [MulticloudDbClient.read_changes, api.NewItemStateMode],
    6: [api.LogicalPartition, api.PhysicalPartition],
    7: [
        MulticloudDbClient.list_physical_partitions,
        MulticloudDbClient.plan_partitions,
        api.ChildPartition,
        api.FromContinuationToken,
        api.PhysicalPartition,
    ],
    8: [api.Beginning, api.AtTime, api.ChangeEvent, api.BackfillDone],
    9: [api.AtTime],
    10: [api.Beginning, api.FromContinuationToken, api.SkipToOldest, api.Gap],
    11: [
        MulticloudDbClient.list_physical_partitions,
        MulticloudDbClient.plan_partitions,
        api.ChangeFeedIterator,
        api.ChildPartition,
        api.PhysicalPartition,
    ],
    12: [api.OldItemStateMode],
    13: [api.EntireDatabase, api.EntireCluster],
    14: [MulticloudDbClient.run_command, MulticloudDbClient.run_cursor_command],
    15: [api.NewItemStateMode],
    16: [api.ChangeEvent],
    17: [api.ChangeEvent],
    18: [api.ChangeType],
    19: [api.Now],
    20: [api.FromContinuationToken, api.EntireDatabase, api.EntireCluster],
    21: [api.MulticloudDbKey, api.ResourceAddress],
    22: [MulticloudDbClient.plan_partitions, api.PartitionFoundLate, api.PhysicalPartition],
    23: [api.Snapshot, api.Resnapshot, api.SnapshotStarted, api.BackfillDone, api.ChangeEvent],
    24: [api.Snapshot, api.SnapshotOrder],
}
PLAN = {
    1: "Cosmos DB: the mode must be all versions and deletes",
    2: "DynamoDB: no start at a point in time",
    3: "DynamoDB: changes are kept for 24 hours",
    4: "DynamoDB: full documents need a stream with new images",
    5: "Spanner: full documents need a stream of full rows",
    6: "The scope of one partition key: Cosmos DB, MongoDB and embedded only",
    7: "Partition ids mean something to one provider and resource only",
}
# The words that a section must contain, so that it cannot be empty.
NAMED = {
    1: ["INVALID_REQUEST"],
    2: ["UNSUPPORTED_CAPABILITY", "CHANGE_FEED_POINT_IN_TIME", "AtTime"],
    3: ["CHECKPOINT_EXPIRED", "24 hours", "Beginning()"],
    4: ["UNSUPPORTED_CAPABILITY", "KEYS_ONLY", "NEW_IMAGE", "NEW_AND_OLD_IMAGES", "REQUIRE"],
    5: ["UNSUPPORTED_CAPABILITY", "value_capture_type", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES", "REQUIRE"],
    6: ["UNSUPPORTED_CAPABILITY", "CHANGE_FEED_LOGICAL_PARTITION_SCOPE", "PhysicalPartition"],
    7: ["INVALID_REQUEST", "shard", "partition token", "feed range"],
}
SECTIONS = {
    int(number): (title, text)
    for number, title, text in re.findall(
        r"^### (\d+)\. (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE
    )
}


def portability(element):
    """Return a section of a docstring, up to its end or to the next section."""
    found = re.search(r"^Portability:\n((?:\n|[ ].*\n?)+)", inspect.getdoc(element) or "", re.MULTILINE)
    return found[1] if found else ""


def numbers(element):
    """Return the numbers of the warnings that the section names."""
    text = " ".join(portability(element).split())
    found = re.search(r"See warnings? ([\d, and]+) in docs/configuration\.md", text)
    return {int(number) for number in re.findall(r"\d+", found[1])} if found else set()


def public_elements():
    """Yield what an application can use: the exports of the package and the methods of its classes."""
    for name in api.__all__:
        element = getattr(api, name)
        yield element
        if inspect.isclass(element):
            yield from (
                value
                for word, value in vars(element).items()
                if not word.startswith("_") and inspect.isfunction(value)
            )


ELEMENTS = list(dict.fromkeys(element for elements in CONCERNED.values() for element in elements))


@pytest.mark.shows("Plan 7")
class TestDocstrings:
    @pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.__qualname__)
    def test_an_element_names_the_warnings_that_concern_it(self, element):
        wanted = {number for number, elements in CONCERNED.items() if element in elements}
        assert numbers(element) == wanted

    def test_no_other_element_has_a_section(self):
        found = [each for each in public_elements() if inspect.getdoc(each) and portability(each)]
        assert [each.__qualname__ for each in found if each not in ELEMENTS] == []


@pytest.mark.shows("Plan 7")
class TestPage:
    def test_the_warnings_are_numbered_without_a_gap(self):
        assert list(SECTIONS) == list(CONCERNED) == list(range(1, len(CONCERNED) + 1))

    @pytest.mark.parametrize("number", PLAN)
    def test_the_first_seven_are_those_of_the_plan(self, number):
        assert SECTIONS[number][0] == PLAN[number]

    @pytest.mark.parametrize("number", NAMED)
    def test_what_the_plan_asks_for_is_named(self, number):
        text = " ".join(SECTIONS[number][1].split())
        assert [word for word in NAMED[number] if word not in text] == []

    @pytest.mark.parametrize("number", CONCERNED)
    def test_each_says_what_is_seen_and_the_way_out(self, number):
        text = SECTIONS[number][1]
        assert "**You see**" in text
        assert "**Advice:**" in text
