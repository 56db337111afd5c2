"""Which clients there are, and the data that each of them holds."""

from __future__ import annotations

from collections import Counter

from fedforget.checks.ranges import at_least, one_of, positive
from fedforget.client_specs import expand_clients
from fedforget.config import ClientGroup, RunConfig
from fedforget.errors import ConfigError
from fedforget.objectives import needs_retain, objective
from fedforget.summaries import is_client_id


def client_problems(config: RunConfig) -> list[str]:
    """Return one sentence per problem of the sections ``clients``, and of the data that objectives read."""
    return [*_clients(config.clients), *_retain_data(config)]


def _clients(groups: list[ClientGroup]) -> list[str]:
    problems = []
    for i, group in enumerate(groups):
        problems += one_of(f"clients[{i}].role", group.role, ("forget", "retain"))
        problems += at_least(f"clients[{i}].count", group.count, 1)
        problems += at_least(f"clients[{i}].max_examples", group.max_examples, 0)
        problems += one_of(f"clients[{i}].partition", group.partition, ("iid", "contiguous", "dirichlet"))
        problems += positive(f"clients[{i}].dirichlet_alpha", group.dirichlet_alpha)
        if not group.domain:
            problems.append(f"clients[{i}].domain: is empty; name the domain that these clients hold")
        elif not is_client_id(name := f"{group.role}-{group.domain}-{group.count}"):
            # Here and not once the clients are asked: by then the backbone is loaded and measured.
            problems.append(
                f"clients[{i}].domain: makes the client id {name!r}, which is not 1 to 128 letters, "
                "digits, '.', '_' or '-'; rename the domain (of a file of your own: its column, or the file)"
            )
    roles = {group.role for group in groups}
    if "forget" not in roles:
        problems.append("clients: no forget client; add at least one group with role: forget")
    repeated = [name for name, n in Counter(spec.id for spec in expand_clients(groups)).items() if n > 1]
    if repeated:
        problems.append(
            f"clients: {repeated[0]!r} appears twice; put clients of one role and domain in one group"
        )
    both = {g.domain for g in groups if g.role == "forget"} & {g.domain for g in groups if g.role == "retain"}
    if both:
        problems.append(f"clients: domain {min(both)!r} is both forgotten and retained")
    return problems


def _retain_data(config: RunConfig) -> list[str]:
    """Check that clients hold retain data where their objective needs it, and only there."""
    try:
        needed = needs_retain(objective(config.forget.objective.name, **config.forget.objective.parameters))
        retaining = objective(config.retain.objective.name, **config.retain.objective.parameters)
    except ConfigError:
        return []  # told by _role
    problems = []
    name = config.forget.objective.name
    forgotten = {group.domain for group in config.clients if group.role == "forget"}
    for i, group in enumerate(config.clients):
        key = f"clients[{i}].retain_domain"
        if group.role == "forget" and needed and not group.retain_domain:
            problems.append(
                f"{key}: is empty, and forget.objective {name!r} has a term on retain data; name the retain "
                "domain that these clients hold too, or set forget.objective.parameters.alpha to 0"
            )
        elif group.retain_domain and (group.role == "retain" or not needed):
            reader = "a retain client" if group.role == "retain" else f"forget.objective {name!r}"
            problems.append(f"{key}: {reader} does not read it; leave it out")
        elif group.retain_domain in forgotten:
            problems.append(f"{key}: {group.retain_domain!r} is a domain to forget")
    if needs_retain(retaining):
        problems.append(
            f"retain.objective: {config.retain.objective.name!r} is for forget clients; take causal_lm"
        )
    return problems
