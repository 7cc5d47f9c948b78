"""Tests that every failure of SQLite and of the file system has a category."""

import sqlite3
from contextlib import closing

import pytest

from multiclouddb_api import ErrorCategory as Category
from multiclouddb_api import MulticloudDbError
from multiclouddb_embedded.errors import classify, store_errors

# The library, not the user, makes the mistakes of the last line: a wrong statement or a violated constraint.
NAMES = {
    Category.TRANSIENT_FAILURE: "ABORT BUSY INTERRUPT IOERR LOCKED NOMEM PROTOCOL SCHEMA",
    Category.NOT_FOUND: "CANTOPEN NOTFOUND",
    Category.INVALID_REQUEST: "NOTADB",
    Category.AUTHORIZATION_FAILED: "AUTH PERM READONLY",
    Category.PROVIDER_ERROR: "TOOBIG",
    Category.PERMANENT_FAILURE: "CORRUPT FORMAT FULL NOTICE WARNING NOLFS "
    "CONSTRAINT EMPTY ERROR INTERNAL MISMATCH MISUSE RANGE",
}
CATEGORIES = {f"SQLITE_{name}": category for category, names in NAMES.items() for name in names.split()}


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
    assert (fault.category, fault.retryable, fault.code) == (
        CATEGORIES[name],
        CATEGORIES[name] is Category.TRANSIENT_FAILURE,
        name,
    )
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
    assert (detail.category, detail.provider) == (Category.PERMANENT_FAILURE, "embedded")
    assert detail.operation == "put"
    assert (detail.native_code, detail.native_class) == ("SQLITE_FULL", "sqlite3.OperationalError")
    with pytest.raises(MulticloudDbError) as again, store_errors("outer"):
        raise caught.value
    assert again.value is caught.value
