"""Defines a base class that lets objects change between two classes with the same slots."""

from __future__ import annotations

__all__ = ["Slotted"]


class Slotted:
    """A base class that has only one slot, for weak references.

    An object can change its class if both classes add the same slots to the same base class. Therefore, a
    provider can fill a draft, whose attributes are not protected, and then turn the draft into a frozen
    value. This is faster, because setting an attribute of a frozen value needs a function call, and setting
    an attribute of a draft does not.
    """

    __slots__ = ("__weakref__",)
