"""Tests that the text of Spark's exceptions has the category and the reason of the source's error."""

import pytest

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError
from pyspark_multiclouddb import error_from_query, reason_from_query
from pyspark_multiclouddb.errors import SourceError, detail_from_query, source_errors


@pytest.mark.parametrize("reason", [None, ErrorReason.AGED_OUT, ErrorReason("a_later_one")])
def test_a_reason_survives_the_text(reason):
    detail = ErrorDetail(ErrorCategory.THROTTLED, retryable=True, reason=reason)
    with pytest.raises(SourceError) as caught, source_errors():
        raise MulticloudDbError("field: a [list]; do that", detail)
    text = ValueError(f"Job aborted: {caught.value}\n\tat org.apache.spark.Line(Line.scala:7)")
    assert error_from_query(text) == ErrorCategory.THROTTLED
    assert reason_from_query(text) == reason
    assert detail_from_query(text) == ("field: a [list]; do that", detail)


def test_a_failure_of_others_has_none():
    for error in (None, ValueError("[MULTICLOUDDB] [reason: trimmed]")):
        assert reason_from_query(error) is None
