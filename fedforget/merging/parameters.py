"""Here until all methods import :mod:`fedforget.parameters`."""

from fedforget.parameters import *  # noqa: F403
