"""Provides a table for the tests, with methods that write to it natively."""

import threading

from google.cloud import spanner

COLUMNS = "id STRING(MAX) NOT NULL, n INT64, text STRING(MAX)"


class Table:
    """A table with its change streams, which watch all of the table by default, in its own database."""

    def __init__(
        self,
        emulator,
        columns=COLUMNS,
        key="id",
        capture="NEW_ROW_AND_OLD_VALUES",
        dialect=None,
        watch=None,
        streams=("items_stream",),
        name="items",
    ):
        self.emulator, self.name = emulator, name
        word = "OPTIONS" if dialect is None else "WITH"
        options = f" {word} (value_capture_type = '{capture}')" if capture else ""
        made = f"({columns}) PRIMARY KEY ({key})" if dialect is None else f"({columns}, PRIMARY KEY ({key}))"
        self.streams = [f"CREATE CHANGE STREAM {stream} FOR {watch or name}{options}" for stream in streams]
        self.database = emulator.database(f"CREATE TABLE {name} {made}", *self.streams, dialect=dialect)
        self._lock = threading.Lock()

    @property
    def where(self):
        """Return the table's address as a command-line argument."""
        return f"{self.database.database_id}/{self.name}"

    def ddl(self, *statements):
        self.database.update_ddl(statements).result(60)

    def put(self, *rows, names=("id", "n", "text"), table=None):
        """Create or update rows, in one transaction."""
        with self._lock, self.database.batch() as batch:
            batch.insert_or_update(table or self.name, names, rows)

    def insert(self, *rows, names=("id", "n", "text")):
        with self._lock, self.database.batch() as batch:
            batch.insert(self.name, names, rows)

    def update(self, *rows, names):
        with self._lock, self.database.batch() as batch:
            batch.update(self.name, names, rows)

    def delete(self, *keys):
        """Delete rows, in one transaction."""
        with self._lock, self.database.batch() as batch:
            batch.delete(self.name, spanner.KeySet(keys=[[key] for key in keys]))

    def drop(self):
        self.database.drop()
