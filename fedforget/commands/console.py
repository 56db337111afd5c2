"""Tables on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedforget.reporting.tables import Table


def show(table: Table) -> None:
    """Print a table; what draws it is imported only then."""
    from rich.console import Console

    from fedforget.reporting import rich

    Console().print(rich(table))
