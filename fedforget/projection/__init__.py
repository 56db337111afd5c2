"""Retention-constrained projection of one weight tensor (FIRM, section 4.2.3 and appendix B)."""

from __future__ import annotations

from fedforget.projection.api import SOLVERS, Projection, project, solved_budget
from fedforget.projection.certificate import Certificate
from fedforget.projection.recheck import recheck
from fedforget.projection.sparse import FisherSupport

__all__ = ["SOLVERS", "Certificate", "FisherSupport", "Projection", "project", "recheck", "solved_budget"]
