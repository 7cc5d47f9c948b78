"""Knows what Java's launcher and Spark's workers print when nothing is wrong."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["complaints_in"]

_BY_JAVA: Final = "WARNING: Using incubator modules: jdk.incubator.vector\n"
# From Spark 4.1 on, a process of Python prints this if Spark reads no more when it writes what is left.
_UNREAD: Final = re.compile(
    r"Traceback \(most recent call last\):\n"
    r"(?: +File \S+pyspark/daemon\.py\", line \d+, in \w+\n(?:    .*\n)*)+"
    r"BrokenPipeError: \[Errno 32\] Broken pipe\n"
)


def complaints_in(printed: str) -> str:
    """Return what a program with Spark has printed on standard error, without what is printed always."""
    return _UNREAD.sub("", printed.replace(_BY_JAVA, ""))
