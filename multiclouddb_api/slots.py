"""Defines a base class that lets objects change between two classes with the same slots."""

from __future__ import annotations

__all__ = ["Slotted"]


class Slotted:
    """A base class that has only one slot, for weak references.

    An object can change its class if both classes add the same slots to the same base class. Therefore a
    draft with plain attributes can become a frozen value. Building a value from a draft is faster, because
    setting an attribute of a frozen value needs a function call.
    """

    __slots__ = ("__weakref__",)
