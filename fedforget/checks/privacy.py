"""What a configuration can get wrong about privacy."""

from __future__ import annotations

import dataclasses
import math

from fedforget.checks.ranges import at_least
from fedforget.config import RunConfig
from fedforget.defence_config import PrivacyConfig


def privacy_problems(config: RunConfig) -> list[str]:
    """Return one sentence per value of ``privacy`` out of range and per contradiction."""
    privacy = config.privacy
    sizes = {name: getattr(privacy, name) for name in ("clip", "fisher_clip", "noise_multiplier")}
    problems = [problem for name, value in sizes.items() for problem in at_least(f"privacy.{name}", value, 0)]
    if not 0.0 < privacy.delta < 1.0 or math.isnan(privacy.delta):
        problems.append(f"privacy.delta: {privacy.delta} is outside (0, 1)")
    off = dataclasses.replace(privacy, delta=PrivacyConfig().delta) == PrivacyConfig()
    absent = [name for name, value in sizes.items() if value == 0.0]
    if problems or off:
        return problems
    if absent:
        return [
            f"privacy.{absent[0]}: is 0; a guarantee needs clip, fisher_clip and noise_multiplier above 0, "
            "or all of them 0 for none"
        ]
    if config.communication.fisher == "two-phase":
        problems.append(
            "privacy: each client releases its summary once, and communication.fisher 'two-phase' asks it "
            "again; set it to exact"
        )
    return problems
