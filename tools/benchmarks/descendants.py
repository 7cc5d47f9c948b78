"""Measures the CPU time of the child processes of this process, and of their children."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_of_descendants"]


def cpu_of_descendants(named: str = "") -> float:
    """Return the CPU seconds of all running descendants, including their children that have ended.

    With `named`, only descendants count whose command has this text in its name.

    The result is 0 without `/proc`. For example, the JVM of a local Spark session is a descendant of the
    benchmark, and the JVM's children are Python workers. These processes stay alive between jobs.
    """
    mine, total, parents = {os.getpid()}, 0, {}
    ticks: dict[int, int] = {}
    for pid, parent, spent, name in _processes():
        parents[pid], ticks[pid] = parent, spent if named in name else 0
    for pid in sorted(parents):
        line = [pid]
        while line[-1] in parents and line[-1] not in mine:
            line.append(parents[line[-1]])
        if line[-1] in mine and pid not in mine:
            total += ticks[pid]
    return total / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, int, int, str]]:
    """Return the id, the parent, the CPU ticks and the name of every process."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may contain any character.
            name, _, rest = file.read_text().rpartition(")")
        except OSError:  # the process has ended in the meantime
            continue
        fields = rest.split()
        yield int(file.parent.name), int(fields[1]), sum(map(int, fields[11:15])), name
