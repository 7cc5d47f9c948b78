"""Defines the commands, and the error handling around them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from multiclouddb_cli.exits import INTERRUPTED, OK, TABLE

__all__ = ["app", "run"]

_NAME = "multiclouddb"


class Commands(TyperGroup):
    """Runs a command; every failure is reported as one line on stderr and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that the arguments name, and exit."""
        words = list(sys.argv[1:] if args is None else args)
        debug = _take_debug(words)
        self._main_shell_completion(extra, _NAME, complete_var)
        sys.exit(self._run(words, extra, debug=debug))

    def _run(self, words: list[str], extra: MutableMapping[str, Any], *, debug: bool) -> int:
        try:
            with self.make_context(_NAME, words, **extra) as context:
                self.invoke(context)
            sys.stdout.flush()
        except typer.Exit as error:
            return self._leave(error.exit_code)
        except (KeyboardInterrupt, typer.Abort):
            return self._leave(INTERRUPTED)
        except BrokenPipeError:
            return self._leave(OK)
        except Exception as error:  # noqa: BLE001 - a person reads one line, not a traceback
            from multiclouddb_cli.failure import report

            return self._leave(report(error, debug=debug))
        return OK

    def _leave(self, code: int) -> int:
        try:
            sys.stdout.flush()
        except OSError:  # it was reported already
            _silence()
        return code


def _silence() -> None:
    """Discard the rest of the output, so that the interpreter reports no error about the missing reader."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _take_debug(words: list[str]) -> bool:
    """Remove `--debug` from the arguments; it may be anywhere on the line."""
    ours = words[: words.index("--")] if "--" in words else words
    if "--debug" not in ours:
        return False
    words.remove("--debug")
    return True


app = typer.Typer(
    name=_NAME,
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExit codes:\n" + "\n".join(f"{code:5}  {meaning}" for code, meaning in TABLE.items()),
)
token_app = typer.Typer(rich_markup_mode=None, help="Inspect and check a continuation token.")
app.add_typer(token_app, name="token")

_Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="mongodb://…, dynamo://REGION, embedded:///data/store.db, or a .toml file with the connection.",
    ),
]
_Where = Annotated[str, typer.Argument(metavar="COLLECTION", help="DATABASE/COLLECTION, or COLLECTION.")]
_Target = Annotated[
    str | None,
    typer.Argument(
        metavar="COLLECTION",
        help="DATABASE/COLLECTION, or COLLECTION; DATABASE with --scope database, nothing with cluster.",
    ),
]
_Scope = Annotated[
    str,
    typer.Option(
        metavar="SCOPE", help="collection, database, cluster, partition:ID, descendants:ID or key:JSON."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_From = Annotated[
    str,
    typer.Option("--from", metavar="START", help="beginning, now, a time (2026-01-31T12:00Z), or @FILE."),
]
_FromAny = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="START",
        help="beginning, now, a time (2026-01-31T12:00Z), @FILE, or snapshot: all rows, then changes.",
    ),
]
_Token = Annotated[
    str, typer.Argument(metavar="TOKEN", help="A token, @FILE with one or with a checkpoint, or - (stdin).")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"{_NAME} {version('multiclouddb-cli')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; anywhere on the line.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Follow, measure and explain the change feeds of several databases."""


@app.command()
def tail(
    url: _Url,
    collection: _Target = None,
    start: _FromAny = "now",
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Resume from this file if it exists, and save to it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON event per line.")] = False,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when there is nothing more.")] = False,
    scope: _Scope = "collection",
    state: Annotated[
        str, typer.Option(metavar="STATE", help="Show documents: omit, include or require.")
    ] = "include",
    max_events: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N events.")] = None,
    skip_poison: Annotated[
        bool, typer.Option("--skip-poison", help="Skip records that cannot be decoded.")
    ] = False,
) -> None:
    """Print changes as they happen.

    The checkpoint is saved after the events before it are printed: the next run resumes without a gap,
    however this one ended. START applies when there is no checkpoint yet.
    """
    from multiclouddb_cli import tail as command
    from multiclouddb_cli.arguments import to_config, to_start, to_state, to_target

    address, kind = to_target(collection, scope)
    command.tail(
        to_config(url),
        command.Wish(
            address, to_start(start, snapshots=True), kind, to_state(state), checkpoint,
            as_json=as_json, until_idle=until_idle, max_events=max_events, skip_poison=skip_poison,
        ),
    )  # fmt: skip


@app.command(short_help="Show partitions, rates, lag and retention, live.")
def top(
    url: _Url,
    collection: _Target = None,
    start: _From = "now",
    scope: _Scope = "collection",
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to update.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
) -> None:
    """Show partitions, events/s, lag, watermark and retention headroom.

    With --from @FILE it shows the lag of a stored position and how long it is still kept. Nothing is changed
    or saved.
    """
    from multiclouddb_cli import top as command
    from multiclouddb_cli.arguments import to_config, to_start, to_target

    command.top(to_config(url), to_target(collection, scope), to_start(start), interval, once=once)


@app.command()
def partitions(
    url: _Url,
    collection: _Where,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_json: _Json = False,
) -> None:
    """Show the partitions and their lineage."""
    from multiclouddb_cli import partitions as command
    from multiclouddb_cli.arguments import to_address, to_config

    if mermaid and as_json:
        raise typer.BadParameter("give only one of them", param_hint="--mermaid and --json")
    command.partitions(to_config(url), to_address(collection), mermaid=mermaid, as_json=as_json)


@app.command(short_help="Show what each provider can do, and the alternatives.")
def capabilities(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="One database; all installed providers without it.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Show what each provider can do, and the alternative where it cannot; connects to nothing."""
    from multiclouddb_cli import capabilities as command
    from multiclouddb_cli.arguments import to_config

    command.capabilities(None if url is None else to_config(url), as_json=as_json)


@app.command(short_help="List the installed providers.")
def providers(as_json: _Json = False) -> None:
    """List the installed providers, and whether their SDKs can be imported."""
    from multiclouddb_cli import providers as command

    command.providers(as_json=as_json)


@token_app.command(short_help="Show which feed it belongs to and its positions, offline.")
def inspect(token: _Token, as_json: _Json = False) -> None:
    """Show the feed of a token, its age and its partitions; connects to nothing, shows no document's key."""
    from multiclouddb_cli import inspection
    from multiclouddb_cli.arguments import to_token

    inspection.inspect(to_token(token), as_json=as_json)


@token_app.command(short_help="Show whether it still resumes, and for how long.")
def check(
    url: _Url,
    token: _Token,
    key: Annotated[
        str | None, typer.Option(metavar="JSON", help="The partition key, for a token of one key.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Show whether a token still resumes, for how long, and whether it covers every partition.

    Nothing is changed. The exit code is 0 when it resumes and covers all, 10 when it resumes but does not
    lead to every open partition, and otherwise that of the error.
    """
    from multiclouddb_cli import checking
    from multiclouddb_cli.arguments import to_config, to_key, to_token

    wanted = None if key is None else to_key(key, "--key")
    checking.check(to_config(url), to_token(token), wanted, as_json=as_json)


def run() -> None:
    """The script `multiclouddb`."""
    # Without a handler, libraries would log to stderr.
    logging.getLogger().addHandler(logging.NullHandler())
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is written as an escape.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app()
