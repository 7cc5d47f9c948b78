"""Measures what a new process needs until it has a first page, compared with the vendor's SDK alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.new_process import cpu_of
from benchmarks.row import Bench, Done, Sides, row

_EVENTS: Final = 100
_GOAL: Final = 1.25

# Texts and not modules, because a module of this package imports the API before the program can.
_OURS: Final = """
import json, os, sys
import multiclouddb as m
environment, provider, url, database, collection, token = json.loads(sys.argv[1])
os.environ.update(environment)
start = m.FromContinuationToken(token) if token else m.Beginning()
address = m.ResourceAddress(database, collection) if database else m.ResourceAddress(collection=collection)
with m.connect(m.ClientConfig(provider, {"url": url})) as client:
    page = client.read_changes(m.ChangeFeedRequest(address, start))
print(len(page.events))
"""
_MONGO: Final = """
import json, sys
from itertools import islice
from pymongo import MongoClient
url, database, collection, token, events = json.loads(sys.argv[1])
with MongoClient(url, tz_aware=True) as client:
    with client[database][collection].watch(start_after=token) as stream:
        print(sum(1 for _ in islice(stream, events)))
"""


def _sides(ours: list[Any], program: str, theirs: list[Any]) -> Sides:
    return Sides(lambda: _first_page(_OURS, ours), lambda: _first_page(program, theirs))


def _first_page(program: str, arguments: list[Any]) -> Done:
    cpu, said = cpu_of("-c", program, json.dumps(arguments))
    if not int(said):
        raise ValueError("the first page has no events")
    return Done(1, value=1000 * cpu, cpu=cpu)


@row(
    "start-mongo",
    title="Start, first page of MongoDB",
    question="How long does a start take beside the vendor's own package?",
    unit="ms",
    goal=_GOAL,
    at_most=True,
    profiled=False,
    same_work=False,
    about=(
        "The figure is the CPU time of a new process that connects to MongoDB and reads a first page of "
        f"{_EVENTS} events. The start of Python itself counts on both sides."
    ),
    against="A new process that does the same with PyMongo alone: `watch` after the same position.",
    reason=(
        "Measured by hand with `-X importtime`: of the time that our side needs more, importing attrs takes "
        "a third, and importing our own 60 modules and making their classes most of the rest."
    ),
)
def start_mongo(bench: Bench) -> Iterator[Sides]:
    """Measure the start over a replica set of one node."""
    from benchmarks.mongo import ADDRESS, backlog

    with backlog(bench.folder, _EVENTS) as changes:
        place = [ADDRESS.database, ADDRESS.collection]
        theirs = [changes.url, *place, changes.resume_token, _EVENTS]
        yield _sides([{}, "mongo", changes.url, *place, changes.token], _MONGO, theirs)
