"""The words that server and clients share: message types, record names, and who a client is.

Plain values only, so that ``strategies`` and ``clients`` can both use them without importing
each other, and so that this package needs no Flower.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from fedforget.client_specs import ClientSpec
from fedforget.errors import RunError
from fedforget.runs import versions

Record = TypeVar("Record")

DESCRIBE = "query.describe"  # every node: who are you?
UNLEARN = "train.unlearn"  # one logical client: train, and send the summary
VALUES = "query.values"  # one logical client: further entries of its Fisher (two-phase pooling)
EVALUATE = "evaluate"  # one logical client: the loss on its own examples

# Records of a message.
CONFIG = "config"
ARRAYS = "arrays"
METRICS = "metrics"
INFO = "info"

# Keys of the CONFIG record of a request.
RUN_CONFIG = "run-config"  # the whole configuration, as YAML
FISHER = "fisher"  # an Instruction as JSON: the codec that the client's Fisher is to travel in
CLIENT = "client"  # a ClientSpec as JSON; absent where the node declares its own client

DECLARED = "declared"  # id of the one of the node's own clients that the message is for

# Keys of the INFO record of a reply.
CLIENTS = "clients"  # ClientSpecs as a JSON list: those that the node declares
MANIFEST = "manifest"
FINGERPRINT = "fingerprint"
DIGEST = "fisher-digest"  # of the Fisher that a client keeps for a second phase; also in the request


def record_in(content: Mapping[str, Any], name: str, kind: type[Record]) -> Record | None:
    """Return a record of a message's content; None where it is not there, or of another kind.

    The views that Flower offers for this (``content.array_records``) refer to themselves: they keep the
    message, with all its arrays, until the garbage collector comes by, which can be many messages later.

    Parameters
    ----------
    content : mapping of str to record
    name : str
    kind : type
        Flower's ArrayRecord, MetricRecord or ConfigRecord.
    """
    found = content.get(name)
    return found if isinstance(found, kind) else None


def spec_to_json(spec: ClientSpec) -> str:
    """Return a logical client as JSON."""
    return json.dumps(dataclasses.asdict(spec))


def spec_from_json(text: str) -> ClientSpec:
    """Read back what :func:`spec_to_json` wrote.

    Raises
    ------
    RunError
        The text is not a client.
    """
    try:
        raw = json.loads(text)
        spec = ClientSpec(**raw)
    except (ValueError, TypeError) as error:
        raise RunError(f"the message names a client that cannot be read ({error})") from error
    wrong = [f.name for f in dataclasses.fields(spec) if type(getattr(spec, f.name)).__name__ != f.type]
    if wrong:
        raise RunError(f"the message names a client whose {wrong[0]!r} has the wrong type")
    return spec


@dataclasses.dataclass(frozen=True)
class Description:
    """What a node says of itself.

    Attributes
    ----------
    fingerprint : str
        The backbone's, as the node loaded it.
    versions : mapping of str to str
        Of the packages that the numbers depend on.
    clients : tuple of ClientSpec
        The clients that a deployed node declares in its node configuration, one per role and domain.
    partition : int
        A simulated node's number, -1 for a deployed one.
    sizes : mapping of str to int
        The declared clients' training examples, by client id.
    client_id : str
        The ``client-id`` of a deployed node; empty where it declares none.
    codecs : tuple of str
        What a Fisher can be sent in.
    """

    fingerprint: str
    versions: Mapping[str, str]
    clients: tuple[ClientSpec, ...] = ()
    partition: int = -1
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    client_id: str = ""
    codecs: tuple[str, ...] = ()

    def to_properties(self) -> dict[str, str | int]:
        """Return it as the flat scalars that a Flower record or ``get_properties`` holds."""
        return {
            FINGERPRINT: self.fingerprint,
            "versions": json.dumps(dict(self.versions)),
            CLIENTS: json.dumps([spec_to_json(spec) for spec in self.clients]),
            "partition-id": self.partition,
            "sizes": json.dumps(dict(self.sizes)),
            "client-id": self.client_id,
            "codecs": " ".join(self.codecs),
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Description:
        """Read back what :meth:`to_properties` wrote.

        Raises
        ------
        RunError
            Something is missing or of another type.
        """
        try:
            found = {str(k): str(v) for k, v in json.loads(properties["versions"]).items()}
            return cls(
                fingerprint=str(properties[FINGERPRINT]),
                versions=found,
                clients=tuple(spec_from_json(text) for text in json.loads(properties[CLIENTS])),
                partition=int(properties["partition-id"]),
                sizes={str(k): int(v) for k, v in json.loads(properties["sizes"]).items()},
                client_id=str(properties["client-id"]),
                codecs=tuple(str(properties["codecs"]).split()),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise RunError(
                f"a node's description cannot be read ({type(error).__name__}: {error})"
            ) from error


def installed() -> dict[str, str]:
    """Return the versions that a description carries."""
    return versions(("fedforget", "torch", "transformers", "peft"))
