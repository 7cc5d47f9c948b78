"""Tests the names of packages, also of those that import a module when one of its names is first used."""

import importlib
import pickle
import re
import subprocess
import sys

import pytest

# The last two import a module when one of its names is first used.
PACKAGES = ["multiclouddb", "multiclouddb_certify", "multiclouddb_mongo"]


def in_a_new_process(program):
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ran.stdout.split()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_star_import_a_completion_and_help_show_every_name(name):
    listed = set(importlib.import_module(name).__all__)
    program = f"from {name} import *; before = set(dir()); import {name} as p; print(*before); print(*dir(p))"
    shown = in_a_new_process(program)
    assert all(shown.count(each) == 2 for each in listed)
    page = in_a_new_process(f"import {name} as p, pydoc; print(pydoc.plaintext.document(p))")
    assert listed <= set(re.findall(r"\w+", " ".join(page)))


@pytest.mark.parametrize("name", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(name):
    package = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'no_such_name'"):
        getattr(package, "no_such_name")  # noqa: B009
    with pytest.raises(ImportError, match="no_such_name"):
        exec(f"from {name} import no_such_name")


def test_a_value_is_pickled_by_one_process_and_read_by_another_that_imported_nothing():
    from multiclouddb import AtTime, ResourceAddress  # noqa: F401

    made = pickle.dumps(ResourceAddress("shop", "orders"))
    program = f"import pickle; print(pickle.loads({made!r}), len(pickle.loads({made!r}).database))"
    assert in_a_new_process(program) == ["shop/orders", "4"]


def test_help_of_a_class_shows_its_signature_before_it_was_used():
    program = "import pydoc, multiclouddb; print(pydoc.plaintext.document(multiclouddb.OperationOptions))"
    shown = " ".join(in_a_new_process(program))
    arguments = (
        "timeout_seconds: 'float' = 30.0, wait_seconds: 'float' = 0.0, ask_all: 'bool' = True, *, "
        "start_only: 'bool' = False, progress: 'Progress | None' = None"
    )
    assert f"OperationOptions({arguments})" in shown
    assert f"__init__(self, {arguments}) -> None" in shown


def test_importing_the_library_imports_neither_an_engine_nor_a_provider():
    loaded = in_a_new_process("from multiclouddb import *; import sys; print(*sys.modules)")
    assert {name.partition(".")[0] for name in loaded if "multiclouddb" in name} == {
        "multiclouddb", "multiclouddb_api"
    }  # fmt: skip
