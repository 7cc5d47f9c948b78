"""Checks which tests the pytest plugin deselects or runs twice, and how the plugin reports them."""

import inspect
from itertools import chain

import pytest

import multiclouddb_conformance.us8  # noqa: F401 - imported once, not in every inner run
from multiclouddb_api import Capability
from multiclouddb_conformance import us8
from multiclouddb_conformance.harness import ABILITIES, Harness

HARNESS = """
import pytest
from multiclouddb_api import Capability, CapabilityNote, CapabilitySet, Support
from multiclouddb_conformance.simulated import SimulationHarness

BEGINNING = Capability.CHANGE_FEED_BEGINNING

def harness(support, **changes):
    notes = {**SimulationHarness.capabilities.notes, BEGINNING: CapabilityNote(support, "wait")}
    return type("Some", (SimulationHarness,), {"capabilities": CapabilitySet(notes), **changes})

"""
PAIR = """
@pytest.mark.requires(BEGINNING)
def test_works(harness): pass

@pytest.mark.refuses(BEGINNING)
def test_refused(harness): pass

@pytest.mark.needs("merge", "value:uuid")
def test_merge(harness): pass

def test_always(harness): pass

def test_of_somebody_else(): pass
"""


@pytest.fixture
def run(run_inside):
    def chosen(text, body=PAIR):
        return run_inside(HARNESS + text + body, "-v")

    return chosen


class TestPlugin:
    @pytest.mark.parametrize(
        ("support", "expected"),
        [
            ("NATIVE", ["test_works"]),
            ("UNSUPPORTED", ["test_refused"]),
            ("EMULATED", ["test_works", "test_refused"]),
        ],
    )
    def test_the_half_that_does_not_apply_is_deselected(self, run, support, expected):
        result = run(f"HARNESS = harness(Support.{support})")
        assert result.outcomes == {
            "passed": {*expected, "test_merge", "test_always", "test_of_somebody_else"}
        }
        assert result.deselected == 2 - len(expected)
        if support == "NATIVE":
            assert "the harness lacks" not in result.printed

    @pytest.mark.parametrize(
        ("lack", "reason"),
        [("can_merge=False", "no merge"), ("value_types=frozenset()", "no uuid in documents")],
    )
    def test_what_a_harness_lacks_is_deselected_and_told(self, run, lack, reason):
        result = run(f"HARNESS = harness(Support.NATIVE, {lack})")
        assert "test_merge" not in result.outcomes["passed"]
        assert "deselected, because the harness lacks" in result.printed
        assert f"\nSome: {reason}: 1 test\n" in result.printed

    def test_several_harnesses_run_every_test(self, run):
        result = run("A = harness(Support.NATIVE); B = harness(Support.NATIVE); HARNESSES = [A, B]")
        assert [(outcome, len(names)) for outcome, names in result.outcomes.items()] == [("passed", 7)]
        assert result.deselected == 2

    def test_a_module_has_to_name_its_harness(self, run):
        result = run("")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "set HARNESS to the harness class, like HARNESS = MyHarness" in result.printed

    def test_a_provider_without_a_feed_is_only_asked_to_refuse_it(self, run):
        text = """
class HARNESS(SimulationHarness):
    capabilities = CapabilitySet(
        {each: CapabilityNote(Support.UNSUPPORTED, "use a queue") for each in Capability}
    )

"""
        result = run(text, body="from multiclouddb_conformance.us8 import *")
        assert result.outcomes == {"passed": {"TestNoFeed::test_every_read_is_refused_with_the_way_out"}}

    def test_an_ability_that_is_neither_written_nor_denied_says_so(self, run):
        text = "HARNESS = harness(Support.NATIVE, split=__import__('multiclouddb_conformance.harness')"
        text += ".harness.Harness.split)"
        body = "\ndef test_split(collection):\n    collection.split()\n"
        result = run(text, body=body)
        assert "implement Some.split, or set can_split = False" in result.printed


CLASSES = [getattr(us8, name) for name in us8.__all__]
TESTS = [
    test
    for each in CLASSES
    for name, test in inspect.getmembers(each, inspect.isfunction)
    if name.startswith("test_")
]


def marks(element):
    """Return the marks of a class or test, including those of its parameters."""
    for mark in getattr(element, "pytestmark", []):
        yield mark
        if mark.name == "parametrize":
            yield from chain.from_iterable(getattr(value, "marks", ()) for value in mark.args[1])


def marked(name):
    found = (mark for element in (*CLASSES, *TESTS) for mark in marks(element) if mark.name == name)
    return {value for mark in found for value in mark.args}


def test_there_is_a_test_of_every_capability_and_of_its_refusal():
    # Every test without a mark needs a change feed.
    assert marked("requires") | {Capability.CHANGE_FEED} == set(Capability)
    assert marked("refuses") == set(Capability)


def test_every_ability_is_needed_by_a_test_and_can_be_denied():
    needed = {name for name in marked("needs") if ":" not in name}
    assert needed == set(ABILITIES)
    assert {name for name in vars(Harness) if name.startswith("can_")} == {f"can_{name}" for name in needed}
