"""The conformance suite's harness for Cloud Spanner."""

import base64
import json
from datetime import timedelta
from decimal import Decimal

from google.cloud import spanner

from multiclouddb_api import ClientConfig, ResourceAddress
from multiclouddb_conformance.harness import Harness, Kind
from multiclouddb_conformance.values import KEYS, VALUES
from multiclouddb_spanner.provider import CAPABILITIES, PLUGIN

from .servers.emulator import HASTY, STILL, shared

# Maps each field to the type of its column. All other fields of a document share one further column.
COLUMNS = {
    "n": "INT64", "number": "INT64", "probe": "INT64", "kept": "STRING(MAX)", "text": "STRING(MAX)",
    "list": "JSON", "added": "JSON", "of_bool": "BOOL", "of_bytes": "BYTES(MAX)", "of_decimal": "NUMERIC",
    "of_float": "FLOAT64", "of_int": "INT64", "of_json": "JSON", "of_text": "STRING(MAX)",
}  # fmt: skip
TYPES = {
    bool: "of_bool", bytes: "of_bytes", Decimal: "of_decimal", float: "of_float", int: "of_int",
    dict: "of_json", list: "of_json", str: "of_text", type(None): "of_text",
}  # fmt: skip


def columns_of(fields):
    """Return the fields of a document by column."""
    return {TYPES[type(value)] if name == "value" else name: plain(value) for name, value in fields.items()}


def plain(value):
    """Return a number in the form that Spanner returns: 1.50 becomes 1.5."""
    return value.normalize() if isinstance(value, Decimal) else value


def native(name, value):
    """Return a value in the form in which the vendor's library writes it."""
    if value is not None and COLUMNS.get(name) == "JSON":
        return json.dumps(value)
    return base64.b64encode(value) if isinstance(value, bytes) else value


class SpannerHarness(Harness):
    """A harness with Google's emulator.

    The tests of a worker share the emulator, but each test has its own database.
    """

    capabilities = CAPABILITIES
    plugin = PLUGIN
    rounding = timedelta(microseconds=1)
    flags = STILL
    can_several = False  # the emulator chooses the number of partitions
    can_split = can_merge = False  # the emulator splits by itself, or not at all
    can_trim = can_poison = can_expire = can_keys_only = False
    can_notices = can_other_options = can_secrets = False
    value_types = frozenset(VALUES) - {"integer over 64 bit", "infinity", "datetime", "uuid", "set"}
    key_types = frozenset(KEYS) & {"text", "unicode"}

    def open(self):
        self.emulator = shared(self.flags)
        self.databases = []

    def close(self):
        for database in self.databases:
            database.drop()

    def config(self):
        return ClientConfig("spanner", {"url": self.emulator.url})

    def run(self, statements):
        if self.databases:
            self.databases[0].update_ddl(statements).result(60)
        else:
            self.databases.append(self.emulator.database(*statements))
        return self.databases[0].database_id

    def create(self, name, kind, partitions):
        capture = "NEW_ROW_AND_OLD_VALUES" if kind is Kind.OLD_IMAGES else "NEW_ROW"
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
        self.statements = [
            f"CREATE TABLE {name} (id STRING(MAX) NOT NULL, {columns}) PRIMARY KEY (id)",
            f"CREATE CHANGE STREAM {name}_stream FOR {name} OPTIONS (value_capture_type = '{capture}')",
        ]
        return ResourceAddress(self.run(self.statements), name)

    def document(self, key, fields):
        return {"id": key, **dict.fromkeys(COLUMNS), **columns_of(fields)}

    def write(self, address, writes):
        with self.databases[0].batch() as batch:
            for write in writes:
                if write.document is None:
                    batch.delete(address.collection, spanner.KeySet(keys=[[write.key]]))
                else:
                    row = self.document(write.key, write.document)
                    values = [native(name, value) for name, value in row.items()]
                    batch.insert_or_update(address.collection, list(row), [values])

    def recreate(self, address):
        name = address.collection
        self.run([f"DROP CHANGE STREAM {name}_stream", f"DROP TABLE {name}", *self.statements])


class HastyHarness(SpannerHarness):
    """A harness with the emulator's fastest settings: partitions live for 3 to 6 seconds."""

    flags = HASTY
    can_still = can_key_order = False  # the changes of a key can go to any partition
