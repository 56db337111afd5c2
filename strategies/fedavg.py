"""FedAvg (McMahan et al. 2017) over the same clients, modules and messages as FedSGT."""

from __future__ import annotations

from logging import INFO

from flwr.supercore import log

from strategies.fedsgt import FedSGT


class FedAvg(FedSGT):
    """One module, trained by all clients on all their slices for T rounds (``training.rounds``).

    It is FedSGT with one group, so its averages, its seeds, its ledger and ``fedforget verify`` are
    those of FedSGT. Every client with data takes part in every round. A deletion takes the only
    module out of service: FedAvg has no unlearning, and is the reference for what training costs and
    how well it serves. Parameters as for :class:`strategies.fedsgt.FedSGT`.
    """

    def summary(self) -> None:
        """Log the strategy as a tree."""
        config = self.config
        log(INFO, "\t├──> Clients: %d, %d slices each", config.data.clients, config.data.slices)
        log(INFO, "\t├──> Module: %s and head", config.module.kind)
        log(INFO, "\t└──> Training: %d round(s), %d local epoch(s)",
            config.training.rounds, config.training.local_epochs)  # fmt: skip
