"""The deletion ledger: durable, append-only, and able to show that nothing was altered."""

from fedforget.sequences.ledger.records import (
    ALREADY_DELETED,
    DELETED,
    UNKNOWN,
    Deletion,
    Event,
    Head,
    Module,
    Outcome,
)
from fedforget.sequences.ledger.store import Ledger
from fedforget.sequences.ledger.views import Request

__all__ = [
    "ALREADY_DELETED",
    "DELETED",
    "UNKNOWN",
    "Deletion",
    "Event",
    "Head",
    "Ledger",
    "Module",
    "Outcome",
    "Request",
]
