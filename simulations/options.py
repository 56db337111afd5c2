"""Options that several commands of this package share."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simulations.federate import Superlink


class Backend(StrEnum):
    """Where simulated clients run."""

    RAY = "ray"
    INLINE = "inline"


Where = Annotated[
    Backend,
    typer.Option(
        help="ray: Flower's simulation, clients in parallel; inline: in this process, one after another."
    ),
]

SUPERLINK = typer.Option(
    "--superlink",
    help="A SuperLink with deployed clients: a connection's name in Flower's config.toml, or host:port.",
    show_default=False,
)
ROOT_CERTIFICATES = typer.Option(
    "--root-certificates", help="With host:port: the SuperLink's ca.crt.", show_default=False
)
INSECURE = typer.Option("--insecure", help="With host:port: plain HTTP, to try things out.")


def target(backend: Backend, superlink: str, root_certificates: str, insecure: bool) -> Backend | Superlink:
    """Return where a run's clients are: at a SuperLink where one is named, else simulated."""
    if not superlink:
        return backend
    from simulations.federate import Superlink

    return Superlink(superlink, root_certificates, insecure)
