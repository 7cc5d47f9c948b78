"""No message contains what a vendor's text says about data: keys, documents and values."""

import traceback

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_spi.errors import cause_of, to_error
from multiclouddb_spi.faults import (
    Fault,
    FaultRule,
    ProviderFault,
    holds_data,
    key_digest,
    one_line,
    unexpected,
    without_data,
)

MARKED = "SECRET-7"
TEXTS = {
    "PostgreSQL, a row that a constraint refuses": (
        'new row for relation "orders" violates check constraint "positive"\n'
        f"DETAIL:  Failing row contains ({MARKED}, 1).\n"
    ),
    "PostgreSQL, a line of a file": (
        f'invalid byte sequence for encoding "UTF8": 0xff\nCONTEXT:  COPY batch, line 3: "{MARKED}"'
    ),
    "PostgreSQL, a statement": f"syntax error at end of input\nLINE 1: SELECT '{MARKED}\n               ^",
    "deltalake, a constraint": (
        "Generic DeltaTable error: External error: Invalid data found: 1 rows failed validation check.\n"
        f"Preview of invalid data:\n\n+-----+\n| key |\n+-----+\n| {MARKED} |\n+-----+"
    ),
    "deltalake, an invariant": f"Check or Invariant (n > 0) violated by value in row: [{MARKED}]",
    "deltalake, a value": f"Cast error: Failed to cast u to UInt32: Can't cast value {MARKED} to type",
    "DataFusion, a text": f"Arrow error: Cast error: Cannot cast string '{MARKED}' to value of Int64 type",
    "Delta in Spark, a constraint": (
        "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint a (n > 0) violated by row with values:\n"
        f" - n : {MARKED} SQLSTATE: 23001"
    ),
    "Spark, a value": f"[CAST_INVALID_INPUT] The value '{MARKED}' of the type \"STRING\" cannot be cast",
    "MongoDB, a unique index": f'E11000 duplicate key error index: b dup key: {{ b: "{MARKED}" }}',
    "MongoDB, the reply": (
        f"Plan executor error, full error: {{'ok': 0.0, 'keyValue': {{'b': '{MARKED}'}}, 'code': 11000}}"
    ),
    "MongoDB, a validator": f"Document failed validation, errInfo: {{'failingDocumentId': '{MARKED}'}}",
    "MongoDB, a large change": (
        "BSONObj size: 17827126 is invalid. Size must be between 0 and 16793600(16MB) First element: "
        f'_id: {{ _data: "{MARKED}" }}'
    ),
    "gRPC, the address of a proxy": (
        f"errors resolving me:{MARKED}: [field:hostname lookup error:Failed to parse port in name: "
        f"me:{MARKED}]"
    ),
    "urllib3, the address of a proxy": f"Failed to parse: http://me:{MARKED}/x@proxy:3128",
    "urllib3, a part of it": f"Cannot connect: Failed to parse: 'me:{MARKED}' is not a valid host or port",
}
QUOTED = {
    "Cosmos DB, a path in urllib3's text": (
        "HTTPSConnectionPool(host='a.documents.azure.com', port=443): Max retries exceeded with url: "
        f"/dbs/shop/colls/orders/docs/{MARKED}/ (Caused by ProxyError('Unable to connect to proxy', "
        "OSError('Tunnel connection failed: 503 Service Unavailable')))"
    ),
    "Cosmos DB, a path in the service's text": (
        f"ActivityId: 1, Request URI: /dbs/shop/colls/orders/docs/{MARKED}, RequestStats: none"
    ),
}
"""Texts with data in their middle, which is replaced."""


@pytest.mark.parametrize("text", QUOTED.values(), ids=QUOTED)
def test_what_follows_quoted_data_stays(text):
    assert without_data(text) == text.replace(MARKED, "…")
    assert holds_data(ValueError(text))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_fields_with_data_are_cut(text):
    """What was refused, and by which rule, stays."""
    kept = without_data(text)
    assert MARKED not in kept
    assert kept == text[: len(kept)]
    assert len(kept) > 10
    assert holds_data(ValueError(text))


@pytest.mark.parametrize("text", ['duplicate key value violates unique constraint "orders_pkey"', "", "a\nb"])
def test_a_text_without_data_stays(text):
    assert without_data(text) == text
    assert not holds_data(ValueError(text))


@pytest.mark.parametrize("text", [*TEXTS.values(), *QUOTED.values()], ids=[*TEXTS, *QUOTED])
@pytest.mark.parametrize("wrapped", [False, True])
def test_no_form_of_an_error_shows_data(text, wrapped):
    """Messages, details and printed causes, whoever has made the fault."""
    for fault_of in (
        lambda error: FaultRule(ErrorCategory.INVALID_REQUEST, "change it").fault(str(error)),
        unexpected,
        lambda error: Fault(ErrorCategory.PROVIDER_ERROR, one_line(str(error))),
    ):
        error = ValueError(text)
        fault = fault_of(error)
        if wrapped:
            try:
                raise ProviderFault(fault) from error
            except ProviderFault as caught:
                error = caught
        with pytest.raises(MulticloudDbError) as raised:
            raise to_error("mongo", "read_changes", fault, error) from cause_of(fault, error)
        made = raised.value
        shown = repr(made) + repr(made.detail) + "".join(traceback.format_exception(made))
        assert MARKED not in shown
        assert made.detail.native_class == "builtins.ValueError"


def test_a_cause_without_data_stays():
    error = ValueError("no primary")
    fault = unexpected(error)
    assert cause_of(fault, error) is error
    assert to_error("mongo", "read_changes", fault, error).detail.native_text == "no primary"


@pytest.mark.parametrize("key", ['{"id":"a"}', "é", "\ud800", ""])
def test_a_key_has_a_digest_that_a_user_can_compute(key):
    name, digits = key_digest(key).split(":")
    assert (name, len(digits)) == ("sha256", 16)
    assert int(digits, 16) >= 0
    assert key_digest(key) != key_digest(f"{key} ")


def test_the_digest_is_that_of_the_text():
    assert key_digest("abc") == "sha256:ba7816bf8f01cfea"
