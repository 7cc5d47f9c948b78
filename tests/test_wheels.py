"""Tests what users install: the wheel of every distribution, and a clean environment with these wheels."""

import json
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.xdist_group("jvm apart")

ROOT = Path(__file__).parents[1]
PROJECTS = sorted(
    path.parent
    for pattern in ("", "*/", "tools/emulators/", "providers/*/")
    for path in ROOT.glob(f"{pattern}pyproject.toml")
    if path.parent != ROOT / "tools"  # it is never published
)
LIST_CLEAN_ENVIRONMENT = """
import json
from importlib.metadata import distributions, entry_points

names = sorted(distribution.name for distribution in distributions())
providers = sorted(entry.name for entry in entry_points(group="multiclouddb.providers"))
print(json.dumps([names, providers]))
"""


def run(*command) -> str:
    """Return the output of a command that must succeed."""
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def test_wheel_holds_its_packages_and_nothing_else(wheels):
    """A wheel contains its packages and the type information, but no tests and no other distribution's
    packages.
    """
    for project in PROJECTS:
        settings = tomllib.loads((project / "pyproject.toml").read_text())
        stem = settings["project"]["name"].replace("-", "_")
        (wheel,) = wheels.glob(f"{stem}-{settings['project']['version']}-*.whl")
        files = ZipFile(wheel).namelist()
        stated = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        packages = [Path(each).name for each in stated]
        assert {name.split("/")[0] for name in files if ".dist-info/" not in name} == set(packages)
        assert {f"{package}/py.typed" for package in packages} <= set(files)


def test_distributions_share_one_version_and_require_no_other():
    """They use modules of each other that are in no public API, so a mixture of versions may not work."""
    projects = [tomllib.loads((project / "pyproject.toml").read_text())["project"] for project in PROJECTS]
    (version,) = {project["version"] for project in projects}
    stated = [each.get("optional-dependencies", {}) | {"": each.get("dependencies", ())} for each in projects]
    wanted = [Requirement(text) for each in stated for texts in each.values() for text in texts]
    ours = [each for each in wanted if each.name.startswith("multiclouddb")]
    assert len(ours) > 10
    assert {str(each.specifier) for each in ours} == {f"=={version}"}


def test_pip_installs_the_wheels_and_no_more(wheels, tmp_path):
    """Only the installation is tested here; docs/tests/test_printed_blocks.py also runs programs after it."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "-q", "--no-compile", "--find-links", wheels, "multiclouddb")
    run(*pip, "check")

    names, providers = json.loads(run(python, "-I", "-c", LIST_CLEAN_ENVIRONMENT))
    assert [name for name in names if name.startswith("multiclouddb")] == ["multiclouddb"]
    assert not {"pyspark", "pyarrow", "pytest", "typer"} & set(names)
    assert providers == ["embedded"]

    # The script is there without the packages of the extra `cli`: it answers in one line.
    script = tmp_path / "env" / "bin" / "multiclouddb"
    assert run(script, "--version").startswith("multiclouddb 0.")
    ran = subprocess.run([str(script), "providers"], capture_output=True, text=True, check=False)
    told = 'multiclouddb: the command needs typer; run: pip install "multiclouddb[cli]"\n'
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", told)
