"""What a node says of itself when a FIRM run begins."""

from __future__ import annotations

from collections.abc import Sequence

from fedforget import protocol
from fedforget.client_specs import ClientSpec
from fedforget.codecs import CODECS
from fedforget.config import RunConfig
from fedforget.data import client_examples
from fedforget.expert import starting_model
from fedforget.models import cached_backbone
from fedforget.protocol import Description


def describe_node(
    config: RunConfig, partition: int, specs: Sequence[ClientSpec] = (), client_id: str = ""
) -> Description:
    """Describe a node.

    Parameters
    ----------
    config : RunConfig
    partition : int
        A simulated node's number, -1 for a deployed one.
    specs : sequence of ClientSpec
        The clients that a deployed node declares.
    client_id : str
        The ``client-id`` that it declares.

    Raises
    ------
    FedForgetError
        The backbone cannot be loaded, or a client has no data.
    """
    return Description(
        fingerprint=cached_backbone(starting_model(config), config.seeds.model).fingerprint,
        versions=protocol.installed(),
        clients=tuple(specs),
        partition=partition,
        sizes={spec.id: len(client_examples(config, spec)) for spec in specs},
        client_id=client_id,
        codecs=tuple(sorted(CODECS)),
    )
