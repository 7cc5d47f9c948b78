"""Defines the arguments and options of the commands, and the values that completion offers."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

_TIMES = ("now", "-1h", "-10m", "-1d")
_STARTS = ("beginning", *_TIMES, "@")
_SNAPSHOTS = ("snapshot", "snapshot:ordered", "snapshot:interleaved")
_SCOPES = ("collection", "database", "cluster", "partition:", "descendants:", "key:")
_SCHEMES = {
    "cosmos": "cosmos://",
    "dynamo": "dynamo://",
    "embedded": "embedded:///",
    "mongo": "mongodb://",
    "spanner": "spanner://",
}


# Typer leaves out the values that do not begin with what was typed.


def _complete_url() -> list[str]:
    """Return the URL form of each installed provider, and the TOML files in the folder."""
    from multiclouddb_api import installed_providers

    urls = [_SCHEMES.get(name, f"{name}://") for name in installed_providers()]
    files = sorted(str(path) for path in Path().glob("*.toml"))
    return [*urls, *files]


def _url_so_far() -> str | None:
    """Return the URL on the command line that the shell is completing."""
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    return next((word for word in words if "://" in word or word.endswith(".toml")), None)


def _complete_option() -> list[str]:
    from multiclouddb_cli.arguments import option_names

    url = _url_so_far()
    return [f"{name}=" for name in option_names(url)] if url else []


def _complete_collection() -> list[str]:
    from multiclouddb_cli.listing import known_collections

    url = _url_so_far()
    return [*known_collections(url)] if url else []


Url: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="cosmos://HOST, dynamo://REGION, mongodb://…, spanner://PROJECT/INSTANCE, "
        "embedded:///data/store.db, or a .toml file with the connection.",
        autocompletion=_complete_url,
    ),
]
Collection: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="COLLECTION", help="DATABASE/COLLECTION, or COLLECTION.", autocompletion=_complete_collection
    ),
]
Target: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="COLLECTION",
        help="DATABASE/COLLECTION or COLLECTION. With --scope database, give DATABASE; with --scope cluster, "
        "leave it out.",
        autocompletion=_complete_collection,
    ),
]
Database: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="DATABASE", help="List only the collections of this database.")
]
Token: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TOKEN",
        help="A token, @FILE with a token or a checkpoint, a checkpoint's URL (s3://bucket/prefix/NAME), "
        "table:TARGET for the position of a mirror (TARGET as in mirror), spark:CHECKPOINT, or - (stdin).",
    ),
]
CheckedToken: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="TOKEN", show_default=False,
        help="As in token inspect. Without it, URL is the file of a mirror, and stands for all its tables.",
    ),
]  # fmt: skip
MaxLag: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--max-lag",
        metavar="AGE",
        help="The highest age of a change that has not been read, such as 1h or 1h30m.",
    ),
]
Scope: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="SCOPE",
        help="collection, database, cluster, partition:ID, descendants:ID or key:JSON; "
        "the command partitions lists the IDs.",
        autocompletion=lambda: [*_SCOPES],
    ),
]
_TABLE = (
    "The table: delta:PATH, sqlite:PATH#TABLE, or postgres:DSN#TABLE, for example "
    "postgres:postgresql://host/shop#orders."
)
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FromAny: TypeAlias = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="START",
        help="beginning, now, a time (2026-01-31T12:00Z), an age (-1h), @FILE, or snapshot: all rows, then "
        "changes.",
        autocompletion=lambda: [*_STARTS[:2], *_SNAPSHOTS, *_STARTS[2:]],
    ),
]
To: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TIME",
        help="End after the changes up to this time or age (-10m), or up to now.",
        autocompletion=lambda: [*_TIMES],
    ),
]
Last: TypeAlias = Annotated[
    int | None,
    typer.Option("--last", min=1, max=10000, metavar="N", help="First print the N newest changes."),
]
Checkpoint: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Resume from this file, or URL (s3://bucket/prefix/NAME), if it exists, and save to it.",
    ),
]
JsonLines: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON event per line, with plain values.")
]
Exact: TypeAlias = Annotated[bool, typer.Option("--exact", help="Print the JSON that event_from_json reads.")]
Format: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="TEMPLATE",
        help="Print each event with a template: %k key, %s document, %y type, %{key.id}, \\n …",
    ),
]
UntilIdle: TypeAlias = Annotated[bool, typer.Option("--until-idle", help="End when no changes are left.")]
Want: TypeAlias = Literal["omit", "include", "require"]
State: TypeAlias = Annotated[
    Want,
    typer.Option(
        metavar="STATE",
        case_sensitive=False,
        help="Whether events contain the documents: omit, include or require.",
    ),
]
OldState: TypeAlias = Annotated[
    Want,
    typer.Option(
        metavar="STATE",
        case_sensitive=False,
        help="The same for the previous documents.",
    ),
]


class TypeChoice(StrEnum):
    """The kind of a change; typer takes a list of an enumeration, but not of a `Literal`."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


Type: TypeAlias = Annotated[
    list[TypeChoice] | None,
    typer.Option(
        "--type", metavar="TYPE", case_sensitive=False, help="Only create, update or delete; may be repeated."
    ),
]
Since: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Omit changes before this time or age.", autocompletion=lambda: [*_TIMES]
    ),
]
OnlyKey: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="Omit changes with any other partition key; works on every database."),
]
MaxEvents: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="End after N printed events.")
]
OnExpired: TypeAlias = Annotated[
    Literal["fail", "skip", "snapshot"],
    typer.Option(
        metavar="HOW",
        case_sensitive=False,
        help="What to do if changes are no longer kept: fail, skip them, or begin a snapshot.",
    ),
]
SkipPoison: TypeAlias = Annotated[
    bool, typer.Option("--skip-poison", help="Skip records that cannot be decoded.")
]
ProviderOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the provider; may be repeated.",
        autocompletion=_complete_option,
    ),
]
Wait: TypeAlias = Annotated[
    bool,
    typer.Option("--wait", help="Keep trying while the feed cannot be read, even if the first read fails."),
]
Timeout: TypeAlias = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="The time limit of one call.")
]
MaxScanRate: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0.001, metavar="RATE", help="The highest rate of a snapshot's scan, per second."),
]
Key: TypeAlias = Annotated[
    str | None, typer.Option(metavar="JSON", help="The partition key, for a token of one key.")
]
TargetTable: TypeAlias = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="TARGET",
        help=_TABLE,
    ),
]
Position: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="POSITION",
        help="What the sink has stored: spark:CHECKPOINT, a checkpoint's URL, @FILE with a token or a "
        "checkpoint, or a token.",
    ),
]
MirrorCollection: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[COLLECTION]",
        help="DATABASE/COLLECTION, or only the collection.",
        autocompletion=_complete_collection,
    ),
]
MirrorTarget: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help=_TABLE,
    ),
]
MirrorPosition: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--position",
        metavar="URL",
        help="A checkpoint's URL that keeps the position, for example s3://bucket/positions/orders; without "
        "it, the position is stored with the table.",
    ),
]
MirrorFrom: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="START",
        help="Where to begin if there is no position: snapshot, the default, beginning, or @FILE with a "
        "token up to which something else has filled the table.",
        autocompletion=lambda: [*_SNAPSHOTS, "beginning", "@"],
    ),
]
MirrorExpired: TypeAlias = Annotated[
    Literal["resnapshot", "fail"],
    typer.Option(
        "--on-expired",
        metavar="HOW",
        case_sensitive=False,
        help="What to do if changes are no longer kept: copy every row again (resnapshot), or fail.",
    ),
]
Follow: TypeAlias = Annotated[
    bool, typer.Option("--follow", help="Go on until SIGTERM or ctrl-C; without it, end when all is read.")
]
Resync: TypeAlias = Annotated[
    bool, typer.Option("--resync", help="Copy every row again, which repairs the table.")
]
AsideFolder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder of set_aside=, or of mirror --set-aside.")
]
SetAside: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--set-aside",
        metavar="FOLDER",
        help="Put what cannot be decoded, and rows that the table refuses, into files, and go on.",
    ),
]
StatusAside: TypeAlias = Annotated[
    Path | None,
    typer.Option("--set-aside", metavar="FOLDER", help="Show how many rows are set aside in this folder."),
]
SetAsideDocuments: TypeAlias = Annotated[
    bool, typer.Option("--set-aside-documents", help="Put the documents into these files too.")
]
MaxSetAside: TypeAlias = Annotated[
    int, typer.Option("--max-set-aside", min=1, metavar="N", help="End when more are set aside.")
]
ColumnsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--columns", metavar="FILE", help="columns.toml with the columns of the table."),
]
Refill: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--refill",
        help="Agree that another declaration is filled by a copy of every row; else it is refused.",
    ),
]
AdoptTable: TypeAlias = Annotated[
    bool,
    typer.Option("--adopt", help="Write into a table with rows that something else has written."),
]
Prove: TypeAlias = Annotated[
    bool, typer.Option("--prove", help="Then compare every row with the collection, as verify does.")
]
Spark: TypeAlias = Annotated[
    bool, typer.Option("--spark", help="Let Spark read, on this machine; on a cluster, see the page.")
]
Tombstones: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tombstones",
        metavar="AGE",
        help="After the run, remove rows of documents that were deleted longer ago, such as 30d.",
    ),
]
Compact: TypeAlias = Annotated[
    bool, typer.Option("--compact", help="After the run, merge the small files of a Delta table.")
]
MirrorEstimate: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Print what a copy would read, and whether rights and settings are there; write nothing.",
    ),
]
Listen: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Serve /metrics, /live and /ready there (mirror: --follow); HOST is localhost unless given.",
    ),
]
ProveEvery: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prove-every",
        metavar="AGE",
        help="With --follow: compare every row when AGE, such as 24h, has passed since the last proof.",
    ),
]
Repair: TypeAlias = Annotated[bool, typer.Option("--repair", help="Make each difference equal.")]
MaxRepairs: TypeAlias = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Repair at most N rows; by default 10 %, or 100."),
]
Force: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--force", help="Repair any number of rows, even if the table seems to be that of another collection."
    ),
]
Adopt: TypeAlias = Annotated[
    bool,
    typer.Option("--adopt", help="Treat a table that no sink has marked as the table of the collection."),
]
Sample: TypeAlias = Annotated[
    str | None, typer.Option(metavar="1/N", help="Compare one of N keys, for example 1/64.")
]
ComparedKeys: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="JSON",
        help='Compare only this key, such as {"id":"o-1"}, with look-ups; or @FILE with a key in each line. '
        "May be given several times.",
    ),
]
ComparedPartition: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--partition-key",
        metavar="JSON",
        help='Compare only the rows of this partition key, such as {"customer":"c-1"}.',
    ),
]
StateFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="The folder for what is read; removed at the end."),
]
Resume: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue to read the source where a killed run stopped; the table is read again."
    ),
]
Every: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="AGE",
        help="Compare again and again, so that no row's proof is older than AGE, such as 24h; needs --state.",
    ),
]
Metrics: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --every: write the metrics there, for Prometheus to collect."),
]
Estimate: TypeAlias = Annotated[
    bool, typer.Option("--estimate", help="Print rows, segments, units and time, and read nothing else.")
]
Record: TypeAlias = Annotated[
    bool,
    typer.Option("--record", help="Store with the table the time at which it was proved equal."),
]
Patience: TypeAlias = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for a sink that does not move.")
]
Check: TypeAlias = Annotated[
    Path | None,
    typer.Option("--check", metavar="FILE", help="Test the declaration in this file, such as columns.toml."),
]
Documents: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Read at most so many documents; 10,000 by default, and with --check all.",
    ),
]
ShowValues: TypeAlias = Annotated[
    bool, typer.Option("--show-values", help="Print the keys and values that differ.")
]
