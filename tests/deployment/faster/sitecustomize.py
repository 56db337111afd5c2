"""Loaded by every process of a test's federation: Flower's polls and time-outs, a few times shorter.

A SuperNode asks for messages every 3 s, and is taken for gone a minute after its last sign of life.
"""

import sys
import time

if any("flower-" in word or "flwr" in word for word in sys.orig_argv[:3]):
    import flwr.common.constant as constant

    # Of 30 s. Much less, and a process that a busy machine starts slowly counts as dead.
    constant.HEARTBEAT_DEFAULT_INTERVAL = 15
    _sleep = time.sleep
    time.sleep = lambda seconds: _sleep(0.2 if seconds in (1, 3) else seconds)
