"""What importing the package does, before either app imports anything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# In a process of its own: what others did to the filters and loggers of this one must not matter.
APP = """
import logging, warnings
warnings.simplefilter("error")
import clients
warnings.warn("`torch.jit.script_method` is deprecated.", DeprecationWarning)
assert not logging.getLogger("bitsandbytes.backends.cpu.ops").isEnabledFor(logging.WARNING)
try:
    warnings.warn("another function is deprecated.", DeprecationWarning)
except DeprecationWarning:
    print("only this one")
"""


def test_advice_on_what_is_not_needed_stays_out_of_the_apps_logs() -> None:
    done = subprocess.run([sys.executable, "-c", APP], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "only this one\n", done.stderr
