"""Retention-constrained projection of one weight tensor (FIRM, section 4.2.3 and appendix B)."""

from __future__ import annotations

from fedforget.projection.api import SOLVERS, Projection, project
from fedforget.projection.certificate import Certificate
from fedforget.projection.sparse import FisherSupport

__all__ = ["SOLVERS", "Certificate", "FisherSupport", "Projection", "project"]
