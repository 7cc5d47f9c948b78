"""Tests that every package exports exactly the names that it lists."""

import importlib
import pkgutil
import types

import pytest

import multiclouddb_api
import multiclouddb_spi

PACKAGES = [multiclouddb_api, multiclouddb_spi]
MODULES = [
    module
    for package in PACKAGES
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not found.ispkg and not found.name.endswith(".arrow")
    if hasattr(module := importlib.import_module(found.name), "__all__")
]


def place(name):
    """Return ruff's sort key: constants, then classes, then functions."""
    return not name.isupper(), not name[0].isupper(), name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_is_sorted_and_equals_the_visible_names(package):
    visible = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert package.__all__ == sorted(visible, key=place)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_module_has_what_it_lists(module):
    assert module.__all__ == sorted(set(module.__all__), key=place)
    for name in module.__all__:
        assert hasattr(module, name)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_star_import_works(package):
    names = {}
    exec(f"from {package.__name__} import *", names)
    assert set(package.__all__) <= names.keys()
