"""The proofs: `multiclouddb verify` beside the writer, and each row at the end, read without multiclouddb."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from deltalake import DeltaTable
from rich.console import Console

from demo.places import COLLECTION, Places
from multiclouddb_api import decode_json, encode_json
from multiclouddb_embedded import EmbeddedStore

__all__ = ["Proof", "compare"]


class Proof:
    """Runs `multiclouddb verify` in another thread, beside the writer and the pipeline."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._words = ["multiclouddb", "verify", places.url, COLLECTION, "--target", f"delta:{places.table}"]
        self._words += ["--position", f"spark:{places.checkpoint}"]
        self._ran: subprocess.CompletedProcess[str] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        command = [sys.executable, "-m", "multiclouddb_cli", *self._words[1:]]
        command += ["--state", str(self._places.root / "verify")]
        try:
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
    table, rows, differences = dict(_rows(places)), 0, list[str]()
    with EmbeddedStore(places.store) as store:
        for key, document in store.scan(COLLECTION):
            rows += 1
            name = encode_json(key.components).decode()
            found = table.pop(name, None)
            if found != document:
                differences.append(f"{name}: the store has {document}, the table {found or 'nothing'}")
    return rows, [*differences, *(f"{name}: only in the table" for name in table)]


def _rows(places: Places) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the key and the document of each row that is no tombstone."""
    rows = DeltaTable(str(places.table)).to_pyarrow_dataset().scanner(["key", "new_item_state"]).to_table()
    for row in rows.to_pylist():
        if row["new_item_state"] is not None:
            yield encode_json(json.loads(row["key"])).decode(), decode_json(row["new_item_state"])
