"""What a query's progress says."""

from __future__ import annotations

import json
from ast import literal_eval
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["caught_up"]


def caught_up(query: StreamingQuery) -> bool:
    """Whether a run that has ended by itself has read everything.

    Spark 4.0 and 4.1 run one micro-batch with `trigger(availableNow=True)`. So repeat the run until it says
    True; from 4.2 on it always does.

    Args:
        query: The query, after `awaitTermination()`.

    Examples:
        >>> while True:
        ...     query = writer.trigger(availableNow=True).start()
        ...     query.awaitTermination()
        ...     if caught_up(query):
        ...         break
    """
    progress = query.lastProgress
    if progress is None:
        return True
    return not any(_has_more(source) for source in progress["sources"])


def _has_more(source: Any) -> bool:
    start, end = source["startOffset"], source["endOffset"]
    if start == end:
        return False
    try:
        # PySpark 4.0 shows an offset as Python writes it, later versions as JSON.
        value = literal_eval(end) if "'" in end else json.loads(end)
    except (SyntaxError, TypeError, ValueError):
        return False
    return isinstance(value, dict) and value.get("more") is True
