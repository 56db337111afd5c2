"""What a run measures: forgetting, retention, held-out knowledge and text outside every domain."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from fedforget.adapters import deltas_applied
from fedforget.config import RunConfig
from fedforget.data.shares import unasked
from fedforget.errors import DataError
from fedforget.evaluation.answers import ACCURACY, MIXED, Answers, answers, common
from fedforget.evaluation.generation import generate
from fedforget.evaluation.multiple_choice import Accuracy, score, summarise
from fedforget.evaluation.perplexity import perplexity, prepare_texts
from fedforget.evaluation.prepared import PreparedQuestions, asked, prepare

if TYPE_CHECKING:
    from fedforget.data import Data, Question
    from fedforget.models import Backbone

Part = Literal["forget", "retain", "held_out", "perplexity", "rouge"]
ROLES: tuple[Part, ...] = ("forget", "retain", "held_out")
SPLITS = ("select", "report")


def domains(config: RunConfig) -> dict[str, list[str]]:
    """Return the domains of each role: those of the clients, and ``evaluation.held_out``."""
    return {
        "forget": sorted({group.domain for group in config.clients if group.role == "forget"}),
        "retain": sorted({group.domain for group in config.clients if group.role == "retain"}),
        "held_out": sorted(set(config.evaluation.held_out)),
    }


@dataclass(frozen=True)
class _Prepared:
    questions: list[Question]
    tokens: PreparedQuestions


class Suite:
    """The evaluation of one run, with everything tokenised once.

    Parameters
    ----------
    backbone : Backbone
        The model that updates are applied to; left as it was after every call.
    data : Data
        Supplies questions and general text.
    config : RunConfig
        Clients, held-out domains, batch size and limits.
    """

    def __init__(self, backbone: Backbone, data: Data, config: RunConfig) -> None:
        self.backbone = backbone
        self.data = data
        self.config = config
        self._unasked = unasked(config, data)
        self._domains = {
            role: [name for name in names if name not in self._unasked]
            for role, names in domains(config).items()
        }
        self._questions: dict[tuple[str, str, str], _Prepared] = {}
        self._answers: dict[tuple[str, str, str], Answers | None] = {}
        self._texts: list[list[int]] | None = None

    def parts(self) -> list[Part]:
        """Return what the configuration asks to measure."""
        found: list[Part] = [role for role in ROLES if self._domains[role]]
        if self.config.evaluation.perplexity:
            found.append("perplexity")
        if self.config.evaluation.rouge:
            found.append("rouge")
        return found

    def evaluate(
        self,
        deltas: Mapping[str, torch.Tensor] | None = None,
        split: str = "report",
        parts: Sequence[Part] | None = None,
    ) -> dict[str, Any]:
        """Measure the backbone, with an update added or as it is.

        Parameters
        ----------
        deltas : mapping of str to Tensor, optional
            Update per weight name.
        split : {"select", "report"}
            Questions for choosing settings, or those that results are reported on.
        parts : sequence of str, optional
            Only these, e.g. ``("forget",)``; by default :meth:`parts`.

        Returns
        -------
        dict
            ``split``; ``domains`` (per domain: role, accuracy, count, standard_error, chance, and the
            measure, which by ``evaluation.suite`` may be another in accuracy's place);
            per role the mean over its domains (``forget``, ``retain``, ``held_out``, same keys);
            ``perplexity`` (perplexity, tokens, texts); ``rouge``; ``collapse``, which lists
            the utilities at or below chance; and ``unasked``, where there are such domains
            (:func:`fedforget.data.shares.unasked`).

        Raises
        ------
        DataError
            A domain has no questions in this split; names it.
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r} is neither 'select' nor 'report'")
        parts = self.parts() if parts is None else parts
        applied: contextlib.AbstractContextManager[dict[str, float]] = contextlib.nullcontext({})
        if deltas:
            applied = deltas_applied(self.backbone.model, deltas)
        with applied as lost:
            result = self._measure(split, parts)
        return {**result, "lost_in_rounding": max(lost.values())} if lost else result

    def _measure(self, split: str, parts: Sequence[Part]) -> dict[str, Any]:
        model, settings = self.backbone.model, self.config.evaluation
        result: dict[str, Any] = {"split": split, "domains": {}}
        for role in ROLES:
            if role not in parts:
                continue
            found: list[Accuracy] = []
            names: list[str] = []
            for domain in self._domains[role]:
                one, name = self._domain(domain, role, split)
                result["domains"][domain] = {"role": role, **asdict(one), "measure": name}
                found.append(one)
                names.append(name)
            if found:
                result[role] = {**asdict(mean(found)), "measure": common(names)}
        if "perplexity" in parts:
            if self._texts is None:
                texts = self.data.general_text()[: settings.max_texts or None]
                self._texts = prepare_texts(self.backbone.tokenizer, texts)
            result["perplexity"] = asdict(perplexity(model, self._texts, batch_size=settings.batch_size))
        if "rouge" in parts:
            result["rouge"] = self._rouge(split)
        result["collapse"] = collapsed(result)
        return result | ({"unasked": self._unasked} if self._unasked else {})

    def _domain(self, domain: str, role: str, split: str) -> tuple[Accuracy, str]:
        """Measure one domain; returns what it was measured by, too."""
        model, settings = self.backbone.model, self.config.evaluation
        key = (domain, role, split)
        if settings.suite == "benchmark" and key not in self._answers:
            self._answers[key] = answers(
                self.data, domain, role, split, settings.max_questions, self.config.seeds.evaluation
            )
        if benchmark := self._answers.get(key):
            found = benchmark.evaluate(model, self.backbone.tokenizer, settings.batch_size)
            return found, benchmark.name
        tokens = self._prepared(domain, role, split).tokens
        return summarise(score(model, tokens, batch_size=settings.batch_size)), ACCURACY

    def _prepared(self, domain: str, role: str, split: str) -> _Prepared:
        key = (domain, role, split)
        if key not in self._questions:
            questions = self.data.questions(domain, role, split)
            if not questions:
                raise DataError(
                    f"domain {domain!r} ({role}) has no questions in the {split!r} split; "
                    "add some: `fedforget data check` counts what there is"
                )
            settings = self.config.evaluation
            kept = asked(questions, settings.max_questions, self.config.seeds.evaluation, *key)
            self._questions[key] = _Prepared(kept, prepare(self.backbone.tokenizer, kept))
        return self._questions[key]

    def _rouge(self, split: str) -> dict[str, Any]:
        # The datasets package takes seconds to import and only this needs it.
        from fedforget.evaluation.rouge import rouge_l

        result = {}
        for role in ROLES:
            for domain in self._domains[role]:
                questions = self._prepared(domain, role, split).questions
                answers = generate(
                    self.backbone.model,
                    self.backbone.tokenizer,
                    [question.prompt for question in questions],
                    batch_size=self.config.evaluation.batch_size,
                )
                references = [question.choices[question.answer].strip() for question in questions]
                result[domain] = {"role": role, **rouge_l(answers, references)}
        return result


def evaluate(
    backbone: Backbone,
    data: Data,
    config: RunConfig,
    deltas: Mapping[str, torch.Tensor] | None = None,
    split: str = "report",
    parts: Sequence[Part] | None = None,
) -> dict[str, Any]:
    """Measure once; see :meth:`Suite.evaluate`. For several updates, keep a :class:`Suite`."""
    return Suite(backbone, data, config).evaluate(deltas, split, parts)


def mean(accuracies: Sequence[Accuracy]) -> Accuracy:
    """Return the mean over domains, each weighing the same; errors are taken as independent."""
    n = len(accuracies)
    return Accuracy(
        accuracy=sum(one.accuracy for one in accuracies) / n,
        count=sum(one.count for one in accuracies),
        standard_error=math.sqrt(sum(one.standard_error**2 for one in accuracies)) / n,
        chance=sum(one.chance for one in accuracies) / n,
    )


def collapsed(result: Mapping[str, Any]) -> list[str]:
    """Return the utilities (``retain``, ``held_out``) that are at or below chance.

    Where a role's domains have several measures, their mean has no chance level: one domain suffices.
    """
    found = []
    for name in ("retain", "held_out"):
        if name not in result:
            continue
        parts = [result[name]]
        if result[name].get("measure") == MIXED:
            parts = [one for one in result["domains"].values() if one["role"] == name]
        if any(one["accuracy"] <= one["chance"] for one in parts):
            found.append(name)
    return found
