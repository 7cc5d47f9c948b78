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
    1: [MulticloudDbClient.read_changes, MulticloudDbClient.capabilities, api.ChangeType],
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
    23: [
        api.Snapshot,
        api.Resnapshot,
        api.SnapshotStarted,
        api.BackfillDone,
        api.ChangeEvent,
        MulticloudDbClient.lookup,
    ],
    24: [api.Snapshot, api.SnapshotOrder],
}
# The words that a section must contain, so that it cannot be empty.


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
