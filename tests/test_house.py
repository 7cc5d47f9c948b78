"""Checks rules of this repository that no linter checks."""

import ast
import importlib
import pkgutil
import re
import tomllib
import types
from pathlib import Path

import pytest

import multiclouddb_api
import multiclouddb_spi
from multiclouddb_conformance import us8

from .test_loading import in_a_new_process

ROOT = Path(__file__).parents[1]
EMULATORS = sorted(path.parent.name for path in ROOT.glob("tools/emulators/*/README.md"))
SDKS = {
    "azure", "boto3", "botocore", "deltalake", "google", "grpc", "numpy", "pandas", "py4j", "pyarrow",
    "pymongo", "pyspark", "pytest",
}  # fmt: skip
# The gRPC messages come with the vendor's package; its client is not used.
WIRE = {"spanner": {"google", "grpc"}}


@pytest.mark.parametrize("service", EMULATORS)
def test_an_emulator_needs_nothing_of_the_kit_and_no_sdk(service):
    """Otherwise, both could contain the same mistake."""
    package = f"multiclouddb_{service}_emulator"
    program = f"import {package}, sys; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in in_a_new_process(program)}
    assert {name for name in loaded if "multiclouddb" in name} == {package}
    assert SDKS & loaded == WIRE.get(service, set())


def test_the_emulators_require_no_other_distribution():
    project = tomllib.loads((ROOT / "tools/emulators/pyproject.toml").read_text())["project"]
    assert sorted(project["optional-dependencies"]) == EMULATORS
    wanted = [project["dependencies"], *project["optional-dependencies"].values()]
    assert [name for names in wanted for name in names if "multiclouddb" in name] == []


def test_no_test_is_left_out():
    """If a server cannot be fetched or started, a test must fail, and not be skipped."""
    found = []
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    for folder in (*settings["testpaths"], "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            if not {"build", "__pycache__"} & set(path.parts):
                names = re.findall(r"\.(skip|skipif|xfail|importorskip|skipTest)\b", path.read_text())
                found += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert found == []


def form_of(module):
    """Return `FORM` of a module that runs us8, or None if it runs the whole suite; see conftest.py."""
    for step in ast.parse(module.read_text()).body:
        target = step.targets[0] if isinstance(step, ast.Assign) else getattr(step, "target", None)
        if isinstance(target, ast.Name) and target.id == "FORM":
            return ast.literal_eval(step.value)
    return None


FORMS = sorted(path for path in ROOT.glob("*/**/tests/test_us8*.py") if form_of(path) is not None)


@pytest.mark.parametrize("module", FORMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_form_names_tests_that_exist(module):
    """`make test` would leave out a test whose name is misspelled."""
    for name in form_of(module):
        each, _, test = name.partition("::")
        assert each in us8.__all__
        assert not test or hasattr(getattr(us8, each), test)


@pytest.mark.parametrize("provider", sorted(path.name for path in (ROOT / "providers").iterdir()))
def test_make_test_runs_every_class_of_us8_on_a_form_of_each_provider(provider):
    run = set()
    for module in (ROOT / "providers" / provider / "tests").glob("test_us8*.py"):
        form = form_of(module)
        if form is None:
            assert re.search(r"^from \S+ import \*", module.read_text(), re.MULTILINE), "name its FORM"
        run |= set(us8.__all__) if form is None else {name.partition("::")[0] for name in form}
    assert run >= set(us8.__all__)


@pytest.mark.parametrize(
    "package", [multiclouddb_api, multiclouddb_spi], ids=lambda package: package.__name__
)
def test_a_package_exports_exactly_the_names_that_it_lists(package):
    visible = {
        name
        for name in dir(package)
        if not name.startswith("_") and not isinstance(getattr(package, name), types.ModuleType)
        if name != "annotations"  # the import from __future__ leaves it
    }
    assert sorted(package.__all__) == sorted(visible)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.ispkg and not found.name.endswith(".arrow"):
            module = importlib.import_module(found.name)
            listed = getattr(module, "__all__", ())
            assert [name for name in listed if not hasattr(module, name)] == [], found.name
