"""What a configuration can get wrong about a simulated federation's resources."""

from __future__ import annotations

from fedforget.checks.ranges import at_least, positive
from fedforget.config import SimulationConfig


def simulation_problems(simulation: SimulationConfig) -> list[str]:
    """Return one sentence per value of ``simulation`` out of range."""
    return [
        *at_least("simulation.nodes", simulation.nodes, 1),
        *at_least("simulation.cpus_per_client", simulation.cpus_per_client, 1),
        *at_least("simulation.gpus_per_client", simulation.gpus_per_client, 0),
        *positive("simulation.timeout", simulation.timeout),
    ]
