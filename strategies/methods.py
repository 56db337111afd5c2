"""Which strategy trains a run, by the configuration's method."""

from __future__ import annotations

from fedforget.errors import ConfigError
from strategies.fedavg import FedAvg
from strategies.fedcio import FedCIO
from strategies.federaser import FedEraser
from strategies.fedretrain import FedRetrain
from strategies.fedsgt import FedSGT
from strategies.gradient_ascent import GradientAscent

STRATEGIES: dict[str, type[FedSGT]] = {
    "fedsgt": FedSGT,
    "fedavg": FedAvg,
    "fedretrain": FedRetrain,
    "fedcio": FedCIO,
    "federaser": FedEraser,
    "gradient_ascent": GradientAscent,
}


def strategy_of(method: str) -> type[FedSGT]:
    """Return a method's strategy.

    Raises
    ------
    ConfigError
        There is none.
    """
    if method not in STRATEGIES:
        raise ConfigError([f"method: {method!r} has no strategy; choose one of {', '.join(STRATEGIES)}"])
    return STRATEGIES[method]
