"""What importing the package does, before either app imports anything else."""

from __future__ import annotations

import importlib
import logging
import warnings

import clients


def test_advice_on_what_is_not_needed_stays_out_of_the_apps_logs() -> None:
    logger = logging.getLogger("bitsandbytes")
    logger.setLevel(logging.NOTSET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(clients)
        warnings.warn("`torch.jit.script_method` is deprecated.", DeprecationWarning, stacklevel=1)
    assert not logger.getChild("backends.cpu.ops").isEnabledFor(logging.WARNING)
