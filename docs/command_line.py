"""Makes the transcript of the command line for the documentation: `python docs/command_line.py FILE`.

The script fills a small store, runs the commands as a user would, and writes their output as Markdown.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

from multiclouddb_embedded import EmbeddedStore
from testing.command_process import CommandProcess

_HEAD: Final = """# The command line at work

`pip install "multiclouddb[cli]"` installs the command; add the extra of your database. `URL` is a URL that
`connect` accepts, or the path of a [TOML file](../configuration.md#connect). For a password, use a file that
reads it from the environment, because other users of the machine can see a command's arguments. [All
options](#all-options) and exit codes are at the end.

`multiclouddb providers` prints what is installed, and `multiclouddb capabilities` what each provider can do,
with its [notes](capabilities.md).
"""
_SHOWN: Final = "/data/shop.db"
_URL: Final = f"embedded://{_SHOWN}"
_LAG: Final = 1
"""The age, in seconds, beyond which an unread change is late in the transcript."""
_REPEATED: Final = re.compile(
    r"^  URL <str> +cosmos:.*\n(?: {12,}.*\n)*|^  -h, --help +Show this message and exit\.(?:\n|$)",
    re.MULTILINE,
)
"""What each help text repeats, and the page explains once."""
_STEPS: Final = (
    ("## collections", f"multiclouddb collections {_URL}"),
    ("## tail\n\nThe first run prints changes, and the second resumes at its checkpoint:",
     f"multiclouddb tail {_URL} main/orders --from beginning --checkpoint orders.pos --max-events 4",
     f"multiclouddb tail {_URL} main/orders --checkpoint orders.pos --until-idle --state omit "
     "--max-events 2"),
    ("The changes of a time span and one key:",
     f"multiclouddb tail {_URL} main/orders --from -1h --until-idle --only-key '{{\"id\": \"o-2\"}}'"),
    ("As JSON, in the exact JSON that `event_from_json` reads (`--exact`), or the newest ones in a format of "
     "your own:",
     f"multiclouddb tail {_URL} main/orders --from beginning --max-events 1 --json",
     f"multiclouddb tail {_URL} main/orders --last 3 --until-idle --format %y:%{{key.id}}:%{{new.total}}"),
    ("## partitions\n\n`tail --scope partition:p2` reads one of them. With `--mermaid` you get a diagram:",
     f"multiclouddb partitions {_URL} main/orders"),
    ("## token\n\nWhat is in a checkpoint:",
     "multiclouddb token inspect @orders.pos"),
    ("Can a read resume from it, and is it behind ([Am I behind?](metrics.md#am-i-behind))?",
     f"multiclouddb token check {_URL} @orders.pos --max-lag {_LAG}s"),
    ("## columns\n\n`multiclouddb columns URL COLLECTION` proposes a [columns.toml](columns.md) from at "
     "least 20 documents. With\n`--check` it prints what does not fit into a declaration, here one with "
     '`status = "string"` and\n`total = "boolean"`:',
     f"multiclouddb columns {_URL} main/orders --check columns.toml"),
    ("## All options\n\n`multiclouddb COMMAND --help` prints the options of a command. These pages explain "
     "those of\n[`mirror` and `mirror status`](../jobs/mirror-nightly.md),\n"
     "[`set-aside retry`](../jobs/react-to-changes.md#a-change-that-the-handler-cannot-digest),\n"
     "[`columns`](columns.md#declare-them), [`verify`](../jobs/prove-and-repair.md),\n"
     "[`token check`](metrics.md#am-i-behind), "
     "[`exporter`](metrics.md#forty-readers-one-process)\nand [`certify`](../project/certify.md).",
     "multiclouddb --help"),
    ("### Options of tail", "multiclouddb tail --help"),
)  # fmt: skip


def _fill(path: Path) -> None:
    with EmbeddedStore(path, durable=False) as store:
        store.create_collection("orders", 2, retention=timedelta(hours=24), images="new_and_old")
        for number in range(8):
            store.put("orders", f"o-{number}", {"status": "new", "total": 10 * number})
        _, upper = store.split("orders", "p0")
        for number in range(0, 8, 2):
            store.put("orders", f"o-{number}", {"status": "paid", "total": 10 * number})
        store.merge("orders", upper, "p1")
        store.delete("orders", "o-3")
        store.put("orders", "o-9", {"status": "new", "total": 90})


def _run(command: str, folder: Path) -> str:
    """Return the text that a terminal would show, with the exit code if it is not 0."""
    words = shlex.split(command.replace("/data/", f"{folder}/"))[1:]
    with tempfile.TemporaryFile("a+", encoding="utf-8") as terminal, contextlib.chdir(folder):
        ran = CommandProcess(words, terminal, terminal, {**os.environ, "COLUMNS": "80"})
        status = ran.wait(60)
        terminal.seek(0)
        said = terminal.read().rstrip().replace(str(folder), "/data")
    if words[0] != "--help" and words[-1] == "--help":
        said = _REPEATED.sub("", said).rstrip()
    lines = [f"$ {command}", *([said] if said else [])]
    if status:
        lines.append(f"(exit code {status})")
    return "\n".join(lines)


def _transcript(folder: Path) -> str:
    path = folder / "shop.db"
    _fill(path)
    (folder / "columns.toml").write_text('[columns]\nstatus = "string"\ntotal = "boolean"\n')
    filled = time.time()
    parts = [_HEAD]
    for title, *commands in _STEPS:
        if any("--max-lag" in command for command in commands):
            # On a fast machine, the commands before this one take less than the age that it asks for.
            time.sleep(max(0.0, filled + _LAG - time.time()))
        parts += [title, *(f"```\n{_run(command, folder)}\n```" for command in commands)]
    parts.append("---\n\n*Made by `python docs/generate.py`.*")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main() -> None:
    """Write the transcript to the file that the argument names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/command_line.py FILE")
    with tempfile.TemporaryDirectory() as folder:
        Path(sys.argv[1]).write_text(_transcript(Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
