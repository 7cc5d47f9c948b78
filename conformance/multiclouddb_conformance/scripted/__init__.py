"""Scripted servers: a service's wire protocol for its unmodified SDK, with troubles on demand."""
