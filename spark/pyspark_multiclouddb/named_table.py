"""Looks at a table under its name in a session of Spark, commits to it, and says what Spark's errors mean.

If two writers change a table at the same time, its format refuses the later commit. Every statement here can
be repeated safely. So a refused one is run again, after a random wait.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.errors import AnalysisException, PySparkNotImplementedError, PySparkValueError

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_spi.faults import one_line, without_data
from multiclouddb_tables.delta_refusals import safe_cause
from multiclouddb_tables.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["NamedTable", "check_table", "literal"]

_TRIES: Final = 10
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
# How Delta, Iceberg and Java name the commit of another writer; some texts of Delta have no name of a class.
_CONFLICTS: Final = re.compile(
    r"\b(DELTA_(CONCURRENT_\w+|METADATA_CHANGED|PROTOCOL_CHANGED)"
    r"|Concurrent\w*(Modification|Append|Delete\w*|Write|Transaction|Metadata)\w*Exception|MetadataChangedException"
    r"|ProtocolChangedException|CommitFailedException"
    r"|ValidationException: (Found (new )?conflicting|Cannot commit|Missing required files))\b"
)
# Delta's error classes of a row that the table refuses, and Spark's.
_REFUSED: Final = re.compile(
    r"\b(DELTA_VIOLATE_CONSTRAINT_WITH_VALUES|DELTA_NOT_NULL_CONSTRAINT_VIOLATED|NOT_NULL_ASSERT_VIOLATION"
    r"|CHECK_CONSTRAINT_VIOLATION|DELTA_CANNOT_MODIFY_APPEND_ONLY)\b"
)
_POLICY: Final = "spark.sql.storeAssignmentPolicy"
_LEGACY: Final = "LEGACY store assignment policy"
"""How Spark names the policy when it refuses a statement."""
_PART: Final = re.compile(r"[\w-]+|`(?:[^`]|``)+`")
_NAME: Final = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


def check_table(table: object) -> None:
    """Refuse a text that is not the name of a table in Spark."""
    check_type("table", table, str)
    if not _NAME.fullmatch(str(table)):
        raise invalid_request(
            "table", f"{str(table)[:200]!r} is not the name of a table", "give for example lake.shop.orders"
        )


@attrs.frozen
class NamedTable:
    """A table, which does not have to exist."""

    spark: SparkSession
    """The session that knows the table."""
    name: str
    """The name of the table in Spark."""

    @property
    def frame(self) -> DataFrame:
        """The rows."""
        return self.spark.table(self.name)

    def look(self, *, refresh: bool) -> StructType | None:
        """Return the columns, or None if there is no table.

        Args:
            refresh: False for a catalog that does not know the statement.
        """
        try:
            if refresh:
                # Spark reads the rows of a cached table from its memory, whatever others have written since,
                # and a catalog may keep a table as it was when the session used it first, as Iceberg's does.
                self.spark.sql(f"REFRESH TABLE {self.name}")
                if len(_PART.findall(self.name)) == 1 and (
                    self.spark.catalog.getTable(self.name).isTemporary
                ):
                    raise invalid_request(
                        "table",
                        f"{self.name} is a temporary view of this session, before a table of this name",
                        "give the table with its schema, such as shop.orders, or drop the view",
                    )
            return self.frame.schema
        except AnalysisException as error:
            if "NOT_FOUND" not in str(error) and "doesn't exist" not in str(error):
                raise
            return None
        except (PySparkValueError, PySparkNotImplementedError) as error:
            raise MulticloudDbError(
                f"table: {self.name} has a column of a type that PySpark does not have "
                f"({one_line(str(error))}); give it another type, such as TIMESTAMP or STRING",
                ErrorDetail(
                    ErrorCategory.UNSUPPORTED_CAPABILITY,
                    native_class=f"{type(error).__module__}.{type(error).__name__}",
                    reason=ErrorReason.NOT_OFFERED,
                ),
            ) from error

    def commit(self, statement: str, check: Callable[[], object] | None = None) -> None:
        """Run a statement, and run it again if the commit of another writer prevents it.

        Args:
            statement: The statement.
            check: Called before each run; raises if the table is not the one that is meant.
        """
        wait = _FIRST_WAIT
        for left in reversed(range(_TRIES)):
            try:
                if check is not None:
                    check()
                self.spark.sql(statement)
                return
            except MulticloudDbError:
                raise
            except Exception as error:
                if found := _REFUSED.search(str(error)):
                    # Spark prints the whole row.
                    raise _refused_row(self.name, found[0], error) from safe_cause(error)
                if _LEGACY in str(error):
                    raise invalid_request(
                        _POLICY,
                        "is LEGACY, with which Spark refuses columns in another order than the table has",
                        "set it to ANSI",
                    ) from error
                if not _CONFLICTS.search(str(error)):
                    raise
                if not left:
                    raise MulticloudDbError(
                        f"table: other writers changed {self.name} during each of {_TRIES} attempts; let "
                        "them commit less often, and try again",
                        ErrorDetail(
                            ErrorCategory.CONFLICT,
                            retryable=True,
                            reason=ErrorReason.OTHER_WRITER,
                            native_text=without_data(str(error))[:1000],
                        ),
                    ) from error
            time.sleep(random.uniform(0, wait))
            wait = min(2 * wait, _LONGEST_WAIT)


def _refused_row(table: str, code: str, error: Exception) -> MulticloudDbError:
    """Make the error for what the table itself refuses, without the row."""
    said = without_data(str(error).partition("\nJVM stacktrace:")[0])
    return MulticloudDbError(
        f"table: {table} refuses a row ({one_line(said)}); the row of a deleted document has null in all "
        "columns of your own; change the documents, or the constraint or property of the table",
        ErrorDetail(
            ErrorCategory.INVALID_REQUEST,
            native_class=f"{type(error).__module__}.{type(error).__name__}",
            native_code=code,
            native_text=said[:1000],
            reason=ErrorReason.MISFIT,
        ),
    )


def literal(text: str) -> str:
    """Return a text for SQL of Spark, in which a backslash begins an escape.

    With `spark.sql.legacy.consecutiveStringLiterals.enabled`, two quotes are none, so a quote is an escape.
    """
    return quoted(text.replace("\\", "\\\\").replace("'", "\\u0027"))
