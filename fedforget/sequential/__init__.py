"""FedSGT and the exact baselines: a frozen classifier, its modules, training, serving, verification."""
