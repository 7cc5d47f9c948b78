"""Makes sure that the names of functions mean Spark's own in a session.

Spark looks up functions by name, those of `pyspark.sql.functions` and some methods of `Column` too. Up to
Spark 4.1, a function that a user has registered under a name of Spark's own replaces it in the session; from
4.2 on, `spark.sql.functionResolution.sessionOrder` or `SET PATH` can put it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from multiclouddb_api import invalid_request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NUMBER: Final = "CAST(NULL AS INT)"
_TEXT: Final = "CAST(NULL AS STRING)"
_JSON: Final = "from_json('', schema_of_json(`to_json`(`named_struct`('{}', 1))))"
# A function of a user has one type, and either has or has no null among its values. Spark's own derives both
# from its arguments, so two calls differ; one of a fixed type without null has one call here.
_CALLS: Final = {
    "and": ("`and`(true, true)", "`and`(true, CAST(NULL AS BOOLEAN))"),
    "array_contains": (
        "`array_contains`(array(1), 1)",
        "`array_contains`(CAST(NULL AS ARRAY<INT>), 1)",
    ),
    "cardinality": ("`cardinality`(array(1))", "`cardinality`(CAST(NULL AS ARRAY<INT>))"),
    "char": ("`char`(65)", f"`char`({_NUMBER})"),
    "coalesce": ("`coalesce`(1, 2)", f"`coalesce`({_TEXT}, {_TEXT})"),
    "collect_set": ("`collect_set`(1)", "`collect_set`('a')"),
    "contains": ("`contains`('a', 'b')", f"`contains`({_TEXT}, 'b')"),
    "count": ("`count`(1)",),
    "explode": ("`explode`(array(1))",),
    "in": ("`in`(1, 1)", f"`in`({_NUMBER}, 1)"),
    "isnotnull": ("`isnotnull`(1)",),
    "isnull": ("`isnull`(1)",),
    "length": ("`length`('a')", f"`length`({_TEXT})"),
    "map_from_arrays": ("`map_from_arrays`(array(1), array(1))", "`map_from_arrays`(array('a'), array(1))"),
    "map_keys": ("`map_keys`(map(1, 1))", "`map_keys`(map('a', 1))"),
    "map_values": ("`map_values`(map(1, 1))", "`map_values`(map(1, 'a'))"),
    "max": ("`max`(1)", "`max`('a')"),
    "max_by": ("`max_by`(1, 2)", "`max_by`('a', 2)"),
    "min": ("`min`(1)", "`min`('a')"),
    "named_struct": ("`named_struct`('a', 1)", "`named_struct`('b', 1)"),
    "now": ("`now`()",),
    "octet_length": ("`octet_length`('a')", f"`octet_length`({_TEXT})"),
    "or": ("`or`(false, true)", "`or`(false, CAST(NULL AS BOOLEAN))"),
    "pmod": ("`pmod`(1, 2)", "`pmod`(1L, 2L)"),
    "split": ("`split`('a', 'b')", f"`split`({_TEXT}, 'b')"),
    "struct": ("`struct`(1)", "`struct`('a')"),
    "substring_index": ("`substring_index`('a', 'b', 1)", f"`substring_index`({_TEXT}, 'b', 1)"),
    "sum": ("`sum`(1)", "`sum`(1.5D)"),
    "timestamp_micros": ("`timestamp_micros`(1)", f"`timestamp_micros`({_NUMBER})"),
    # The text that it returns is seen in the type of another call.
    "to_json": (_JSON.format("a"), _JSON.format("b")),
    "transform": ("`transform`(array(1), x -> x)", "`transform`(array('a'), x -> x)"),
    "unix_micros": (
        "`unix_micros`(timestamp_micros(1))",
        f"`unix_micros`(timestamp_micros({_NUMBER}))",
    ),
    "xxhash64": ("`xxhash64`(1, 'a')",),
}
NAMES: Final = frozenset(_CALLS)
"""The functions of Spark on which rows depend, here and in the sinks that stand on this package."""
_QUERY: Final = "SELECT " + ", ".join(call for calls in _CALLS.values() for call in calls)
_OWN: Final = "Class: org.apache.spark.sql.catalyst."


def check_functions(spark: SparkSession) -> None:
    """Refuse a session in which a name of one of `NAMES` means a function of the user.

    Spark only analyzes a query for it, and runs no job. Another engine with Spark's interface, of which this
    cannot be learned, is not refused.

    Args:
        spark: The session.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`, with the names.
    """
    if _looks_own(spark) or not (found := _replaced(spark)):
        return
    one = len(found) == 1
    raise invalid_request(
        f"function{'' if one else 's'} {', '.join(found)}",
        f"{'is' if one else 'are'} not Spark's own in this session, and with {'it' if one else 'them'} rows "
        "would be wrong",
        f"register yours under another name, and run DROP TEMPORARY FUNCTION {found[0]}; Spark 4.0 and 4.1 "
        "refuse to drop it, so begin a new session there",
    )


def _looks_own(spark: SparkSession) -> bool:
    """Return True if the types of some calls are those of Spark's functions."""
    try:
        kinds = iter([(field.dataType, field.nullable) for field in spark.sql(_QUERY).schema])
    except PySparkException:  # a function of the user does not take these arguments, for example
        return False
    for calls in _CALLS.values():
        (first, nullable), *others = (next(kinds) for _ in calls)
        if nullable if not others else (first, nullable) == others[0]:
            return False
    return True


def _replaced(spark: SparkSession) -> list[str]:
    """Return which names Spark describes as those of a function that is not its own."""
    found = list[str]()
    for name in sorted(NAMES):
        try:
            lines = [str(row[0]) for row in spark.sql(f"DESCRIBE FUNCTION `{name}`").collect()]
        except PySparkException:
            return []
        is_told = any(line.startswith("Usage: ") and line != "Usage: N/A." for line in lines)
        if not (is_told or any(line.startswith(_OWN) for line in lines)):
            found.append(name)
    return found
