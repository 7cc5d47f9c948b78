"""Tests the extras: each named extra exists, `all` contains all of them, and `spark` contains the whole
pipeline.
"""

import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECTS = {
    found["name"]: found
    for file in [ROOT / "pyproject.toml", *ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")]
    for found in [tomllib.loads(file.read_text())["project"]]
}
EXTRAS = {name: set(found.get("optional-dependencies", {})) for name, found in PROJECTS.items()}
MAIN = PROJECTS["multiclouddb"]["optional-dependencies"]
# A requirement in a text; it may contain a placeholder: `multiclouddb[{provider_id}]`.
NAMED = re.compile(r"(?<![\w-])(multiclouddb(?:-[a-z]+)*)\[([a-z{][^\]\s]*)\]")


def texts():
    """Return the texts of the repository, without what was built and what was installed."""
    apart = {".venv", "tests", "dist", "site", "build"}
    for folder, below, files in os.walk(ROOT):
        below[:] = sorted(name for name in below if name not in apart)
        for name in sorted(files):
            if name.endswith((".py", ".md", ".toml")) or name == "Makefile":
                yield Path(folder, name)


def named():
    """Find every place in the texts that names an extra; return the file, the distribution and the extra."""
    for path in texts():
        for distribution, extras in NAMED.findall(path.read_text(encoding="utf-8")):
            for extra in extras.split(","):
                yield path.relative_to(ROOT).as_posix(), distribution, extra.strip()


def test_every_extra_that_is_named_exists():
    found = list(named())
    assert {"README.md", "multiclouddb_api/registry.py", "spark/pyspark_multiclouddb/session.py"} <= {
        file for file, _, _ in found
    }
    # In the texts that contain a placeholder, it stands for the providers below.
    fixed = [each for each in found if each[2] != "{provider_id}"]
    assert [each for each in fixed if each[2] not in EXTRAS.get(each[1], ())] == []


@pytest.mark.parametrize("provider", ["cosmos", "dynamo", "mongo", "spanner"])
def test_a_provider_that_messages_name_is_an_extra_and_can_be_found(provider):
    (requirement,) = MAIN[provider]
    points = PROJECTS[re.match(r"[\w-]+", requirement)[0]]["entry-points"]["multiclouddb.providers"]
    assert provider in points


def test_the_extra_of_spark_is_the_whole_pipeline():
    """The package that contains only the source does not require PySpark, because pip would replace a
    platform's Spark.
    """
    source, pyspark = MAIN["spark"]
    assert pyspark.startswith("pyspark>=")
    ((_, extras),) = NAMED.findall(source)
    assert set(extras.split(",")) == EXTRAS["multiclouddb-spark"] == {"delta", "java"}
    assert not any("pyspark" in each for each in PROJECTS["multiclouddb-spark"]["dependencies"])
