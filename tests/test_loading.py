"""Tests that packages whose modules are imported on first use look as if they had imported them."""

import ast
import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = [
    "multiclouddb_api", "multiclouddb_spi", "multiclouddb_embedded", "multiclouddb_embedded.store",
    "multiclouddb_dynamo", "multiclouddb_mongo",
]  # fmt: skip


def in_a_new_process(program):
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ran.stdout.split()


def seen_by_type_checkers(package):
    """Return the imports that only type checkers read, as pairs of module and name."""
    tree = ast.parse(Path(package.__file__).read_text())
    conditions = [node for node in tree.body if isinstance(node, ast.If)]
    guarded = [node for node in conditions if ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [statement for node in guarded for statement in node.body]
    return {(statement.module, alias.name) for statement in imports for alias in statement.names}


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_and_the_interpreter_find_the_same_names(name):
    package = importlib.import_module(name)
    homes = {(f"{name}.{home}", each) for home, names in package._HOMES.items() for each in names.split()}
    assert homes == seen_by_type_checkers(package)
    assert sorted(each for _, each in homes) == sorted(package.__all__)
    for home, each in homes:
        assert getattr(package, each) is getattr(importlib.import_module(home), each)


@pytest.mark.parametrize("name", [*PACKAGES, "multiclouddb"])
def test_a_star_import_a_completion_and_help_show_every_name(name):
    listed = set(importlib.import_module(name).__all__)
    program = f"from {name} import *; before = set(dir()); import {name} as p; print(*before); print(*dir(p))"
    shown = in_a_new_process(program)
    assert all(shown.count(each) == 2 for each in listed)
    page = in_a_new_process(f"import {name} as p, pydoc; print(pydoc.plaintext.document(p))")
    assert listed <= set(re.findall(r"\w+", " ".join(page)))


@pytest.mark.parametrize("name", [*PACKAGES, "multiclouddb"])
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
    arguments = "timeout_seconds: 'float' = 30.0, wait_seconds: 'float' = 0.0, ask_all: 'bool' = True"
    assert f"OperationOptions({arguments})" in shown
    assert f"__init__(self, {arguments}) -> None" in shown


def test_importing_the_library_imports_neither_an_engine_nor_a_provider():
    loaded = in_a_new_process("import multiclouddb, sys; print(*sys.modules)")
    ours = {name for name in loaded if name.startswith("multiclouddb")}
    assert ours == {"multiclouddb", "multiclouddb_api", "multiclouddb_api.loading"}
    loaded = in_a_new_process("from multiclouddb import *; import sys; print(*sys.modules)")
    assert {name.partition(".")[0] for name in loaded if "multiclouddb" in name} == {
        "multiclouddb", "multiclouddb_api"
    }  # fmt: skip
