"""What commands print: tables, and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fedforget.reporting.tables import Table


def show(table: Table) -> None:
    """Print a table; what draws it is imported only then."""
    from rich.console import Console
    from rich.text import Text

    from fedforget.reporting.terminal import panels

    console = Console()
    for panel in panels(table, console.width):
        console.print(panel)
    if table.notes:
        console.print(Text("\n".join(table.notes), style="table.caption"))


def progress(line: str) -> None:
    """Tell how far a command is, beside its results."""
    typer.echo(line, err=True)
