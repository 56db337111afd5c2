"""Local differential privacy of a client's summary: what is released, and how much that tells."""

from fedforget.privacy.accounting import account, gaussian_delta, gaussian_epsilon
from fedforget.privacy.release import private_fisher, private_task_vector

__all__ = ["account", "gaussian_delta", "gaussian_epsilon", "private_fisher", "private_task_vector"]
