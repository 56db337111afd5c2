"""Loaded by every process of a test's federation: Flower's polls and time-outs, a few times shorter.

A SuperNode asks for messages every 3 s, and is taken for gone a minute after its last sign of life. Each
message is worked on by a new process, which imports torch and more for seconds: see ``flwr_forks``.
"""

import os
import sys
import time

if any("flower-" in word or "flwr" in word for word in sys.orig_argv[:3]):
    import flwr.common.constant as constant

    # Of 30 s; less, and a process that a busy machine starts slowly counts as dead.
    constant.HEARTBEAT_DEFAULT_INTERVAL = constant.HEARTBEAT_MIN_INTERVAL
    _sleep = time.sleep
    time.sleep = lambda seconds: _sleep(0.2 if seconds in (1, 3) else seconds)
    if any("flower-superexec" in word for word in sys.orig_argv[:3]) and os.environ.get("FORKS"):
        import flwr_forks

        flwr_forks.install()
