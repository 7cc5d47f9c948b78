"""The base class of values built from columns: it makes two classes with the same slots exchangeable."""

from __future__ import annotations

__all__ = ["Slotted"]


class Slotted:
    """Contains only the slot for weak references.

    An object can change its class if both classes add the same slots to the same base class. So a draft with
    plain attributes can become a frozen value. Setting an attribute of a frozen value costs a call, and
    setting an attribute of a draft does not.
    """

    __slots__ = ("__weakref__",)
