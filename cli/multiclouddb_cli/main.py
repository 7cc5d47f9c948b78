"""Defines the commands, and the error handling around them."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from multiclouddb_cli import options as cli
from multiclouddb_cli.exits import INTERRUPTED, OK, TABLE
from multiclouddb_cli.log import one_command

_NAME = "multiclouddb"
# Where a shell writes which line it wants to complete.
_COMPLETION = "_MULTICLOUDDB_COMPLETE"
_COMMANDS = "multiclouddb.commands"


class Commands(TyperGroup):
    """Runs a command, and reports every failure with one line on stderr and an exit code.

    Other distributions add commands with the entry point `multiclouddb.commands`: each names a `typer.Typer`.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, those of other distributions last."""
        from multiclouddb_api.entry_points import entry_points

        return [*super().list_commands(ctx), *sorted(point.name for point in entry_points(group=_COMMANDS))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; another distribution's is imported now."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        from multiclouddb_api.entry_points import entry_points

        offers = {point.value: point for point in entry_points(group=_COMMANDS) if point.name == cmd_name}
        if len(offers) > 1:
            from multiclouddb_api.registry import sole_offer

            sole_offer(cmd_name, _COMMANDS, "command")
        for point in offers.values():
            command = typer.main.get_command(point.load())
            command.name = cmd_name
            return command
        if cmd_name == "certify":
            raise typer.BadParameter('it is not installed; run: pip install "multiclouddb[certify]"')
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name and the command that the arguments begin with: `mirror status` before `mirror`."""
        name = " ".join(args[:2])
        found = self.commands.get(name)
        return super().resolve_command(ctx, args) if found is None else (name, found, args[2:])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return what the first word may be."""
        return [each for each in super().shell_complete(ctx, incomplete) if " " not in each.value]

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
        if os.environ.get(complete_var or _COMPLETION):
            return super().main(args, _NAME, complete_var, standalone_mode, windows_expand_args, **extra)
        words = list(sys.argv[1:] if args is None else args)
        debug = _take_debug(words)
        with one_command():
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
        except OSError:  # the failure was already reported
            _silence()
        return code


def _silence() -> None:
    """Discard the remaining output, or the interpreter would report that nobody reads it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _take_debug(words: list[str]) -> bool:
    """Remove `--debug` from the arguments; the option may be anywhere on the command line."""
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
set_aside_app = typer.Typer(rich_markup_mode=None, help="List what is set aside, or handle it again.")
app.add_typer(set_aside_app, name="set-aside")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"{_NAME} {version('multiclouddb')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error; may appear anywhere in the command."),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Follow, measure and explain the change feeds of several databases."""


@app.command()
def tail(
    context: typer.Context,
    url: cli.Url,
    collection: cli.Target = None,
    start: cli.FromAny = "now",
    to: cli.To = None,
    last: cli.Last = None,
    checkpoint: cli.Checkpoint = None,
    until_idle: cli.UntilIdle = False,
    max_events: cli.MaxEvents = None,
    scope: cli.Scope = "collection",
    state: cli.State = "include",
    old_state: cli.OldState = "omit",
    kinds: cli.Type = None,
    since: cli.Since = None,
    only_key: cli.OnlyKey = None,
    as_json: cli.JsonLines = False,
    exact: cli.Exact = False,
    template: cli.Format = None,
    on_expired: cli.OnExpired = "fail",
    skip_poison: cli.SkipPoison = False,
    wait: cli.Wait = False,
    timeout: cli.Timeout = 30.0,
    options: cli.ProviderOption = None,
    max_scan_rate: cli.MaxScanRate = None,
) -> None:
    """Print changes as they happen.

    In a line of text, also in a pipe, long keys and documents are cut with …; --json, --exact and -f print
    them whole.

    The checkpoint is saved after the events before it are printed: the next run resumes without a gap,
    however this run ended. What was written to a pipe counts as printed, also if its reader, such as head,
    ends without reading it. START and --last apply only if there is no checkpoint yet.
    """
    from multiclouddb_cli import tail as command
    from multiclouddb_cli.arguments import to_checkpoint, to_config, to_request, to_selection
    from multiclouddb_cli.rendering import renderer

    render = renderer(template, as_json=as_json, exact=exact)
    selection, file = to_selection(kinds, since, to, only_key), to_checkpoint(checkpoint)
    request = to_request(
        url, collection, start, scope, state, old_state, on_expired, options,
        max_scan_rate=max_scan_rate, last=last,
    )  # fmt: skip
    source = context.get_parameter_source("start")
    wish = command.Wish(
        request, render, selection, last, file, until_idle, max_events, skip_poison, wait, timeout,
        has_start=source is not None and source.name == "COMMANDLINE",
    )  # fmt: skip
    command.tail(to_config(url), wish)


@app.command(short_help="Keep a table equal to a collection.")
def mirror(
    context: typer.Context,
    url: cli.Url,
    collection: cli.MirrorCollection = None,
    target: cli.MirrorTarget = None,
    follow: cli.Follow = False,
    prove: cli.Prove = False,
    spark: cli.Spark = False,
    start: cli.MirrorFrom = None,
    on_expired: cli.MirrorExpired = "resnapshot",
    resync: cli.Resync = False,
    columns: cli.ColumnsFile = None,
    refill: cli.Refill = False,
    adopt: cli.AdoptTable = False,
    position: cli.MirrorPosition = None,
    set_aside: cli.SetAside = None,
    set_aside_documents: cli.SetAsideDocuments = False,
    max_set_aside: cli.MaxSetAside = 100,
    estimate: cli.MirrorEstimate = False,
    tombstones: cli.Tombstones = None,
    compact: cli.Compact = False,
    listen: cli.Listen = None,
    prove_every: cli.ProveEvery = None,
    max_scan_rate: cli.MaxScanRate = None,
    timeout: cli.Timeout = 30.0,
    options: cli.ProviderOption = None,
    as_json: cli.Json = False,
) -> None:
    """Bring a table up to date with a collection, and end; or follow it, with --follow.

    The first run copies every row, and each later one merges what has changed since. Killed at any moment, it
    goes on where it was. With --prove the exit code is that of verify: 11 if rows differ.

    Without COLLECTION, URL is a TOML file that has a [[table]] for each collection and its table; one that
    fails does not stop the others, and the exit code is the highest, but 18 only if there is no other.

    multiclouddb mirror status prints how a table is, and multiclouddb set-aside retry tries again what is set
    aside.
    """
    from multiclouddb_cli.arguments import to_address, to_age, to_config, to_options, to_start
    from multiclouddb_cli.failure import told
    from multiclouddb_cli.watched import to_place

    if estimate:
        known = (
            "url", "collection", "target", "position", "columns", "refill", "max_scan_rate", "options",
            "as_json", "estimate",
        )  # fmt: skip
        _check_only(context, known)
    if follow and prove:
        raise typer.BadParameter(
            "needs a run that ends: leave out --follow, or give --prove-every", param_hint="--prove"
        )
    for name, value in (("--listen", listen), ("--prove-every", prove_every)):
        if value is not None and not follow:
            raise typer.BadParameter("is for --follow", param_hint=name)
    if (collection is None) != (target is None) or (collection is None and position is not None):
        raise typer.BadParameter(
            "give both; or neither, with a TOML file that has [[table]]", param_hint="COLLECTION and --target"
        )
    if estimate:
        from multiclouddb_cli import estimating

        if collection is None or target is None:
            estimating.estimate_file(
                url, options or (), as_json=as_json, columns=columns, refill=refill,
                max_scan_rate=max_scan_rate,
            )  # fmt: skip
            return
        config = to_config(url)
        estimating.estimate(
            config, to_address(collection), target, position, as_json=as_json, columns=columns, refill=refill,
            max_scan_rate=max_scan_rate, provider_options=to_options(config, options or ()),
        )  # fmt: skip
        return
    from multiclouddb_cli import mirroring as command
    from multiclouddb_cli.log import begin_log

    if follow:
        begin_log()
    place = None if listen is None else to_place(listen)
    every = None if prove_every is None else to_age(prove_every, "--prove-every").total_seconds()
    settings: dict[str, Any] = {
        "follow": follow, "start": None if start is None else to_start(start, max_scan_rate=max_scan_rate),
        "on_expired": on_expired, "resync": resync, "columns": columns, "refill": refill, "adopt": adopt,
        "prove": prove, "max_scan_rate": max_scan_rate, "timeout_seconds": timeout, "set_aside": set_aside,
        "set_aside_documents": set_aside_documents, "max_set_aside": max_set_aside, "spark": spark,
        "compact": compact, "tombstones": None if tombstones is None else to_age(tombstones, "--tombstones"),
    }  # fmt: skip
    if collection is None or target is None:
        command.mirror_file(
            url, options or (), as_json=as_json, listen=place, prove_seconds=every, **settings
        )
        return
    config = to_config(url)
    with told(as_json=as_json):
        command.mirror(
            config, to_address(collection), target, as_json=as_json, listen=place, prove_seconds=every,
            position=position, provider_options=to_options(config, options or ()), **settings,
        )  # fmt: skip


def _check_only(context: typer.Context, known: Collection[str]) -> None:
    """Refuse an option that has no meaning for `--estimate`."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in known:
            raise typer.BadParameter("has no meaning for --estimate", param_hint=parameter.opts[0])


@app.command(name="mirror status", short_help="Show how a mirrored table is, or those of a file.")
def mirror_status(
    table: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="The table, as in mirror --target, or the file of a mirror."),
    ],
    position: cli.MirrorPosition = None,
    set_aside: cli.StatusAside = None,
    as_json: cli.Json = False,
) -> None:
    """Show the rows of a table, up to when it is right, the last proof, and what is set aside.

    Nothing is written, and the database is not asked, unless a file names the collections of a database
    by *. The exit code is 18 if something is set aside, or the table is marked as incomplete. For a file
    --json prints a list, and the exit code is the highest, but 18 only if there is no other.
    """
    from multiclouddb_cli import status as command

    command.status(table, position, set_aside, as_json=as_json)


@app.command(short_help="Prove that a table equals its collection, and repair it.")
def verify(
    url: cli.Url,
    collection: cli.Collection,
    target: cli.TargetTable,
    position: cli.Position = None,
    repair: cli.Repair = False,
    max_repairs: cli.MaxRepairs = None,
    force: cli.Force = False,
    adopt: cli.Adopt = False,
    sample: cli.Sample = None,
    key: cli.ComparedKeys = None,
    partition_key: cli.ComparedPartition = None,
    max_scan_rate: cli.MaxScanRate = None,
    state: cli.StateFolder = None,
    resume: cli.Resume = False,
    every: cli.Every = None,
    metrics: cli.Metrics = None,
    patience: cli.Patience = 600.0,
    show_values: cli.ShowValues = False,
    record: cli.Record = False,
    estimate: cli.Estimate = False,
    as_json: cli.Json = False,
    options: cli.ProviderOption = None,
) -> None:
    """Prove that a table equals its collection while both change, and repair it.

    The sink keeps running. Nothing is written to the collection, and the table only with --repair or
    --record. The exit code is 0 if the table is equal; multiclouddb --help explains 11 to 14.

    With --every the command does not end. It prints the costs, and after each pass one line: how old the
    oldest proof of a row is, and how many differences are open and healed.
    """
    from multiclouddb_cli import verifying as command
    from multiclouddb_cli.arguments import to_address, to_age, to_config, to_key, to_keys, to_options
    from multiclouddb_cli.failure import told

    if metrics is not None and every is None:
        raise typer.BadParameter("is for --every", param_hint="--metrics")
    if estimate and (key or partition_key is not None):
        raise typer.BadParameter("is for the whole table", param_hint="--estimate")
    config = to_config(url)
    with told(as_json=as_json):
        command.verify(
            config, to_address(collection), target, position, as_json=as_json, estimate=estimate,
            every=None if every is None else to_age(every, "--every"), metrics=metrics, repair=repair,
            max_repairs=max_repairs, force=force, adopt=adopt, sample=command.to_sample(sample),
            max_scan_rate=max_scan_rate, state=state, resume=resume, patience_seconds=patience,
            show_values=show_values, record=record, provider_options=to_options(config, options or ()),
            keys=to_keys(key, "--key") if key else None,
            partition_key=None if partition_key is None else to_key(partition_key, "--partition-key"),
        )  # fmt: skip


@app.command(short_help="Propose columns with types for a table, or test a declaration of them.")
def columns(
    url: cli.Url,
    collection: cli.Collection,
    check: cli.Check = None,
    documents: cli.Documents = None,
    max_scan_rate: cli.MaxScanRate = None,
    show_values: cli.ShowValues = False,
    as_json: cli.Json = False,
    options: cli.ProviderOption = None,
) -> None:
    """Propose a columns.toml from the documents of a collection, with what was seen at each path.

    Each type holds all values that were seen. Numbers of several kinds become a double if it has each of them
    exactly, else a decimal, and a string if no decimal has room for them. Texts stay texts: of days, the
    comment says that date fits too. Nothing is proposed for a path that fewer than 20 documents have.

    With --check, print what does not fit into a declaration, with three keys for each column; the exit code
    is 17 if there is anything, and 0 if the declaration has misfits = "rescue", which refuses nothing.
    """
    from multiclouddb_cli import proposing as command
    from multiclouddb_cli.arguments import to_address, to_config, to_options

    config = to_config(url)
    command.propose(
        config, to_address(collection), to_options(config, options or ()), check=check, most=documents,
        max_scan_rate=max_scan_rate, as_json=as_json, show_values=show_values,
    )  # fmt: skip


@app.command(short_help="List the collections of a database.")
def collections(url: cli.Url, database: cli.Database = None, as_json: cli.Json = False) -> None:
    """List the collections of a database, one per line, in the form that the other commands accept."""
    from multiclouddb_cli import listing
    from multiclouddb_cli.arguments import to_config

    listing.collections(to_config(url), database, as_json=as_json)


@app.command()
def partitions(
    url: cli.Url,
    collection: cli.Collection,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_json: cli.Json = False,
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
        str | None, typer.Argument(metavar="URL", help="One database; without it, all installed providers.")
    ] = None,
    as_json: cli.Json = False,
) -> None:
    """Show what each provider can do, and an alternative for what it cannot do. No connection is made."""
    from multiclouddb_cli import listing as command
    from multiclouddb_cli.arguments import to_config

    command.capabilities(None if url is None else to_config(url), as_json=as_json)


@app.command(short_help="List the installed providers.")
def providers(
    check: Annotated[
        bool, typer.Option("--check", help="Import each provider with its SDK, and show what fails.")
    ] = False,
    as_json: cli.Json = False,
) -> None:
    """List the installed providers, and with --check whether their SDKs can be imported."""
    from multiclouddb_cli import listing as command

    command.providers(check=check, as_json=as_json)


@app.command(short_help="Check many positions on a schedule, and serve the lags for Prometheus.")
def exporter(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file with [[position]] entries.")],
    listen: cli.Listen = "9187",
    every: Annotated[
        str, typer.Option("--every", metavar="AGE", help="The time between two checks of a position.")
    ] = "1m",
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, metavar="N", help="How many checks run at the same time.")
    ] = 4,
    limit: Annotated[
        float, typer.Option("--limit", min=1, metavar="SECONDS", help="When a check is killed.")
    ] = 60.0,
    once: Annotated[
        bool, typer.Option("--once", help="Check each position once, print the metrics, and end.")
    ] = False,
) -> None:
    """Check stored positions on a schedule, and serve lag and headroom at /metrics for Prometheus.

    An entry has name, url and position, as token check takes them, and perhaps max_lag and options. What a
    check does not find out within its limit is not known: known is 0, and there is no lag.
    """
    from multiclouddb_cli import exporter as command
    from multiclouddb_cli.arguments import to_age
    from multiclouddb_cli.watched import to_place

    place = None if once or listen is None else to_place(listen)
    seconds = to_age(every, "--every").total_seconds()
    command.export(file, place, seconds, at_once, limit, once=once)


@token_app.command(short_help="Show the feed and the positions of a token, offline.")
def inspect(token: cli.Token, as_json: cli.Json = False) -> None:
    """Show the feed, the age and the partitions of a token.

    The command makes no connection, and it shows no document keys.
    """
    from multiclouddb_cli import tokens
    from multiclouddb_cli.arguments import to_token

    tokens.inspect(to_token(token), as_json=as_json)


@token_app.command(short_help="Show whether a token can still be resumed, and for how long.")
def check(
    url: cli.Url,
    token: cli.CheckedToken = None,
    max_lag: cli.MaxLag = None,
    key: cli.Key = None,
    options: cli.ProviderOption = None,
    as_json: cli.Json = False,
) -> None:
    """Show whether a token can be resumed, for how long, and whether it covers every partition.

    Nothing is changed. The exit code is 0 if all is well; multiclouddb --help explains the others. Coverage
    is checked only for a whole collection of a database that may list partitions late.

    --max-lag limits the age of a change after the token, by the service's clock, not the age of the token:
    the token of an idle feed may be old.

    The URL of the plan of workers that share a feed (the page "Spread over machines") stands for all their
    positions: the lag is that of the oldest one. So does the file of a mirror, without a TOKEN, for the
    positions of its tables.
    """
    from multiclouddb_cli import tokens
    from multiclouddb_cli.arguments import (
        to_age,
        to_config,
        to_group,
        to_key,
        to_options,
        to_tables,
        to_token,
    )
    from multiclouddb_cli.failure import told

    limit = None if max_lag is None else to_age(max_lag, "--max-lag")
    wanted = None if key is None else to_key(key, "--key")
    with told(as_json=as_json, answer=tokens.not_read):
        config = to_config(url)
        chosen = to_options(config, options or ())
        group = to_tables(url) if token is None else to_group(token)
        text = "" if token is None or group is not None else to_token(token)
    if group is not None:
        from multiclouddb_cli.positions import check_group

        check_group(config, group, chosen, max_lag=limit, as_json=as_json)
    else:
        tokens.check(config, text, wanted, chosen, max_lag=limit, as_json=as_json)


@set_aside_app.command(name="list", short_help="List the records of a folder.")
def list_set_aside(folder: cli.AsideFolder, as_json: cli.JsonLines = False) -> None:
    """List what is set aside, in the order of the changes, with keys and reasons.

    Long keys are cut with …. With --json each line is one file, with the whole key, and with the document if
    it was kept.
    """
    from multiclouddb_cli import set_aside

    set_aside.list_records(folder, as_json=as_json)


@set_aside_app.command(name="retry", short_help="Try again what is set aside.")
def retry_set_aside(
    folder: cli.AsideFolder,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="Your handler of one event, as MODULE:FUNCTION; a table, as in mirror --target; or the file "
            "of a mirror.",
        ),
    ],
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="The database; a handler needs it if no documents are in FOLDER."),
    ] = None,
    options: cli.ProviderOption = None,
    as_json: cli.Json = False,
) -> None:
    """Give a handler its events again, or write the rows of a mirror, in the order of the changes.

    What succeeds leaves the folder. Of a key whose event a handler cannot handle, the later ones wait.
    Without documents in the folder, each document is read from URL as it is now, and a row of a table always
    is; a newer row is never replaced. Worker and mirror may run meanwhile. For a file --json prints a list.
    The exit code is 18 if something is left.
    """
    from multiclouddb_cli import set_aside

    set_aside.retry(folder, to, url, options or (), as_json=as_json)


def run() -> None:
    """Run the command that the arguments name."""
    if not {"--help", "-h"} & set(sys.argv):  # this import takes a tenth of the time of `--help`
        import logging

        # Without this handler, libraries would log to stderr, also while the shell completes a word.
        logging.getLogger().addHandler(logging.NullHandler())
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding does not support is written as an escape sequence.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app()
    except SystemExit as error:
        if error.code:
            _end(int(error.code))
        raise


def _end(code: int) -> None:
    """End the process at once, because a thread that is waiting for a silent host would keep it alive."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
