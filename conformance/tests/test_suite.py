"""Tests the suite itself: it must test every capability and its refusal, and use every ability."""

import inspect
from itertools import chain

from multiclouddb_api import Capability
from multiclouddb_conformance import us8
from multiclouddb_conformance.harness import ABILITIES, Harness

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
