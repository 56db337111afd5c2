"""Make a federated model forget, and prove that it did.

This package is the library: tensors, models, data and statistics. It imports neither
Flower nor Ray; ``strategies``, ``clients`` and ``simulations`` bring it onto Flower.
"""

__version__ = "0.1.0"
