"""The `fedforget` command's groups, one module each; :mod:`fedforget.cli` gathers them."""
