"""Checks rules of this repository that no linter checks."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROVIDERS = sorted(path.parent.name for path in ROOT.glob("providers/*/multiclouddb_*/provider.py"))
EMULATORS = sorted(ROOT.glob("tools/emulators/*/pyproject.toml"))
API = sorted((ROOT / "multiclouddb_api").rglob("*.py"))
SDKS = {
    "azure",
    "boto3",
    "botocore",
    "deltalake",
    "google",
    "grpc",
    "numpy",
    "pandas",
    "py4j",
    "pyarrow",
    "pymongo",
    "pyspark",
    "pytest",
}
# The gRPC messages come with the vendor's package; its client is not used.
WIRE = {"spanner": {"google", "grpc"}}


def tree(path):
    return ast.parse((ROOT / path).read_text())


def loaded_by(imports):
    """Return the modules that a fresh interpreter has loaded after an import."""
    program = f"import {imports}, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in ran.stdout.split()}


class TestImports:
    def test_the_api_and_the_spi_load_no_sdk(self):
        assert SDKS & loaded_by("multiclouddb_api, multiclouddb_spi") == set()

    def test_the_api_does_not_load_the_spi(self):
        assert "multiclouddb_spi" not in loaded_by("multiclouddb_api")

    def test_the_api_needs_nothing_but_what_the_distribution_names(self):
        allowed = {"attrs", "multiclouddb_api", "orjson", *sys.stdlib_module_names}
        for path in API:
            if path.name in ("arrow.py", "page.py"):
                continue  # tables are extras; the test above checks what the import loads
            for node in ast.walk(tree(path)):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    assert node.level == 0
                    names = [node.module]
                assert {name.partition(".")[0] for name in names} <= allowed, path

    def test_providers_are_unknown_to_the_iterator(self):
        for name in ("iterator.py", "pacing.py", "checkpoint.py"):
            text = (ROOT / "multiclouddb_api" / name).read_text()
            words = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
            for provider in ("embedded", "dynamo", "spanner", "cosmos", "mongo"):
                assert provider not in words


class TestProviders:
    """Tests that all providers have the same modules, so that a person who knows one provider can read
    another.
    """

    def test_every_one_has_the_same_rooms(self):
        contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        (shape,) = [each for each in contracts if each["name"] == "every provider has the same shape"]
        assert shape["exhaustive"]
        assert sorted(shape["containers"]) == PROVIDERS
        rooms = {"provider", "feed", "reader", "partitions", "source", "mapping", "config", "errors"}
        found = {room for layer in shape["layers"] for room in re.split("[ |:]+", layer)}
        assert {room for room in found if not room.startswith("(")} == rooms


@pytest.mark.parametrize("file", EMULATORS, ids=lambda file: file.parent.name)
class TestEmulators:
    """Tests that the emulators do not import the kit; otherwise, both could contain the same mistake."""

    def test_it_is_named_after_its_folder(self, file):
        project = tomllib.loads(file.read_text())
        assert project["project"]["name"] == f"multiclouddb-{file.parent.name}-emulator"
        packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        assert packages == [f"multiclouddb_{file.parent.name}_emulator"]

    def test_it_needs_nothing_of_the_kit_and_no_sdk(self, file):
        package = f"multiclouddb_{file.parent.name}_emulator"
        loaded = loaded_by(package)
        assert {name for name in loaded if "multiclouddb" in name} == {package}
        assert SDKS & loaded == WIRE.get(file.parent.name, set())
        project = tomllib.loads(file.read_text())["project"]
        assert [name for name in project["dependencies"] if "multiclouddb" in name] == []
