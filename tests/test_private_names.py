"""Tests that every private name of somebody else's package that we use is in `private_names.toml`.

A private name may be gone in any version, so the code that uses the name works without it.
"""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from .test_dependencies import FOLDERS, NEWEST, OLDEST

ROOT = Path(__file__).parents[1]
LIST = tomllib.loads(Path(__file__).with_name("private_names.toml").read_text())
PRIVATE = re.compile(r"_[A-Za-z]\w*")
# Documented names of the standard library.
PUBLIC = {"_asdict", "_exit", "_fields", "_replace"}
BY_NAME = ("delattr", "getattr", "hasattr", "setattr")


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules():
    """Map the names of our modules to their files; the tests of the tools are no part of a distribution."""
    return {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for folders in FOLDERS.values()
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if "tests" not in path.relative_to(folder).parts
    }


@cache
def defined(path):
    """Return the private names that a module defines, as attributes of its own classes or as its own."""
    found = set()
    for node in ast.walk(tree(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def ours(path):
    """Return the private names of a module and of those of our modules that it imports."""
    found = set(defined(path))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            if node.module in modules() and modules()[node.module].name == "__init__.py":
                names += [name for name in modules() if name.startswith(f"{node.module}.")]
            found = found.union(*(defined(modules()[name]) for name in names if name in modules()))
    return found


def named(node):
    """Return the names that a piece of code takes from an object or a module."""
    match node:
        case ast.Attribute(attr=name):
            return [name]
        case ast.ImportFrom(module=str(module), level=0):
            return [*module.split("."), *(each.name for each in node.names)]
        case ast.Import():
            return [part for each in node.names for part in each.name.split(".")]
        case ast.keyword(arg=str(name)):
            return [name]
        case ast.Call(func=ast.Name(id=function), args=[_, ast.Constant(value=str(name)), *_]):
            return [name] if function in BY_NAME else []
    return []


def foreign(path):
    """Return the private names that a module uses and that are not ours."""
    found = {name for node in ast.walk(tree(path)) for name in named(node) if PRIVATE.fullmatch(name)}
    return found - PUBLIC - ours(path)


def overridden(path):
    """Return the private names that a module's nested or own classes override: they call `super()`'s."""
    return {
        node.attr
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
        and PRIVATE.fullmatch(node.attr)
    }


def used():
    """Map each file of the published distributions to the private names of others that it uses."""
    own = Counter(name for path in modules().values() for name in defined(path))
    found, known = {}, listed()
    for path in modules().values():
        file = path.relative_to(ROOT).as_posix()
        # `super()` of a class whose name only this module defines is somebody else's.
        names = foreign(path) | {name for name in overridden(path) if own[name] < 2}
        # A module of ours may have a name that a listed one has too.
        names |= {name for node in ast.walk(tree(path)) for name in named(node)} & known.get(file, set())
        if names:
            found[file] = names
    return found


def listed():
    found = {}
    for package in LIST.values():
        for file, names in package["names"].items():
            found.setdefault(file, set()).update(names)
    return found


def test_every_private_name_that_is_used_is_listed_and_no_other():
    assert used() == listed()


@pytest.mark.parametrize("name", ["client._topology", "getattr(client, '_topology')", "f(_topology=1)"])
def test_a_new_name_is_found(tmp_path, name):
    path = tmp_path / "module.py"
    path.write_text(f"def read(client):\n    return {name}\n")
    assert foreign(path) == {"_topology"}


@pytest.mark.parametrize("code", ["from pymongo._csot import remaining", "import pymongo._csot"])
def test_a_private_module_is_found(tmp_path, code):
    path = tmp_path / "module.py"
    path.write_text(code)
    assert foreign(path) == {"_csot"}


def test_own_names_are_not_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "class A:\n    def __init__(self):\n        self._a = 1\n\ndef read(a):\n    return a._a\n"
    )
    assert foreign(path) == set()


@pytest.mark.parametrize("package", sorted(LIST))
def test_the_range_is_what_the_tests_run(package):
    """`make test-oldest` and `make test` run everything that uses these names, at both ends."""
    assert LIST[package]["seen"] == [str(OLDEST[package][0]), str(NEWEST[package][-1])]
    assert all(reason for names in LIST[package]["names"].values() for reason in names.values())


@pytest.mark.parametrize("package", sorted(LIST))
def test_no_name_is_required(package):
    """`make test` hides those of PyMongo and azure-cosmos."""
    assert LIST[package]["without"]
