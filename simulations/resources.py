"""Whether this machine can run a simulated federation, told before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from fedforget.config import ModelConfig
from fedforget.errors import RunError
from fedforget.presets import AnyConfig
from fedforget.workers import available_cpus

# Python, torch, transformers and Ray in one process, measured; bytes.
_PROCESS = 700 * 2**20
_BYTES = {"fp32": 4.0, "bf16": 2.0, "nf4": 0.6}


@dataclass(frozen=True)
class Federation:
    """Size of a simulated federation.

    Attributes
    ----------
    nodes : int
        Simulated SuperNodes.
    cpus_per_client, gpus_per_client : int, float
    cpus : int
        CPUs that Ray may use: no more than there are nodes to serve.
    gpus : int
    """

    nodes: int
    cpus_per_client: int
    gpus_per_client: float
    cpus: int
    gpus: int

    @property
    def actors(self) -> int:
        """Clients that run at once."""
        by_cpu = self.cpus // self.cpus_per_client
        by_gpu = int(self.gpus / self.gpus_per_client + 1e-9) if self.gpus_per_client else by_cpu
        return max(1, min(by_cpu, by_gpu))

    def flower(self) -> str:
        """Return it as a ``--federation-config``."""
        words = [
            f"num-supernodes={self.nodes}",
            f"client-resources-num-cpus={self.cpus_per_client}",
            f"client-resources-num-gpus={float(self.gpus_per_client)}",
            f"init-args-num-cpus={self.cpus}",
        ]
        return " ".join(words)


def available_gpus() -> int:
    """Return how many CUDA devices torch sees."""
    import torch

    return torch.cuda.device_count()


def federation(config: AnyConfig, cpus: int | None = None, gpus: int | None = None) -> Federation:
    """Fit a configuration's federation to this machine.

    Raises
    ------
    RunError
        A client asks for more CPUs or GPUs than there are.
    """
    wanted = config.simulation
    cpus = available_cpus() if cpus is None else cpus
    if wanted.cpus_per_client > cpus:
        raise RunError(
            f"a client asks for {wanted.cpus_per_client} CPUs and this machine has {cpus}; "
            f"set simulation.cpus_per_client={cpus}"
        )
    if wanted.gpus_per_client:
        gpus = available_gpus() if gpus is None else gpus
        if wanted.gpus_per_client > gpus:
            raise RunError(
                f"a client asks for {wanted.gpus_per_client:g} GPUs and torch sees {gpus}; "
                "set simulation.gpus_per_client=0 to run on CPUs"
            )
    used = min(wanted.nodes, cpus // wanted.cpus_per_client) * wanted.cpus_per_client
    return Federation(wanted.nodes, wanted.cpus_per_client, wanted.gpus_per_client, used, gpus or 0)


def memory_warning(config: AnyConfig, actors: int, available: int | None = None) -> str:
    """Return a sentence if the clients that run at once will probably not fit, else nothing.

    The estimate counts one backbone per client that runs at once and one for the server, and what
    the processes need themselves. Where the Fisher is taken at another precision, a client's is the
    larger of the two copies, or both with ``model.hold_both``.
    A backbone whose size cannot be told without a download is not estimated.

    Parameters
    ----------
    config : RunConfig or SequentialRunConfig
    actors : int
        Clients that run at once.
    available : int, optional
        Bytes of memory; by default what the machine (or its GPU) has available now.
    """
    parameters = parameter_count(config)
    if parameters is None:
        return ""
    model = config.model
    backbone = parameters * (_BYTES[model.precision] if isinstance(model, ModelConfig) else 4.0)
    if isinstance(model, ModelConfig) and model.fisher_precision not in {"same", model.precision}:
        reference = parameters * _BYTES[model.fisher_precision]
        backbone = backbone + reference if model.hold_both else max(backbone, reference)
    on_gpu = config.simulation.gpus_per_client > 0
    where = "GPU" if on_gpu else "RAM"
    overhead = 0 if on_gpu else _PROCESS
    need = (actors + 1) * (backbone * 1.2 + overhead)
    if available is None:
        available = _gpu_memory() if on_gpu else psutil.virtual_memory().available
    if need <= available:
        return ""
    return (
        f"{actors} clients at once and the server need about {need / 2**30:.1f} GiB of {where}, "
        f"{available / 2**30:.1f} GiB are free; lower simulation.nodes or raise simulation.cpus_per_client "
        "to run fewer at once"
    )


def parameter_count(config: AnyConfig) -> int | None:
    """Return about how many parameters the backbone has, or ``None`` where that needs a download."""
    model = config.model
    if isinstance(model, ModelConfig) and model.path == "tiny":
        tiny = model.tiny
        return tiny.layers * 16 * tiny.width**2 + 2 * 4096 * tiny.width
    folder = Path(model.path)
    if folder.is_dir():
        sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
        return sum(sizes) // 2 if sizes else None
    return None


def _gpu_memory() -> int:
    import torch

    return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
