"""Tables, figures and one self-contained page per run, all from stored data."""

from fedforget.reporting.html import render, write_report
from fedforget.reporting.tables import Table, markdown

__all__ = ["Table", "markdown", "render", "write_report"]
