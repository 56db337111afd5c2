"""Tables for the terminal: one that is too wide for it is cut into panels, and no number is broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from fedforget.reporting.tables import Table

_WRAPPED = 20  # a cell of more characters than this is text, and may take several lines
_FRAME = 3  # a column's padding and the line after it


def panels(table: Table, width: int) -> list[RichTable]:
    """Return a table as one or more of at most ``width`` characters.

    Each has all rows; those after the first repeat the columns that tell the rows apart. Only texts, and
    headings between their words, are wrapped. A column that fits in no way is left to rich.
    """
    needed = [_needed(table, i) for i in range(len(table.columns))]
    cuts = list(_cuts(table, needed, width))
    return [_panel(table, columns, needed, width, first=columns is cuts[0]) for columns in cuts]


def _cuts(table: Table, needed: Sequence[int], width: int) -> Iterator[list[int]]:
    names = list(range(min(table.names, len(needed))))
    columns = list(names)
    for i in range(len(names), len(needed)):
        if len(columns) > len(names) and _total(needed, [*columns, i]) > width:
            yield columns
            columns = list(names)
        columns.append(i)
    yield columns


def _panel(
    table: Table, columns: Sequence[int], needed: Sequence[int], width: int, *, first: bool
) -> RichTable:
    shown = RichTable(title=table.title if first else f"{table.title} (continued)", title_justify="left")
    spare = width - _total(needed, columns)
    for i in columns:
        more = max(0, min(spare, _natural(table, i) - needed[i]))
        spare -= more
        size = needed[i] + more if spare >= 0 else None
        justify = "left" if i == 0 else "right"
        shown.add_column(table.columns[i], justify=justify, overflow="fold", width=size)  # type: ignore[arg-type]
    for row in table.rows:
        # Text, not str: rich would read square brackets in a cell as markup.
        shown.add_row(*(Text(row[i]) for i in columns))
    return shown


def _total(needed: Sequence[int], columns: Sequence[int]) -> int:
    return 1 + sum(needed[i] + _FRAME for i in columns)


def _natural(table: Table, column: int) -> int:
    return max(cell_len(text) for text in _texts(table, column))


def _needed(table: Table, column: int) -> int:
    """Return the least width: that of the longest cell; of texts and the heading, of the longest word."""
    head, *cells = _texts(table, column)
    return max(
        _word(head), *(one if (one := cell_len(text)) <= _WRAPPED else _text(text) for text in cells), 1
    )


def _text(text: str) -> int:
    return max(_WRAPPED, _word(text))


def _word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _texts(table: Table, column: int) -> list[str]:
    return [table.columns[column], *(row[column] for row in table.rows)]
