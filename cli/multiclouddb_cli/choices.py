"""The values of options that have a fixed set of them."""

from enum import StrEnum


class Kind(StrEnum):
    """The kind of a change, as an option's value."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Want(StrEnum):
    """Whether events include a document."""

    OMIT = "omit"
    INCLUDE = "include"
    REQUIRE = "require"


class Expired(StrEnum):
    """What to do if the position is older than the retention."""

    FAIL = "fail"
    SKIP = "skip"
    SNAPSHOT = "snapshot"
