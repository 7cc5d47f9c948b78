"""Makes the page of the documentation from the recorded run, and writes its charts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.peers.chart import draw
from benchmarks.peers.peer import Group, Peer
from benchmarks.peers.peers import BATCH_SIZE, PEERS
from benchmarks.peers.record import Record
from benchmarks.peers.report import Outcome
from benchmarks.record import ROOT
from benchmarks.result import figure

__all__ = ["page_text", "tables", "write_docs"]

_HEAD: Final = """---
hide: [toc]
---

# Compared with other readers

How fast does multiclouddb read a change feed, compared with other software that reads the same feed? Every
program below reads the same changes from the same server, on the same machine, in the same hour.

<div class="picture chart" markdown>
![Events a second of each reader](../assets/peers-light.png#only-light)
![Events a second of each reader](../assets/peers-dark.png#only-dark)
</div>
"""
_HOW: Final = """## How it is measured

- **Data.** Inserts of 325 bytes with nine fields each: 325 bytes of BSON in MongoDB, 325 bytes in DynamoDB's
  own count. Nothing is written while a peer reads.
- **Servers.** MongoDB 6.0.5, a replica set of one node, and DynamoDB Local 1.11, in memory. Each one is
  started for its table, and the changes are in its caches.
- **Check.** Every program writes the key of each change that it delivers. The keys must be those of the
  written changes from the first one on, each once. A peer that loses, repeats or invents a change has no
  figures.
- **Warm-up.** A program starts, connects, and reads a sixth of the changes before its clock starts, because
  virtual machines compile at first. More changes follow the last measured change, so that no program
  waits for a batch that does not fill. A program that reads ahead may hold some changes when its clock
  starts.
- **Cores.** Readers and servers share all cores. Each run is a process of its own.
- **Medians of three.** The peers run in turn, so that a change of the machine's speed meets all of them.
- **CPU** is user and system time of the reader's processes, for 100,000 changes. The server's is not counted.
- **Memory** is the peak of resident memory of the reader's process at its end.
- **Settings.** Each peer has its defaults, except: the drivers of MongoDB read batches of {batch}, the best
  size of PyMongo's loop; Debezium captures one collection, keeps its offsets in memory, and leaves out the
  schemas that it would otherwise repeat in each key and value. The loops over DynamoDB's stream ask for 1,000
  records in a call.

Not all peers do the same work for a change. The drivers return a document. Debezium makes an envelope in
JSON. This library makes an event with a portable form, and keeps a position from which to continue.
"""
_AGAIN: Final = """## Run it again

```sh
make bench-peers                                        # all peers, about fifteen minutes
make bench-peers ARGS="--only debezium --events 2000"   # one peer, few changes
make bench-peers ARGS=--record                          # write the JSON of this page and its charts
make bench-peers ARGS=--redraw                          # the charts again from the JSON
```

The first run fetches the peers from PyPI and npm, in pinned versions, into environments outside the clone.
The Java programs need `javac`, for example of Debian's `openjdk-17-jdk-headless`; without it, they are named
as missing.

---

*Made by `python -m benchmarks.peers --record`; tables and charts are of the same run.*
"""


def write_docs(record: Record, root: Path = ROOT) -> None:
    """Write the record and its charts; `make docs` makes the page of it."""
    record.write(root)
    record = Record.read(root) or record  # with the figures as they are stored, rounded to four digits
    for theme in ("light", "dark"):
        draw(record, theme, root / "assets" / f"peers-{theme}.png")


def page_text(record: Record) -> str:
    """Return the whole page."""
    outcomes = {outcome.name: outcome for outcome in record.outcomes}
    shown = [(peer, outcomes[peer.name]) for peer in PEERS if peer.name in outcomes]
    machine = (
        f"Machine: {record.setting}. {record.events:,} changes are measured in each run. "
        f"Recorded on {record.day}.\n"
    )
    parts = [_HEAD, *tables(shown), machine]
    parts += [_HOW.format(batch=BATCH_SIZE), _programs(shown), _AGAIN]
    return "\n".join(parts)


def tables(shown: list[tuple[Peer, Outcome]]) -> Iterator[str]:
    """Return the table of each group."""
    for group in Group:
        lines = [
            f"## {group.value}\n",
            "| reader | events/s | CPU s for 100,000 | peak MiB |",
            "|---|---:|---:|---:|",
        ]
        for peer, outcome in shown:
            if peer.group is group:
                figures = [figure(each) for each in (outcome.rate, outcome.cpu, outcome.mebibytes)]
                cells = figures if outcome.state == "measured" else [outcome.verdict, "", ""]
                lines.append(f"| {peer.title} | {' | '.join(cells)} |")
        if len(lines) > 3:
            yield "\n".join(lines) + "\n"


def _programs(shown: list[tuple[Peer, Outcome]]) -> str:
    lines = ["## The programs\n", "They are in `tools/benchmarks/peers/programs`.\n"]
    for peer, outcome in shown:
        versions = ", ".join(f"{name} {number}" for name, number in outcome.versions.items())
        lines.append(
            f"- **{peer.title}** (`{peer.name}`): {peer.about}{f' Versions: {versions}.' if versions else ''}"
        )
    return "\n".join(lines) + "\n"
