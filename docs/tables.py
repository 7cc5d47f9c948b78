"""Makes two pages: a comparison of the databases, and a list of all options with their defaults.

`docs/generate.py` calls this module. Facts that the code contains are taken from the code;
`docs/databases.toml` contains the other facts.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs

from multiclouddb_api import (
    Capability,
    CapabilitySet,
    ChangeFeedIterator,
    ChangeFeedRequest,
    ClientConfig,
    OperationOptions,
    Snapshot,
    Support,
)
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_embedded import EmbeddedOptions
from multiclouddb_mongo import MongoOptions, RunCommandOptions, RunCursorCommandOptions

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
OPTIONS: Final[Mapping[str, tuple[type, ...]]] = {
    "A client": (ClientConfig,),
    "A request": (ChangeFeedRequest, OperationOptions, Snapshot),
    "An iterator": (ChangeFeedIterator,),
}
"""Maps each heading of the options page to the classes whose options are listed under it."""
ONE_DATABASE: Final = {
    CosmosOptions: "a request to Cosmos DB",
    EmbeddedOptions: "a request to the embedded store",
    MongoOptions: "a request to MongoDB",
    RunCommandOptions: "`run_command`",
    RunCursorCommandOptions: "`run_cursor_command`, which also takes those of `run_command`",
}
"""Maps each class of one database to what its options are for; their page has the rest."""
_BASES: Final = {RunCursorCommandOptions: RunCommandOptions}
"""Maps each class to the class whose fields it repeats."""
_WHOLE: Final = {
    ClientConfig: "api.md#multiclouddb_api.ClientConfig",
    ChangeFeedRequest: "api-requests.md#multiclouddb_api.ChangeFeedRequest",
    OperationOptions: "api.md#multiclouddb_api.OperationOptions",
    Snapshot: "api-requests.md#multiclouddb_api.Snapshot",
    ChangeFeedIterator: "api-workers.md#multiclouddb_api.ChangeFeedIterator",
    CosmosOptions: "cosmos.md#multiclouddb_cosmos.CosmosOptions",
    EmbeddedOptions: "embedded.md#multiclouddb_embedded.EmbeddedOptions",
    MongoOptions: "mongo.md#multiclouddb_mongo.MongoOptions",
    RunCommandOptions: "mongo.md#multiclouddb_mongo.RunCommandOptions",
    RunCursorCommandOptions: "mongo.md#multiclouddb_mongo.RunCursorCommandOptions",
}
"""Maps each class to the page with the whole text of its options."""
_DEFAULT: Final = re.compile(r"[;,:] (?:and )?(?:[\w.()`]+|the entire collection) by default\Z")
_FIRST: Final = re.compile(r"(?<=[\w`)\"])\. (?=[A-Z0-9`\"])")


def _table(head: list[str], rows: Iterator[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


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

The page of each database has set-up, permissions, costs and limits. The [portability
warnings](../configuration.md#portability-warnings) say what to do about a difference.

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


def described(kind: type) -> dict[str, str]:
    """Map each field of a class to the docstring below the field; inherited fields are omitted."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, text in itertools.pairwise(tree.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                texts[name] = " ".join(words.split())
    return texts


def _default(field: attrs.Attribute[Any]) -> str:
    match field.default:
        case attrs.NOTHING:
            return "required"
        case attrs.Factory(factory=factory):  # type: ignore[misc]
            return f"`{factory()!r}`"
        case value if hasattr(value, "name") and hasattr(value, "value"):
            return f"`{type(value).__name__}.{value.name}`"
        case value:
            return f"`{value!r}`"


def _short(text: str) -> str:
    """Return the first sentence of a docstring, or two if the first is very short, without the default."""
    first, *rest = _FIRST.split(text)
    words = f"{first}. {rest[0]}" if rest and len(first.split()) < 6 else first
    return _DEFAULT.sub("", words.rstrip("."))


def _rows(kind: type) -> Iterator[list[str]]:
    texts = described(kind)
    repeated = set(attrs.fields_dict(_BASES[kind])) if kind in _BASES else set()
    for field in attrs.fields(kind):
        if field.init and field.name in texts and field.name not in repeated:
            text = _short(texts[field.name]).replace("|", "\\|")
            yield [f"`{field.name}`", _default(field), text[0].upper() + text[1:]]


def connection_names(provider: str) -> tuple[str, ...]:
    """Return the names of the options that a provider accepts in `connection`."""
    names: tuple[str, ...] = import_module(f"multiclouddb_{provider}.config")._OPTIONS
    return names


def options_page() -> str:
    """Make the page with every option of the Python API, with its default and its meaning."""
    parts = []
    for heading, kinds in OPTIONS.items():
        tables = []
        for kind in kinds:
            table = _table(["option", "default", "what it is"], _rows(kind))
            tables.append(f"### {kind.__name__}\n\n[The whole text]({_WHOLE[kind]})\n\n{table}")
        parts.append(f"## {heading}\n\n" + "\n\n".join(tables))
    names = _table(
        ["", "for", "options"],
        (
            [f"[`{kind.__name__}`]({_WHOLE[kind]})", use, ", ".join(row[0] for row in _rows(kind))]
            for kind, use in ONE_DATABASE.items()
        ),
    )
    texts = _data()["connection"]
    settings = "\n\n".join(
        f"### {title}\n\n" + "\n".join(f"- `{key}`: {texts[name][key]}" for key in connection_names(name))
        for name, title in DATABASES.items()
    )
    return f"""# Options

Every option of the Python API with its default, and a sentence about it; the link above each table leads
to the rest. Spark's options are [on its page](spark.md#options). In a [TOML
file](../configuration.md#connect), the fields of `ClientConfig` are top-level keys, and `connection` is a
table.

{parts[0]}

## The connection

What `ClientConfig.connection` may contain. Any other name is refused, and so is a key, token or password
except MongoDB's: [credentials](../configuration.md#secrets-and-the-environment) come from the vendor's chain.

{settings}

{(chr(10) * 2).join(parts[1:])}

## One database only

{names}

---

*Made by `python docs/generate.py` from the classes and their docstrings.*
"""
