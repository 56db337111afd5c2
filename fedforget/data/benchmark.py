"""What the benchmark families share: lazily read tables, seeded splits, and typed items for evaluation."""

from __future__ import annotations

import abc
import functools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedforget.data.examples import (
    SPLITS,
    Data,
    Example,
    Question,
    check_domain,
    check_role,
    check_split,
    interleave,
)
from fedforget.data.items import MultipleChoice, Pair
from fedforget.data.rows import Rows, TableSchema
from fedforget.data_config import DataConfig
from fedforget.errors import DataError, nearest
from fedforget.seeds import derive_seed

T = TypeVar("T")


@dataclass(frozen=True)
class Uses:
    """Items of one domain and role by use: trained on, and asked in each split."""

    train: tuple[MultipleChoice, ...]
    select: tuple[MultipleChoice, ...]
    report: tuple[MultipleChoice, ...]


class Benchmark(abc.ABC):
    """A benchmark data set as a :class:`fedforget.data.Data`, with its items as they are besides.

    Nothing is read before it is asked for, and each table is read once.

    Parameters
    ----------
    cfg : DataConfig
    path : str
        Hub id, or a local path.
    seed : int
        Of every draw.
    """

    name = ""

    def __init__(self, cfg: DataConfig, path: str, seed: int) -> None:
        self.cfg = cfg
        self.path = path
        self.seed = seed
        self.rows = functools.lru_cache(maxsize=None)(self._rows)

    def _rows(self, schema: TableSchema, split: str) -> Rows:
        return Rows(self.path, schema, split)

    @abc.abstractmethod
    def domains(self) -> list[str]:
        """Return the names of all domains."""

    def has(self, domain: str) -> bool:
        """Return whether there is such a domain."""
        return domain in self.domains()

    def check(self, domain: str) -> None:
        """Raise a :class:`DataError` that names the nearest domain when there is no such one."""
        if not self.has(domain):
            check_domain(domain, self.domains(), f"family {self.name!r}")

    def units(self, domain: str, role: str) -> list[list[Example]]:
        """Return the training examples of a domain, one in each group."""
        self.check(domain)
        check_role(role)
        return [] if role == "held_out" else [[example] for example in self._training(domain, role)]

    def training(self, domain: str, role: str) -> list[Example]:
        """Return the training examples of a domain for clients of a role."""
        return interleave(self.units(domain, role))

    def questions(self, domain: str, role: str, split: str) -> list[Question]:
        """Return a domain's questions of one split, in a seeded order."""
        self.check(domain)
        check_role(role)
        check_split(split)
        return self._questions(domain, role, split)

    def general_text(self) -> list[str]:
        """Return nothing: a benchmark has no text outside its domains."""
        return []

    def multiple_choice(self, domain: str, role: str, split: str) -> list[MultipleChoice]:
        """Return a domain's multiple-choice items of ``"select"``, ``"report"``, or both (``"all"``)."""
        raise DataError(f"family {self.name!r} has no multiple-choice questions; ask for its pairs")

    def pairs(self, part: str) -> list[Pair]:
        """Return the question-answer pairs of one of :meth:`parts`, in the data set's order."""
        raise self._no_part(part)

    def passages(self, part: str) -> list[Example]:
        """Return the passages of one of :meth:`parts`; with a prompt, ``text`` is what continues it."""
        raise self._no_part(part)

    def parts(self) -> dict[str, str]:
        """Return what there is to evaluate on besides questions, by name, and what it holds."""
        return {}

    @abc.abstractmethod
    def _training(self, domain: str, role: str) -> list[Example]: ...

    @abc.abstractmethod
    def _questions(self, domain: str, role: str, split: str) -> list[Question]: ...

    def _no_part(self, part: str) -> DataError:
        known = self.parts()
        names = ", ".join(known) or "it has none"
        return DataError(
            f"family {self.name!r} has no such part {part!r}{nearest(part, known)}; parts: {names}"
        )

    def shuffled(self, items: Iterable[T], *purpose: object) -> list[T]:
        """Return the items in an order seeded by the purpose."""
        order = list(items)
        random.Random(derive_seed(self.seed, "data", self.name, *purpose)).shuffle(order)
        return order

    def halves(self, items: Iterable[T], split: str, role: str, *purpose: object) -> list[T]:
        """Return a seeded share: half of what is forgotten to select on, a quarter of the rest."""
        order = self.shuffled(items, *purpose)
        cut = len(order) // (2 if role == "forget" else 4)
        return order[:cut] if split == "select" else order[cut:]

    def halves_of_units(
        self, items: Iterable[T], unit: Callable[[T], str], split: str, role: str, *purpose: object
    ) -> list[T]:
        """Return a share as :meth:`halves` does, but of units such as authors, whose items stay together."""
        order = self.shuffled(items, *purpose)
        select = set(self.halves(sorted({unit(item) for item in order}), "select", role, *purpose, "units"))
        return [item for item in order if (unit(item) in select) == (split == "select")]


class ChoiceBenchmark(Benchmark):
    """A benchmark of multiple-choice questions."""

    @abc.abstractmethod
    def uses(self, domain: str, role: str) -> Uses:
        """Return which items of a domain are trained on and which are asked."""

    def multiple_choice(self, domain: str, role: str, split: str) -> list[MultipleChoice]:
        """Return a domain's items of ``"select"``, ``"report"``, or both (``"all"``), in a seeded order.

        Raises
        ------
        DataError
            There is no such domain, role or split.
        """
        self.check(domain)
        check_role(role)
        if split != "all":
            check_split(split)
        uses = self.uses(domain, role)
        return [one for part in SPLITS if split in (part, "all") for one in getattr(uses, part)]

    def _training(self, domain: str, role: str) -> list[Example]:
        return [one.example(domain, self.cfg.targets) for one in self.uses(domain, role).train]

    def _questions(self, domain: str, role: str, split: str) -> list[Question]:
        return [one.asked(split) for one in self.multiple_choice(domain, role, split)]


class CombinedData:
    """Several families at once; each domain is looked up where it is.

    Raises
    ------
    DataError
        Two families have a domain of the same name.
    """

    def __init__(self, families: Sequence[tuple[str, Data]]) -> None:
        self._families = list(families)
        self._by_domain: dict[str, Data] = {}
        for name, data in self._families:
            for domain in data.domains():
                if domain in self._by_domain:
                    raise DataError(f"data.also: domain {domain!r} of family {name!r} is there already")
                self._by_domain[domain] = data

    def has(self, domain: str) -> bool:
        """Return whether a family has such a domain."""
        return any(source_of(data, domain) is not None for _, data in self._families)

    def of(self, domain: str) -> Data:
        """Return the family that has a domain."""
        if domain not in self._by_domain:
            for _, data in self._families:
                if isinstance(data, Benchmark) and data.has(domain):
                    return data
        names = " and ".join(repr(name) for name, _ in self._families)
        check_domain(domain, self.domains(), f"the data of {names}")
        return self._by_domain[domain]

    def family(self, name: str) -> Data:
        """Return a family by its name."""
        found = dict(self._families)
        if name not in found:
            raise DataError(
                f"the run has no data of family {name!r}; add it under data.also (it has {', '.join(found)})"
            )
        return found[name]

    def domains(self) -> list[str]:
        """Return the names of all domains."""
        return list(self._by_domain)

    def units(self, domain: str, role: str) -> list[list[Example]]:
        """Return the training examples of a domain, in groups that sharding keeps together."""
        return self.of(domain).units(domain, role)

    def training(self, domain: str, role: str) -> list[Example]:
        """Return the training examples of a domain."""
        return self.of(domain).training(domain, role)

    def questions(self, domain: str, role: str, split: str) -> list[Question]:
        """Return a domain's questions of one split."""
        return self.of(domain).questions(domain, role, split)

    def general_text(self) -> list[str]:
        """Return the families' texts outside every domain."""
        return [text for _, data in self._families for text in data.general_text()]


def source_of(data: Data, domain: str) -> Data | None:
    """Return the source that has a domain, even one that it does not list by name; None if there is none."""
    if isinstance(data, CombinedData):
        return data.of(domain) if data.has(domain) else None
    known = data.has(domain) if isinstance(data, Benchmark) else domain in data.domains()
    return data if known else None


def numbered(rows: Rows, make: Callable[[int, str], T], prefix: str) -> list[T]:
    """Make an item of every row; its id is the prefix and the row's number in the data set."""
    return [make(i, f"{prefix}-{i:05d}") for i in range(len(rows))]


def apart(items: Iterable[MultipleChoice], others: Iterable[MultipleChoice]) -> list[MultipleChoice]:
    """Return the items that are not among the others word for word."""
    known = {(one.question, one.choices) for one in others}
    return [one for one in items if (one.question, one.choices) not in known]
