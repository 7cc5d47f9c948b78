"""Tests that a record fault is raised even if the provider reports a wrong index."""

import pytest

from multiclouddb_api import Beginning, MulticloudDbError
from multiclouddb_conformance.simulation import SimulationMapper
from multiclouddb_conformance.simulation.batch import poison_fault


def test_a_record_fault_with_a_wrong_index_is_raised(bench, monkeypatch):
    """The provider counts incorrectly: it starts at the first requested record.

    The provider's fault must still be raised.
    """
    bench.fill(20, keys=1)
    token = bench.page(Beginning(), size=3).continuation_token
    mapped = SimulationMapper.events

    def events(self, records, start, stop):
        if start:
            raise poison_fault(0, records.records[start], records.places[start])
        return mapped(self, records, start, stop)

    token = bench.page(token, size=2).continuation_token
    monkeypatch.setattr(SimulationMapper, "events", events)
    with pytest.raises(MulticloudDbError):
        bench.page(token, size=2)
