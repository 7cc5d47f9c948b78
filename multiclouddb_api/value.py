"""The decorators of value classes: those of attrs."""

from attrs import define, frozen

__all__ = ["define", "frozen"]
