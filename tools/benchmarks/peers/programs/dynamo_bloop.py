"""Reads a table's stream with bloop, which makes an object from each item."""

from __future__ import annotations

from typing import Any

import boto3
from bloop import BaseModel, Column, Engine, Number, String

from benchmarks.peers.programs.meter import Meter, read_spec


def main() -> None:
    """Read until the last change."""
    spec = read_spec()
    engine = Engine()
    model = _model(spec)
    # Without this, engine.bind makes a call that DynamoDB Local does not support.
    engine.bind(model, skip_table_setup=True)
    table = boto3.client("dynamodb").describe_table(TableName=spec["table"])["Table"]
    model.Meta.stream["arn"] = table["LatestStreamArn"]
    stream = engine.stream(model, "trim_horizon")
    finished = False
    with Meter(spec) as meter:
        while not finished:
            record = next(stream)
            if record is not None:
                finished = meter.take(record["new"].pk)
        meter.report()


def _model(spec: dict[str, Any]) -> Any:
    """Make the class of the table's items, with a column for each attribute."""
    meta = type("Meta", (), {"table_name": spec["table"], "stream": {"include": {"new"}}})
    fields = {name: Column(String) for name in spec["fields"]}
    columns = {"pk": Column(String, hash_key=True), "number": Column(Number), **fields}
    return type("Item", (BaseModel,), {"Meta": meta, **columns})


if __name__ == "__main__":
    main()
