"""The base of values that are built from columns: it makes two classes with the same slots exchangeable."""

from __future__ import annotations

__all__ = ["Slotted"]


class Slotted:
    """Holds only the place of weak references.

    An object can be given another class if both classes add the same slots to the same base. So a draft with
    plain attributes can become a frozen value. Each attribute of a frozen value costs a call to set, and an
    attribute of a draft does not.
    """

    __slots__ = ("__weakref__",)
