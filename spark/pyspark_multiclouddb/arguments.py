"""Checks the arguments of the public functions, and makes the errors for wrong arguments."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from multiclouddb_api import ChangeFeedPage, ChangeType, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type, local_path, type_name

__all__ = ["CHANGE_TYPES", "check_has", "check_merge", "check_rows", "incomplete_rows"]

CHANGE_TYPES: Final = tuple(kind.value for kind in ChangeType)
"""The values of the column `type`."""


def check_has(name: str, value: object, attribute: str, wanted: str) -> None:
    """Refuse an object that does not have the given attribute.

    Spark's own type has this attribute in every version of Spark.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`; the message names the argument.
    """
    if isinstance(value, type) or not hasattr(value, attribute):
        raise invalid_request(name, f"must be {wanted}, not {type_name(value)}", f"pass {wanted}")


def check_rows(name: str, value: object, *, or_page: bool = False) -> None:
    """Accept only a DataFrame or a pyarrow table, and with `or_page` also a page.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`; the message names the argument.
    """
    if isinstance(value, pa.Table) or (or_page and isinstance(value, ChangeFeedPage)):
        return
    wanted = "a DataFrame, a pyarrow table or a page" if or_page else "a DataFrame or a pyarrow table"
    check_has(name, value, "sparkSession", wanted)


def check_merge(batch: object, table_path: object, **rest: Any) -> None:
    """Refuse arguments for `merge_into_delta` that are of the wrong type or do not fit together.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`; the message names the argument.
    """
    check_rows("batch", batch, or_page=True)
    local_path("table_path", table_path)
    check_type("batch_id", rest["batch_id"], int, type(None))
    check_type("app_id", rest["app_id"], str, type(None))
    if rest["checkpoint"] is not None:
        local_path("checkpoint", rest["checkpoint"])
    check_type("create", rest["create"], bool)
    check_type("max_bytes", rest["max_bytes"], int)
    for name, first in (("new_columns", "add"), ("missing_state", "keep")):
        if rest[name] not in (first, "refuse"):
            kind = type_name(rest[name])
            raise invalid_request(name, f"is {rest[name]!r}, a {kind}", f'pass "{first}" or "refuse"')
    if (rest["batch_id"] is None) != (rest["app_id"] is None):
        raise invalid_request("batch_id", "must be given together with app_id", "give both, or None for both")
    if rest["max_bytes"] < 1:
        raise invalid_request("max_bytes", "is less than 1", "give the maximum number of bytes of a piece")


def incomplete_rows() -> MulticloudDbError:
    """Make the error for a batch with a missing value, or with a `type` that is no change type."""
    return invalid_request(
        "batch",
        "has rows without key, order_key or type, or whose type is not CREATE, UPDATE or DELETE",
        "pass the rows of the data source, and give other names to columns that you add",
    )
