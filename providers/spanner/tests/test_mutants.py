"""Tests that the model finds defects. A run that passes without a defect must fail with each defect."""

from importlib import import_module
from pathlib import Path
from types import FunctionType

import attrs
import pytest

from multiclouddb_api import MulticloudDbError

from .test_model import _no_rest, live, start_now  # noqa: F401 - a fixture

SEEDS = range(24)
FOUND = (AssertionError, MulticloudDbError, pytest.fail.Exception)


@attrs.frozen
class Mutant:
    """A defect of the provider.

    Attributes:
        name: A description of the defect.
        module: The module with the defect.
        before: A piece of the source that occurs exactly once.
        after: The text that replaces the piece.
    """

    name: str
    module: str
    before: str
    after: str


MUTANTS = [
    Mutant(
        "the rest of a commit timestamp is skipped",
        "reader", "if record.at <= cut.at:\n            start = _part(cut, record)",
        "if record.at <= cut.at:\n            start = stop",
    ),
    Mutant(
        "a commit timestamp is delivered again from its beginning",
        "reader", "if record.at <= cut.at:\n            start = _part(cut, record)",
        "if record.at < cut.at:\n            start = _part(cut, record)",
    ),
    Mutant(
        "a position forgets the place in a record", "mapping",
        "mark = (ordered(record.sequence), last + 1)", "mark = (ordered(record.sequence), len(record.mods))",
    ),
    Mutant(
        "a position forgets what the pages before delivered of a commit", "mapping",
        "return Place(Cut(at, {**delivered, **", "return Place(Cut(at, {**",
    ),
    Mutant(
        "Now has what was committed before", "feed",
        "place = Place.at(now, now + 1)", "place = Place.at(now)",
    ),
    Mutant(
        "Now leaves out the first moment", "feed",
        "place = Place.at(now, now + 1)", "place = Place.at(now, now + 3)",
    ),
    Mutant(
        "a moment leaves itself out", "feed", "wanted = micros(utc)", "wanted = micros(utc) + 1",
    ),
    Mutant(
        "a heartbeat moves past its own moment", "reader",
        "self._move(taken, begin, at)", "self._move(taken, begin, at + 1)",
    ),
    Mutant(
        "a window that has ended is left by two microseconds", "reader",
        "self._place = Place.at(window.end + 1, self._since)",
        "self._place = Place.at(window.end + 2, self._since)",
    ),
    Mutant(
        "a merged child knows one parent", "reader",
        "name: Child(name, all_parents or (self._token,), cursor)",
        "name: Child(name, (self._token,), cursor)",
    ),
    Mutant(
        "only the last announcement of children counts", "reader",
        "self._children |= {", "self._children = {",
    ),
    Mutant(
        "a child begins after its first moment", "reader",
        "cursor = cursor_of(Place.at(at, self._since))", "cursor = cursor_of(Place.at(at + 1, self._since))",
    ),
    Mutant(
        "what was not taken of a window is kept when it is asked for again", "reader",
        "self._items.clear()", "self._items.rotate()",
    ),
    Mutant(
        "what was taken of a record is forgotten between two fetches", "reader",
        "start = max(start, self._used)", "start = max(start, 0)",
    ),
    Mutant(
        "an answer that broke off counts as a whole one", "reader",
        "return self._batch(begin, taken, 0, caught_up=False)",
        "return self._batch(begin, [], 0, caught_up=True)",
    ),
    Mutant(
        "the parts of a value that was cut are not joined", "records",
        "values[-1] = _merged(values[-1], fresh[0])", "values[-1] = fresh[0]",
    ),
    Mutant(
        "changes of other tables come, too", "records",
        "if fields[4].string_value == table:", "if fields[4].string_value:",
    ),
    Mutant(
        "ids do not name the transaction", "mapping",
        'head = f"{commit}|{record.transaction}|{record.sequence}|"',
        'head = f"{commit}|{record.sequence}|"',
    ),
]  # fmt: skip


def functions_of(module):
    """Return every function and method that a module defines, by its name."""
    for name, found in (module if isinstance(module, dict) else vars(module)).items():
        if isinstance(found, type):
            for field, method in vars(found).items():
                inner = getattr(method, "__func__", None) or getattr(method, "fget", None) or method
                if isinstance(inner, FunctionType):
                    yield f"{name}.{field}", inner
        elif isinstance(found, FunctionType):
            yield name, found


@pytest.fixture
def plant(monkeypatch):
    def put(mutant):
        module = import_module(f"multiclouddb_spanner.{mutant.module}")
        source = Path(module.__file__).read_text()
        assert source.count(mutant.before) == 1, "the source has changed: plant this defect in another place"
        changed = dict(vars(module))
        exec(compile(source.replace(mutant.before, mutant.after), module.__file__, "exec"), changed)
        sound = dict(functions_of(module))
        count = 0
        for name, function in functions_of(changed):
            there = sound.get(name)
            own = there is not None and there.__code__.co_filename == module.__file__
            if own and there.__code__ != function.__code__:
                monkeypatch.setattr(there, "__code__", function.__code__)
                count += 1
        assert count == 1, "a defect is in one function"

    return put


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_life_finds_it(plant, mutant):
    plant(mutant)
    for seed in SEEDS:
        try:
            start_now(seed)
            live(seed)
        except FOUND:
            return
    pytest.fail("no life finds it")
