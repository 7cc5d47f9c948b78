"""Tests a property that is computed once, above all in a child that is forked while a value is computed."""

import ast
import os
import threading
from pathlib import Path

from multiclouddb_api import Beginning, ChangeFeedRequest, connect
from multiclouddb_conformance.waiting import SOON
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_spi.computed_once import computed_once
from multiclouddb_spi.reading import filling
from multiclouddb_spi.reading.answers import Answers

ROOT = Path(__file__).parents[1]
PACKAGES = [
    path
    for path in ROOT.glob("**/multiclouddb_*/**/*.py")
    if not {".venv", "build", "tools", "conformance"} & set(path.relative_to(ROOT).parts)
]


def test_the_value_is_kept():
    class Counted:
        count = 0

        @computed_once
        def number(self):
            """Say what it is."""
            self.count += 1
            return self.count

    made = Counted()
    assert (made.number, made.number, made.count) == (1, 1, 1)
    assert Counted.number.__doc__ == "Say what it is."


def test_a_child_that_is_forked_while_a_value_is_computed_reads_on(tmp_path, monkeypatch):
    """In Python 3.11, `functools.cached_property` would hold the lock of the class in the child, too."""
    inside, over = threading.Event(), threading.Event()

    def slow(*arguments, **settings):
        inside.set()
        assert over.wait(SOON)
        return Answers(*arguments, **settings)

    with EmbeddedStore(tmp_path / "shop.db") as store, connect(f"embedded://{store.path}") as client:
        request = ChangeFeedRequest(store.create_collection("orders"), Beginning())
        monkeypatch.setattr(filling, "Answers", slow)
        reading = threading.Thread(target=client.read_changes, args=[request])
        reading.start()
        assert inside.wait(SOON)
        child = os.fork()
        if not child:
            monkeypatch.undo()
            threading.Timer(10, lambda: os._exit(2)).start()
            with connect(client.config) as own:
                os._exit(not own.read_changes(request).idle)
        over.set()
        reading.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_class_has_a_property_with_a_lock():
    """attrs replaces `cached_property` in its slotted classes."""
    assert len(PACKAGES) > 100
    found = []
    for path in PACKAGES:
        if "cached_property" not in (text := path.read_text()):
            continue
        for each in ast.walk(ast.parse(text)):
            if isinstance(each, ast.ClassDef) and not {"frozen", "define"} & set(names(each)):
                found += [
                    f"{path.name}: {each.name}.{method.name}"
                    for method in each.body
                    if isinstance(method, ast.FunctionDef) and "cached_property" in names(method)
                ]
    assert found == []


def names(decorated):
    """Return the names of decorators."""
    calls = (each.func if isinstance(each, ast.Call) else each for each in decorated.decorator_list)
    return [each.id for each in calls if isinstance(each, ast.Name)]
