"""Checks rules of this repository that no linter checks."""

import ast
import inspect
import itertools
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import multiclouddb_api
from multiclouddb_api import MulticloudDbClient
from multiclouddb_conformance import us8

ROOT = Path(__file__).parents[1]
FOLDERS = [
    "multiclouddb_api",
    "multiclouddb_spi",
    "providers",
    "conformance",
    "spark",
    "cli",
    "tools",
]
SOURCES = [
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not {"tests", "build", "__pycache__"} & set(path.relative_to(ROOT).parts)
]
PROVIDERS = sorted(path.parent.name for path in ROOT.glob("providers/*/multiclouddb_*/provider.py"))
EMULATORS = sorted(ROOT.glob("tools/emulators/*/pyproject.toml"))
API = [path for path in SOURCES if path.parts[0] == "multiclouddb_api"]
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
# Features that some databases do not support; a docstring that uses one must name the capability.
GATED = [
    multiclouddb_api.AtTime,
    multiclouddb_api.Beginning,
    multiclouddb_api.ChangeFeedIterator,
    multiclouddb_api.EntireCluster,
    multiclouddb_api.EntireDatabase,
    multiclouddb_api.LogicalPartition,
    multiclouddb_api.MulticloudDbKey,
    multiclouddb_api.OldItemStateMode,
    multiclouddb_api.ResourceAddress,
    MulticloudDbClient.list_physical_partitions,
    MulticloudDbClient.read_changes,
    MulticloudDbClient.run_command,
    MulticloudDbClient.run_cursor_command,
]


def tree(path):
    return ast.parse((ROOT / path).read_text())


def public_definitions(path):
    """Yield pairs of a dotted name and a public class, function or method."""

    def walk(body, prefix):
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield prefix + node.name, node
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{prefix}{node.name}.")

    return walk(tree(path).body, "")


def docstring(node):
    """Return the line numbers of the docstring of a module, class or function."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) or not ast.get_docstring(node):
        return range(0)
    return range(node.body[0].lineno, node.body[0].end_lineno + 1)


def field_docstrings(path, name):
    """Map each public annotated field of a class to the text below it."""
    (found,) = (node for node in tree(path).body if isinstance(node, ast.ClassDef) and node.name == name)
    texts = {}
    for field, below in itertools.pairwise([*found.body, None]):
        if isinstance(field, ast.AnnAssign) and not (
            field.target.id.startswith("_") or "ClassVar" in ast.unparse(field.annotation)
        ):
            texts[field.target.id] = " ".join(below.value.value.split()) if is_text(below) else ""
    return texts


def documented(node):
    """Return the names that the section `Args:` of a docstring describes."""
    found = re.search(r"^Args:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
    return re.findall(r"^    \**(\w+)(?: \([^)]*\))?:", found[1], re.MULTILINE) if found else []


def parameters(function):
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {argument.arg for argument in [*named, arguments.vararg, arguments.kwarg] if argument}


def is_text(node):
    """Return whether a statement is only a text, and therefore the docstring of the field above it."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@pytest.mark.parametrize("path", API, ids=str)
class TestDocumentation:
    def test_a_module_says_what_it_is_for(self, path):
        assert ast.get_docstring(tree(path))

    def test_everything_public_is_described(self, path):
        bare = [name for name, node in public_definitions(path) if not ast.get_docstring(node)]
        assert bare == []


@pytest.mark.parametrize("path", SOURCES, ids=str)
class TestArguments:
    def test_what_a_docstring_calls_an_argument_is_one(self, path):
        wrong = []
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                wrong += [f"{node.name}: {name}" for name in documented(node) if name not in parameters(node)]
            elif isinstance(node, ast.ClassDef):
                made = [
                    part
                    for part in node.body
                    if isinstance(part, ast.FunctionDef) and part.name == "__init__"
                ]
                if made:
                    there = parameters(made[0])
                    wrong += [f"{node.name}: {name}" for name in documented(node) if name not in there]
        assert wrong == []


class TestPortability:
    @pytest.mark.parametrize("element", GATED, ids=lambda element: element.__qualname__)
    def test_an_element_with_a_gap_has_its_section(self, element):
        assert "\nPortability:\n" in inspect.getdoc(element)

    def test_a_gate_is_named_where_there_is_one(self):
        for element in (
            multiclouddb_api.AtTime,
            multiclouddb_api.Beginning,
            multiclouddb_api.EntireCluster,
            multiclouddb_api.EntireDatabase,
            multiclouddb_api.LogicalPartition,
            multiclouddb_api.OldItemStateMode,
            MulticloudDbClient.run_command,
        ):
            assert "`Capability." in inspect.getdoc(element).partition("Portability:")[2]


class TestIterator:
    def test_describes_every_setting_where_an_editor_looks_for_it(self):
        """Each setting has the same description as a keyword and as an attribute of the iterator."""
        settings = field_docstrings("multiclouddb_api/iterator_settings.py", "IteratorSettings")
        assert list(settings) == list(multiclouddb_api.IteratorSettings.__annotations__)
        fields = field_docstrings("multiclouddb_api/iterator.py", "ChangeFeedIterator")
        assert {name: fields[name] for name in settings} == settings


class TestScheduling:
    @pytest.mark.parametrize(
        "name", ["TOGETHER", "JVM_TESTS", "JVM_TESTS_APART", "WAITING", "COMPUTING", "LONG"]
    )
    def test_what_is_named_is_there(self, name):
        found = runpy.run_path(str(ROOT / "conftest.py"))
        assert found[name]
        for each in found[name]:
            path, _, test = each.partition("::")
            assert (ROOT / path).exists(), each
            words = [
                f"def {word}(" if word.startswith("test") else f"class {word}" for word in test.split("::")
            ]
            assert not test or all(word in (ROOT / path).read_text() for word in words), each

    def test_classes_that_wait_are_in_the_suite(self):
        for each in runpy.run_path(str(ROOT / "conftest.py"))["WAITING_CLASSES"]:
            assert hasattr(us8, each.strip(":")), each

    def test_tests_that_wait_and_tests_that_compute_have_workers_of_their_own(self):
        """Each group starts with its longest test. A worker that has no tests of its own kind left runs tests
        of the other kind.
        """
        found = runpy.run_path(str(ROOT / "conftest.py"))
        assert [found["waiting_workers"](count) for count in (1, 2, 3, 4, 8)] == [0, 1, 1, 2, 3]
        together, long, waits = found["TOGETHER"], found["LONG"][0], "tests/engine/test_time.py::test_a"
        units = {unit: {unit: False} for unit in ("tests/test_a.py::test_a", waits, f"{long}::test_a")}
        units |= {unit: {f"{unit}::a": False, f"{unit}::b": False} for unit in (min(together), "jvm")}
        queues = found["by_kind"](units)
        assert queues[False][-1] == "tests/test_a.py::test_a"
        assert queues[True][0] == "jvm"
        assert queues[True][-1] == waits
        assert sorted([*queues[True], *queues[False]]) == sorted(units)

    def test_all_that_share_a_spark_session_go_to_one_worker(self):
        started = tuple(runpy.run_path(str(ROOT / "conftest.py"))["JVM_TESTS"])
        using = {
            path.relative_to(ROOT).as_posix()
            for folder in (*FOLDERS, "tests", "docs", "demo")
            for path in (ROOT / folder).rglob("test_*.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef) and "spark" in {each.arg for each in node.args.args}
        }
        assert len(using) > 2
        assert [name for name in sorted(using) if not name.startswith(started)] == []


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
            for node in ast.walk(tree(path)):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    assert node.level == 0
                    names = [node.module]
                assert {name.partition(".")[0] for name in names} <= allowed, path

    def test_providers_are_unknown_to_the_iterator(self):
        for name in ("iterator.py", "pacing.py", "checkpointer.py"):
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
