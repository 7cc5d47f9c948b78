"""The mapper of each provider: large batches that are delivered in small pages, compared with a bare loop."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from benchmarks.batches import BATCHES, Recorded
from benchmarks.row import Bench, Done, Sides, row

Form: TypeAlias = Literal["events", "arrow"]

_CHANGES: Final = 10_000
_SMALL: Final = 100
_LARGE: Final = 1000
_KIB: Final = 1024
_POOLS: Final = list[Any]()
"""Arrow's memory pools, each of which has to outlive all memory that came from it."""


def deliver(recorded: Recorded, form: Form, page: int, ids: list[str] | None = None) -> int:
    """Parse a batch, map it page by page as the engine does, keep nothing, and return the number of events.

    Args:
        recorded: The batch.
        form: What to make.
        page: The number of events of a page.
        ids: Gets the ids of the events.
    """
    from multiclouddb_spi import collector_paused

    mapper, count = recorded.mapper, 0
    records = recorded.parse()
    size = len(records)
    for start in range(0, size, page):
        stop = min(start + page, size)
        with collector_paused():
            made: Any = getattr(mapper, form)(records, start, stop)
        if stop < size:
            mapper.cursor_after(records, stop)
        count += len(made)
        if ids is not None:
            ids += made["event_id"].to_pylist() if form == "arrow" else [each.event_id for each in made]
    return count


# -- CPU time


def _rate(recorded: Recorded, form: Form, page: int) -> float:
    began = time.process_time()
    count = deliver(recorded, form, page)
    return count / (time.process_time() - began)


def _ours(recorded: Recorded, form: Form, size: int) -> Done:
    small, large = _rate(recorded, form, _SMALL), _rate(recorded, form, _LARGE)
    cpu = size / small
    return Done(size, value=small, seconds=cpu, cpu=cpu, notes={"pages of 1,000": large})


def _bare(recorded: Recorded) -> Done:
    began = time.process_time()
    count = recorded.bare()
    cpu = time.process_time() - began
    return Done(count, seconds=cpu, cpu=cpu)


def _checked(recorded: Recorded, form: Form, size: int) -> None:
    """Check that each change is delivered once, in any page.

    Raises:
        ValueError: Raised if a change is missing or was delivered twice.
    """
    for page in (_SMALL, _LARGE):
        ids: list[str] = []
        deliver(recorded, form, page, ids)
        if (len(ids), len(set(ids))) != (size, size):
            raise ValueError(f"{len(ids):,} events, {len(set(ids)):,} different, of {size:,}")


def _pages(name: str, form: Form) -> Callable[[Bench], Iterator[Sides]]:
    def setup(bench: Bench) -> Iterator[Sides]:
        size = bench.size(_CHANGES, 2 * _SMALL)
        recorded = BATCHES[name](size)
        _checked(recorded, form, size)
        yield Sides(lambda: _ours(recorded, form, size), lambda: _bare(recorded))

    return setup


# -- Memory


def peak_kibibytes(recorded: Recorded, form: Form, page: int) -> float:
    """Return how much memory the delivery of a batch needs at most, with what is computed of its records."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    once = Recorded(recorded.mapper, _parsed_before(recorded), recorded.bare)
    tracemalloc.start()
    try:
        deliver(once, form, page)
        return float(tracemalloc.get_traced_memory()[1] + pool.max_memory()) / _KIB
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def _parsed_before(recorded: Recorded) -> Any:
    records = recorded.parse()
    return lambda: records


def _noted(recorded: Recorded, size: int) -> Done:
    notes = {
        "events, pages of 1,000": peak_kibibytes(recorded, "events", _LARGE),
        "Arrow, pages of 100": peak_kibibytes(recorded, "arrow", _SMALL),
        "Arrow, pages of 1,000": peak_kibibytes(recorded, "arrow", _LARGE),
        "Arrow, at once": peak_kibibytes(recorded, "arrow", size),
    }
    return Done(size, value=peak_kibibytes(recorded, "events", _SMALL), notes=notes)


def _memory(name: str) -> Callable[[Bench], Iterator[Sides]]:
    def setup(bench: Bench) -> Iterator[Sides]:
        size = bench.size(_CHANGES, 2 * _SMALL)
        recorded = BATCHES[name](size)
        for form in _FORMS:  # also so that what is imported or computed once does not count
            _checked(recorded, form, size)
        yield Sides(
            lambda: _noted(recorded, size),
            lambda: Done(size, value=peak_kibibytes(recorded, "events", size)),
        )

    return setup


# -- Rows

_NAMES: Final = {
    "mongo": "MongoDB",
    "cosmos": "Cosmos DB",
    "spanner": "Spanner",
    "dynamo": "DynamoDB",
    "embedded": "Embedded store",
}
_SENT: Final = {
    "mongo": "raw BSON",
    "cosmos": "the JSON text of a page",
    "spanner": "the values of an answer, a hundred changes in a transaction",
    "dynamo": "the JSON text of an answer",
    "embedded": "the columns that SQLite returns",
}
_LOOP: Final = {
    "mongo": "`bson.decode` for each change.",
    "cosmos": "`orjson.loads` for the page, and the item in each change.",
    "spanner": "A loop over the same values, with `orjson.loads` for the key and the new row of each change.",
    "dynamo": "`orjson.loads` for the answer, and boto3's `TypeDeserializer` for each image.",
    "embedded": "`orjson.loads` for each document.",
}
_GOALS: Final[dict[tuple[str, Form], float]] = {
    ("mongo", "events"): 0.5,
    ("mongo", "arrow"): 0.35,
    ("cosmos", "events"): 0.4,
    ("cosmos", "arrow"): 0.15,
    ("spanner", "events"): 0.3,
    ("spanner", "arrow"): 0.2,
    ("dynamo", "events"): 1.0,
    ("dynamo", "arrow"): 0.75,
    ("embedded", "events"): 0.6,
    ("embedded", "arrow"): 3.0,
}
_KEPT: Final = {
    "embedded": (
        "The documents come as one text, which is split once for the batch, so that a page need not split it "
        "again; the texts take as much memory as the batch. A page of Arrow is cut from that of the batch."
    )
}
_FORMS: Final[dict[Form, str]] = {"events": "events", "arrow": "Arrow"}

for _name, _title in _NAMES.items():
    for _form, _text in _FORMS.items():
        row(
            f"small-pages-{_name}-{_form}",
            title=f"{_title}, the mapper, {_text} in pages of 100",
            goal=_GOALS[_name, _form],
            about=(
                f"The mapper makes {_text} of a batch of 10,000 changes in pages of 100, and the position "
                f"after each page. The batch is {_SENT[_name]}; it was recorded, so no server and no engine "
                "take part. The figure counts CPU time."
            ),
            against=f"{_LOOP[_name]} The loop makes no event and no position.",
        )(_pages(_name, _form))
    row(
        f"small-pages-{_name}-memory",
        title=f"{_title}, the mapper, memory of pages of 100",
        unit="KiB",
        goal=0.03,
        at_most=True,
        pairs=1,  # what is counted is the same in each run
        warm_up=False,
        about=(
            "The figure is the most memory that the mapper and its page need beside the batch of 10,000 "
            "changes, while it delivers events in pages of 100 and the application keeps none: what Python "
            "allocated (`tracemalloc`), and what Arrow did."
        ),
        against="All events of the same batch at once.",
        reason=_KEPT.get(_name, ""),
        profiled=False,
    )(_memory(_name))
