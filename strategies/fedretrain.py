"""FedRetrain: exact unlearning by training everything again."""

from __future__ import annotations

from flwr.serverapp import Grid

from fedforget.sequences.ledger import Ledger
from strategies.fedavg import FedAvg


class FedRetrain(FedAvg):
    """FedAvg that, started after a deletion, begins a new generation on what remains.

    Nothing serves from the deletion until that is trained. Exactness is that of training anew: no
    tensor of a generation before is read. Parameters as for :class:`strategies.fedsgt.FedSGT`.
    """

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Find the clients and open the ledger; after a deletion, with a new generation."""
        if not self.regroup and self.run.ledger.is_file():
            with Ledger(self.run.ledger, read_only=True) as ledger:
                if ledger.deleted_groups():
                    self.regroup = {"generation": ledger.generation()}
        super().prepare(grid, timeout)
