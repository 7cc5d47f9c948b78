"""Reports a failure with one line on stderr and an exit code.

On a terminal, a link to the documentation is also printed.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import orjson
import typer

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError
from multiclouddb_api.redaction import redact_url
from multiclouddb_cli.exits import FAILURE, USAGE, exit_code
from multiclouddb_cli.log import say
from multiclouddb_cli.screen import printable, safe_json
from multiclouddb_spi.faults import without_data

# Maps words in a message of the library to the command-line options with the same effect.
_ADVICE: Final = (
    ("Resnapshot", "tail --on-expired snapshot"),
    ("SkipToOldest", "tail --on-expired skip"),
    ("CosmosOptions(backfill=True)", "--option backfill=true"),
    ("EmbeddedOptions(backfill=True)", "--option backfill=true"),
    ("allow_missing", "--option allow_missing=true"),
    ('after_invalidate="follow"', "--option after_invalidate=follow"),
    ("max_scan_rate", "tail --from snapshot --max-scan-rate RATE"),
    ("SnapshotOrder.ORDERED", "tail --from snapshot:ordered"),
    ("SnapshotOrder.INTERLEAVED", "tail --from snapshot:interleaved"),
    ("event.timestamp", "tail --from beginning --since TIME"),
    ("Beginning()", "tail --from beginning"),
    ("Now()", "tail --from now"),
    ("event.key", "tail --only-key JSON"),
    ("timeout_seconds", "tail --timeout SECONDS"),
    ("max_outage_seconds", "tail --wait"),
    ("list_physical_partitions", "multiclouddb partitions prints them"),
    ("with_descendants=True", "--scope descendants:ID"),
    ("with_descendants=False", "--scope partition:ID"),
    ("PhysicalPartition(…)", "--scope partition:ID"),
    ("INCLUDE_IF_AVAILABLE", "--state include"),
    ("old_item_state_mode=OMIT", "--old-state omit"),
    ("new_item_state_mode=OMIT", "--state omit"),
    ("ResourceAddress(", "DATABASE/COLLECTION"),
    ("EntireDatabase()", "--scope database"),
    ("EntireCluster()", "--scope cluster"),
    ("native_client", "a .toml file or the environment"),
    ("connection={", "the table [connection] of a .toml file"),
)


def on_the_command_line(message: str) -> str:
    """Return the message, followed by the command-line options that match its advice."""
    _, _, way_out = message.partition("; ")
    found = dict.fromkeys(ours for words, ours in _ADVICE if words in way_out)
    return f"{message}; here: {', or '.join(found)}" if found else message


# A password that is not percent-encoded may contain a space.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^\n'\"()]*@)?\S+")
_BEGIN: Final = "Traceback (most recent call last):\n"
_BEHIND: Final = "\nwhich caused\n\n"
_ENDS: Final = re.compile(r"['\"`)\].,;]*$")


def report(error: Exception, *, debug: bool) -> int:
    """Print the error for the user, and return the exit code."""
    code, line = _line(error)
    with suppress(BrokenPipeError):
        if debug:
            lines = scrub(_traces(error).rstrip()).split("\n")
            typer.echo("\n".join(map(printable, lines)), err=True)
        say(f"error: {printable(scrub(' '.join(line.split())))}")
        if isinstance(error, MulticloudDbError) and not debug and sys.stderr.isatty():
            # In a log, an error must stay on one line, so the link is omitted. A traceback already contains
            # the link.
            link = error.help_url
            typer.echo(link if os.environ.get("NO_COLOR") else typer.style(link, dim=True), err=True)
    return code


def facts_of(error: MulticloudDbError) -> dict[str, str | None]:
    """Return what a program is told of an error."""
    reason = None if error.reason is None else str(error.reason)
    return {"category": str(error.category), "reason": reason, "message": scrub(error.message)}


@contextmanager
def told(
    *,
    as_json: bool,
    answer: Callable[[MulticloudDbError], object] = lambda error: {"error": facts_of(error)},
) -> Iterator[None]:
    """With `as_json`, print an error of the block as JSON too, so that a program finds its reason.

    Args:
        as_json: Whether the command prints JSON.
        answer: Makes what is printed of an error.
    """
    try:
        yield
    except MulticloudDbError as error:
        if as_json:
            typer.echo(safe_json(orjson.dumps(answer(error))))
        raise


@contextmanager
def installed(what: str) -> Iterator[None]:
    """Say what to install if an import in the block fails.

    Args:
        what: What needs it, for the message.
    """
    try:
        yield
    except ImportError as error:
        raise MulticloudDbError(
            f'{what}: cannot import {error.name}; run: pip install "multiclouddb[verify]"',
            ErrorDetail(ErrorCategory.INVALID_REQUEST, reason=ErrorReason.NOT_INSTALLED),
        ) from error


def _traces(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, in Python's format."""
    is_ours = isinstance(error, MulticloudDbError)
    parts: list[str] = []
    link: BaseException | None = error
    while link is not None:
        lines = traceback.format_exception(link, chain=False)
        if is_ours and not isinstance(link, MulticloudDbError):
            kind = f"{type(link).__module__}.{type(link).__qualname__}\n"
            lines = [_BEGIN, *traceback.format_tb(link.__traceback__), kind]
        parts.append("".join(lines))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return _BEHIND.join(reversed(parts))


def _line(error: Exception) -> tuple[int, str]:
    if isinstance(error, MulticloudDbError):
        message = on_the_command_line(error.message)
        if error.category == ErrorCategory.PROVIDER_ERROR and error.detail.skip_token is not None:
            message += "; tail --skip-poison skips it"
        return exit_code(error.category), f"[{error.category}] {message}"
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "multiclouddb"
        # These words from typer contain no information.
        said = error.format_message().rstrip(".").replace("Value error, ", "")
        return USAGE, f"[USAGE] {said}; see {command} --help"
    if isinstance(error, OSError):  # the library wraps its errors, so this error comes from our output
        return FAILURE, f"[OUTPUT] cannot be written: {error.strerror or error}"
    said = f"{type(error).__name__}: {without_data(str(error))}"
    return FAILURE, f"[UNEXPECTED] {said}; run it again with --debug and report it"


def scrub(text: str) -> str:
    """Return the text with every URL redacted."""

    def redacted(match: re.Match[str]) -> str:
        url = match.group()
        end = _ENDS.search(url)
        assert end is not None
        return redact_url(url[: end.start()]) + url[end.start() :]

    return _URL.sub(redacted, text)
