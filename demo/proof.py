"""The proofs: `multiclouddb verify` beside the writer, and each row at the end, read without multiclouddb."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from typing import Final

from rich.console import Console

from demo.places import COLLECTION, Places
from demo.table import documents
from multiclouddb_api import encode_json
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import destination_of, mirror_status

__all__ = ["Proof", "compare"]

_POLL_SECONDS: Final = 0.2


class Proof:
    """Runs `multiclouddb verify` in another thread, beside the writer and the mirror."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._words = ["multiclouddb", "verify", places.url, COLLECTION, "--target", f"delta:{places.table}"]
        self._ran: subprocess.CompletedProcess[str] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        command = [sys.executable, "-m", "multiclouddb_cli", *self._words[1:]]
        command += ["--state", str(self._places.root / "verify")]
        try:
            # While the first copy is not complete, nobody knows what the table has to contain.
            while mirror_status(destination_of(f"delta:{self._places.table}")).is_copying:
                time.sleep(_POLL_SECONDS)
            self._ran = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            # Until now the writer runs.
            self._places.proved.touch()

    def wait(self) -> None:
        """Wait until the command has ended."""
        self._thread.join()

    def report(self, console: Console) -> bool:
        """Print what the command said; return True if the table was proved equal."""
        console.print(f"$ {shlex.join(self._words)}", style="bold", markup=False)
        if self._ran is None:
            return False
        console.print((self._ran.stdout or self._ran.stderr).rstrip(), markup=False)
        return self._ran.returncode == 0


def compare(places: Places) -> tuple[int, list[str]]:
    """Compare every document of the store with its row in the table.

    Returns:
        The number of documents, and a line for each key that is missing, differs, or is in the table only.
    """
    table, rows, differences = dict(documents(places.table)), 0, list[str]()
    with EmbeddedStore(places.store) as store:
        for key, document in store.scan(COLLECTION):
            rows += 1
            name = encode_json(key.components).decode()
            found = table.pop(name, None)
            if found != document:
                differences.append(f"{name}: the store has {document}, the table {found or 'nothing'}")
    return rows, [*differences, *(f"{name}: only in the table" for name in table)]
