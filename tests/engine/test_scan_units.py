"""Tests that a token keeps the charge that is expected of a scan, and that an estimate uses it."""

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_spi import InvalidCursor
from multiclouddb_spi.continuation.entry import Plan, plan_from_json, plan_to_json
from multiclouddb_verify import estimate

PLAN = Plan("scan:x", None, "0", 1)


@pytest.mark.parametrize("units", [None, 0, 12])
@pytest.mark.parametrize("shared", [None, 8, [1]])
def test_it_is_stored_beside_what_the_provider_needs(shared, units):
    plan = attrs.evolve(PLAN, shared=shared, units=units)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan.progress().units == units


@pytest.mark.parametrize("more", [[8, None], [8, -1], [8, 1.5], [8, "1"], [8, 1, 1]])
def test_another_form_is_refused(more):
    name, cursor, flags, [*counts] = plan_to_json(PLAN)
    with pytest.raises(InvalidCursor):
        plan_from_json([name, cursor, flags, [*counts, *more]])


@pytest.mark.parametrize(
    ("is_charged", "units", "told", "seconds"),
    [(True, 100, 100, 50.0), (True, None, None, None), (False, None, 0, 2000.0)],
)
def test_a_rate_limits_the_units_of_a_scan_that_is_charged(is_charged, units, told, seconds):
    facts = api.ScanFacts(api.ScanFloor.LOW, 0, "a unit for 4 KB", is_charged=is_charged)

    class Client:
        def capabilities(self, options):
            return api.CapabilitySet({}, facts)

        def read_changes(self, request, options=None):
            progress = api.SnapshotProgress(api.SnapshotOrder.ORDERED, 0, 8, 0, 4000, units)
            return api.ChangeFeedPage((), "t", diagnostics=api.OperationDiagnostics(snapshot=progress))

    found = estimate(Client(), "orders", max_scan_rate=2)
    assert (found.rows, found.units, found.seconds) == (4000, told, seconds)
