"""Defines a base class that lets objects change between two classes with the same slots."""

from __future__ import annotations

__all__ = ["Slotted"]


class Slotted:
    """A base class that has only one slot, for weak references.

    An object can change its class if both classes add the same slots to the same base class.
    Therefore, an object whose attributes can be set (a draft) can become an object of a frozen
    class. Filling a draft is faster than filling a frozen object, because setting an attribute of a
    frozen object needs a function call.
    """

    __slots__ = ("__weakref__",)
