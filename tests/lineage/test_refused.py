"""Tests what a lineage refuses: a provider that breaks C1, and partitions that wait for each other."""

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_spi import Child, InvalidCursor, Partition, PartitionState, ProviderFault, Survey
from multiclouddb_spi.continuation.entry import Audited, Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage

READ, ENDED = Entry.read("0", 5), Entry("0", Stage.END, (5,), children=("1",))
MERGED = Child("2", ("0", "9"), 5)


@pytest.mark.parametrize(
    ("entry", "child", "complete"),
    [
        pytest.param(READ, Child("2", ("9",), 5), True, id="the parent is not named"),
        pytest.param(READ, MERGED, False, id="more children may come"),
        pytest.param(ENDED, MERGED, True, id="it is named late"),
    ],
)
def test_a_provider_that_breaks_c1_is_refused(entry, child, complete):
    lineage = Lineage([entry], RULES)
    with pytest.raises(ProviderFault) as caught:
        lineage.ended("0", [child], complete=complete)
    assert caught.value.fault.category == ErrorCategory.PERMANENT_FAILURE
    assert list(lineage) == [entry]


@pytest.mark.parametrize("waits", [{"1": "1"}, {"1": "2", "2": "1"}, {"1": "2", "2": "3", "3": "1"}])
def test_partitions_that_wait_for_each_other_are_refused(waits):
    entries = [Entry(name, Stage.WAIT, (5,), (parent,)) for name, parent in waits.items()]
    with pytest.raises(InvalidCursor):
        Lineage.from_json(Lineage([READ, *entries], RULES).to_json(), RULES)


def test_a_chain_that_waits_is_read():
    entries = [Entry(str(i), Stage.WAIT, (5,), (str(i - 1),)) for i in (3, 1, 2)]
    kept = Lineage([READ, *entries], RULES).to_json()
    assert Lineage.from_json(kept, RULES).to_json() == kept


def test_a_refused_loss_changes_nothing():
    """A partition was lost before the service listed it; the policy is `Fail`."""
    lineage = Lineage([READ], RULES)
    here = Partition("3", ("2",), PartitionState.OPEN, 7)
    added, losses = lineage.found(Survey((here,), {"2": None}), skips=False)
    assert ([loss.partition_id for loss in losses], added, list(lineage)) == (["2"], [], [READ])


def test_an_end_that_is_gone_makes_the_search_due():
    bench = Lineage([Entry.read("1", 5), ENDED], RULES, Audited(None, 4711, retired=False))
    bench.looked(Survey((), {"0": None}), ["0"], 14)
    assert (list(bench), bench.audited) == ([Entry.read("1", 5)], Audited(None, 0, retired=True))


def test_a_child_that_comes_late_begins_the_watch_for_its_siblings():
    first, second = (Partition(name, ("0",), PartitionState.OPEN, 7) for name in "12")
    lineage = Lineage([Entry("0", Stage.END, (5,), looks=15), Entry.read("9", 5)], RULES)
    for present in ((first,), (first,), (first, second)):
        lineage.looked(Survey(present, {}), ["0"], 14)
    assert sorted(entry.partition_id for entry in lineage) == ["0", "1", "2", "9"]
