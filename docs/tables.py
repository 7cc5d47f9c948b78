"""Makes the page that compares the databases; `docs/generate.py` calls this module.

Facts that the code contains are taken from the code; `docs/databases.toml` contains the other facts.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from multiclouddb_api import Capability, CapabilitySet, Support

_ROOT: Final = Path(__file__).resolve().parent.parent
_MARKS: Final = {Support.NATIVE: "yes", Support.EMULATED: "opt-in", Support.UNSUPPORTED: "—"}
DATABASES: Final = {
    "cosmos": "Cosmos DB",
    "dynamo": "DynamoDB",
    "embedded": "embedded",
    "mongo": "MongoDB",
    "spanner": "Spanner",
}
"""Maps each provider id to its heading."""
_PAGES: Final = dict(zip(DATABASES, ("cosmos", "dynamodb", "embedded", "mongodb", "spanner"), strict=True))


def _table(head: list[str], rows: Iterator[list[str]]) -> str:
    under = f"|{'---|' * len(head)}"
    return "\n".join([f"| {' | '.join(head)} |", under, *(f"| {' | '.join(row)} |" for row in rows)])


def _words(capability: Capability) -> str:
    return capability.value.removeprefix("change_feed_").replace("_", " ")


def _data() -> dict[str, Any]:
    return tomllib.loads(_read("docs/databases.toml"))


def databases_page(known: Mapping[str, CapabilitySet]) -> str:
    """Make the page that compares the capabilities and other properties of the databases."""
    head = ["", *(f"[{title}](../databases/{_PAGES[name]}.md)" for name, title in DATABASES.items())]
    marks = {item: [_MARKS[known[name][item].support] for name in DATABASES] for item in Capability}
    links = {item: f"[{_words(item)}](capabilities.md#{item.name.lower()})" for item in Capability}
    everywhere = [links[item] for item in Capability if {*marks[item]} == {_MARKS[Support.NATIVE]}]
    able = _table(head, ([links[item], *row] for item, row in marks.items() if links[item] not in everywhere))
    data = _data()
    facts, months = (
        _table(head, ([row["title"], *(row[name] for name in DATABASES)] for row in data[rows]))
        for rows in ("facts", "months")
    )
    return f"""---
hide: [toc]
---

# Which database can do what

The page of each database has set-up, permissions, costs, limits, and which servers of its protocol work. The
[portability warnings](../configuration.md#portability-warnings) say what to do about a difference.

## Capabilities

On every database: {", ".join(everywhere)}. Every feed may start at `Now()` or at a stored token.

{able}

*opt-in*: multiclouddb emulates it if the request asks for that. —: the request is refused with
[`UNSUPPORTED_CAPABILITY`](errors.md#unsupported_capability), and the error has an alternative.

## Retention, order, precision and cost

{facts}

Figures about services are those of the vendors' documentation.

## What a month costs

{data["month"].strip()}

{months}

{data["prices"].strip()}

## Versions that work together

All tests ran with the newest of these versions, and those of databases, sinks and `verify` also with the
oldest ([what is allowed](../installation.md#versions-of-other-packages), [which versions of Spark
ran](spark-cluster.md#what-was-run)).

{_versions(data["versions"])}

Servers: {data["servers"].strip()}

---

*Made by `python docs/generate.py` from the capabilities of the providers, the tested versions, and
`docs/databases.toml`.*
"""


def _versions(packages: Mapping[str, str]) -> str:
    """Make the table of the oldest and newest versions of packages and of Python with which tests run."""
    [pythons] = re.findall(r"^ +python: (\[.*\])$", _read(".github/workflows/ci.yml"), re.MULTILINE)
    low, *_, high = ast.literal_eval(pythons)
    rows = [["", "Python", low, high]]
    files = _read("requirements-oldest.txt"), _read("requirements.txt")
    for package, used in packages.items():
        # A package may have a version for each version of Python; the last is the newest.
        pinned = [re.findall(rf"^{package}==([^ ;\\]+)", text, re.MULTILINE)[-1] for text in files]
        rows.append([used, package, *pinned])
    return _table(["for", "package", "oldest", "newest"], iter(rows))


def _read(name: str) -> str:
    return (_ROOT / name).read_text(encoding="utf-8")
