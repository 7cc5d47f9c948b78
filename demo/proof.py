"""Runs `multiclouddb verify` beside the writer and the pipeline."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from contextlib import closing
from typing import Any

from rich.console import Console

from demo.faults import plant
from demo.places import COLLECTION, Places
from demo.stores import open_store
from demo.targets import target_of
from multiclouddb_verify import DifferenceKind

__all__ = ["Proof"]


class Proof:
    """Compares the table in another thread, and repairs it if rows were damaged.

    Args:
        places: The files of the run.
        faults: True to damage rows first.
    """

    def __init__(self, places: Places, *, faults: bool) -> None:
        self._places, self._faults = places, faults
        self._said: list[tuple[list[str], subprocess.CompletedProcess[str]]] = []
        self._planted: dict[str, DifferenceKind] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._faults:
                self._planted = plant(self._places)
                self._command("--json")
                self._command("--repair")
            self._command()
        finally:
            # Until now the writer runs.
            self._places.proved.touch()

    def _command(self, *more: str) -> None:
        places, target = self._places, target_of(self._places).option
        if target is None:
            words = ["python", "-m", "demo.table_proof", str(places.root), *more]
            command = [sys.executable, *words[1:]]
        else:
            with closing(open_store()) as store:
                address = COLLECTION if store.database is None else f"{store.database}/{COLLECTION}"
                words = ["multiclouddb", "verify", store.url, address, *more]
            words += ["--target", target, "--position", f"spark:{places.checkpoint}"]
            command = [sys.executable, "-m", "multiclouddb_cli", *words[1:]]
            command += ["--state", str(places.root / "verify")]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        self._said.append((words, ran))

    def wait(self) -> None:
        """Wait until the commands have ended."""
        self._thread.join()

    def report(self, console: Console) -> bool:
        """Print what the commands said; return True if the table was proved equal."""
        good = bool(self._said) and self._said[-1][1].returncode == 0
        for words, ran in self._said:
            console.print(f"$ {shlex.join(words)}", style="bold", markup=False)
            if "--json" in words:
                found = _kinds(ran.stdout)
                good &= found == self._planted
                told = "exactly what was planted" if found == self._planted else f"planted {self._planted}"
                console.print(f"{len(found)} differences, {told}: {', '.join(found.values())}", markup=False)
            else:
                console.print((ran.stdout or ran.stderr).rstrip(), markup=False)
        return good


def _kinds(text: str) -> dict[str, DifferenceKind]:
    try:
        told: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return {each["key"]: DifferenceKind(each["kind"]) for each in told["differences"]}
