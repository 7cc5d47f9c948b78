"""Tests that every failure of SQLite and of the file system has a category."""

import sqlite3
from contextlib import closing

import pytest

from multiclouddb_api import ErrorCategory as Category
from multiclouddb_api import MulticloudDbError
from multiclouddb_embedded.errors import classify, store_errors

RETRYABLE = {
    "SQLITE_ABORT",
    "SQLITE_BUSY",
    "SQLITE_INTERRUPT",
    "SQLITE_IOERR",
    "SQLITE_LOCKED",
    "SQLITE_NOMEM",
    "SQLITE_PROTOCOL",
    "SQLITE_SCHEMA",
}
CATEGORIES = {
    **dict.fromkeys(RETRYABLE, Category.TRANSIENT_FAILURE),
    "SQLITE_CANTOPEN": Category.NOT_FOUND,
    "SQLITE_NOTFOUND": Category.NOT_FOUND,
    "SQLITE_NOTADB": Category.INVALID_REQUEST,
    "SQLITE_AUTH": Category.AUTHORIZATION_FAILED,
    "SQLITE_PERM": Category.AUTHORIZATION_FAILED,
    "SQLITE_READONLY": Category.AUTHORIZATION_FAILED,
    "SQLITE_TOOBIG": Category.PROVIDER_ERROR,
    "SQLITE_CORRUPT": Category.PERMANENT_FAILURE,
    "SQLITE_FORMAT": Category.PERMANENT_FAILURE,
    "SQLITE_FULL": Category.PERMANENT_FAILURE,
    # The library, not the user, has made these mistakes: a wrong statement or a violated constraint.
    "SQLITE_CONSTRAINT": Category.PERMANENT_FAILURE,
    "SQLITE_EMPTY": Category.PERMANENT_FAILURE,
    "SQLITE_ERROR": Category.PERMANENT_FAILURE,
    "SQLITE_INTERNAL": Category.PERMANENT_FAILURE,
    "SQLITE_MISMATCH": Category.PERMANENT_FAILURE,
    "SQLITE_MISUSE": Category.PERMANENT_FAILURE,
    "SQLITE_NOLFS": Category.PERMANENT_FAILURE,
    "SQLITE_RANGE": Category.PERMANENT_FAILURE,
    "SQLITE_NOTICE": Category.PERMANENT_FAILURE,
    "SQLITE_WARNING": Category.PERMANENT_FAILURE,
}


def raised_code(code, name):
    error = sqlite3.OperationalError("went wrong")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


def test_every_primary_code_is_in_the_table():
    """SQLite numbers its primary codes from 1, and Python defines a constant for each of them."""
    by_code = {getattr(sqlite3, name): name for name in CATEGORIES}
    assert len(by_code) == len(CATEGORIES)
    assert set(by_code) == {*range(1, 29)}


@pytest.mark.parametrize("name", sorted(CATEGORIES))
def test_what_a_code_means(name):
    fault = classify(raised_code(getattr(sqlite3, name), name))
    assert (fault.category, fault.retryable, fault.code) == (CATEGORIES[name], name in RETRYABLE, name)
    assert fault.message.startswith("went wrong; ")


def test_extended_codes_mean_what_their_primary_code_does():
    extended = {
        name: base
        for name in dir(sqlite3)
        for base in CATEGORIES
        if name.startswith(f"{base}_") and isinstance(getattr(sqlite3, name), int)
    }
    assert len(extended) > 50
    for name, base in extended.items():
        assert classify(raised_code(getattr(sqlite3, name), name)).category == CATEGORIES[base], name


@pytest.mark.parametrize(
    ("error", "category", "retryable"),
    [
        (FileNotFoundError(2, "gone"), Category.NOT_FOUND, False),
        (PermissionError(13, "no"), Category.AUTHORIZATION_FAILED, False),
        (OSError(5, "disk"), Category.TRANSIENT_FAILURE, True),
        (MemoryError(), Category.TRANSIENT_FAILURE, True),
        (sqlite3.InterfaceError("odd"), Category.PERMANENT_FAILURE, False),
        (ValueError("a defect"), Category.PERMANENT_FAILURE, False),
        (Exception(), Category.PERMANENT_FAILURE, False),
    ],
    ids=repr,
)
def test_what_other_exceptions_mean(error, category, retryable):
    fault = classify(error)
    assert (fault.category, fault.retryable) == (category, retryable)
    assert fault.message


def test_a_connection_that_was_closed_meanwhile(tmp_path):
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.close()
        with pytest.raises(sqlite3.ProgrammingError) as caught:
            connection.execute("SELECT 1")
    assert classify(caught.value).category == Category.TRANSIENT_FAILURE


def test_the_store_wraps_once_and_keeps_the_cause():
    error = raised_code(sqlite3.SQLITE_FULL, "SQLITE_FULL")
    with pytest.raises(MulticloudDbError) as caught, store_errors("put"):
        raise error
    detail = caught.value.detail
    assert caught.value.__cause__ is error
    assert (detail.category, detail.provider, detail.operation) == (
        Category.PERMANENT_FAILURE,
        "embedded",
        "put",
    )
    assert (detail.native_code, detail.native_class) == ("SQLITE_FULL", "sqlite3.OperationalError")
    with pytest.raises(MulticloudDbError) as again, store_errors("outer"):
        raise caught.value
    assert again.value is caught.value
