"""WMDP and MMLU: multiple-choice accuracy, by our own scorer or by lm-eval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedforget.data.benchmark import Benchmark
from fedforget.data.items import MultipleChoice
from fedforget.errors import ConfigError, DataError, nearest
from fedforget.evaluation.measures import Measure, Row, Rows, Subject
from fedforget.evaluation.multiple_choice import likeliest, score
from fedforget.evaluation.prepared import prepare

SCORERS = ("builtin", "lm-eval")


def choice_measures(
    data: Benchmark,
    domains: Mapping[str, str],
    *,
    split: str = "all",
    limit: int = 0,
    scorer: str = "builtin",
) -> list[Measure]:
    """Return one measure per domain.

    Parameters
    ----------
    data : Benchmark
        Of family ``wmdp`` or ``mmlu``.
    domains : mapping of str to str
        Domain to the role that its questions are held in.
    split : {"all", "report"}
        Every question that is asked of the domain, or those that no setting was chosen on.
    limit : int
        First so many questions of each domain, in the seeded order; 0 for all.
    scorer : {"builtin", "lm-eval"}

    Raises
    ------
    ConfigError
        There is no such scorer.
    DataError
        A domain has no questions; names it.
    """
    if scorer not in SCORERS:
        raise ConfigError(
            [f"--scorer: {scorer!r} is not one of {', '.join(SCORERS)}{nearest(scorer, SCORERS)}"]
        )
    found = []
    for domain, role in domains.items():
        items = data.multiple_choice(domain, role, split)[: limit or None]
        if not items:
            raise DataError(
                f"domain {domain!r} has no questions in {data.path}; nothing can be measured on it"
            )
        found.append(_measure(domain, items, scorer))
    return found


def _measure(domain: str, items: Sequence[MultipleChoice], scorer: str) -> Measure:
    def compute(subject: Subject) -> list[Row]:
        if scorer == "lm-eval":
            from fedforget.evaluation.lm_harness import harness_scores

            found = harness_scores(subject.model, subject.tokenizer, items, batch_size=subject.batch_size)
            subject.progress(len(items), len(items))
        else:
            asked = prepare(subject.tokenizer, [item.asked("report") for item in items])
            scored = score(
                subject.model,
                asked,
                normalise="none",
                batch_size=subject.batch_size,
                progress=subject.progress,
            )
            found = [one.scores for one in scored]
        return [
            {
                "prediction": likeliest(scores),
                "answer": item.label,
                "log_likelihoods": list(scores),
            }
            for item, scores in zip(items, found, strict=True)
        ]

    asked = tuple((item.id, repr((item.prompt(), len(item.choices), item.label))) for item in items)
    return Measure(domain if scorer == "builtin" else f"{domain}-{scorer}", asked, compute)


def choice_summary(rows: Rows, reference: Rows | None = None) -> dict[str, Any]:
    """Return accuracy, count, standard error and chance per measure, and which are at or below chance."""
    # The datasets package takes seconds to import and only this needs it.
    from fedforget.evaluation.accuracy import accuracy

    del reference
    found: dict[str, dict[str, Any]] = {}
    for name, own in rows.items():
        one = accuracy([row["prediction"] for row in own], [row["answer"] for row in own])
        n, p = len(own), one["accuracy"]
        found[name] = {
            "accuracy": p,
            "count": n,
            "standard_error": math.sqrt(p * (1 - p) / n),
            "chance": sum(1.0 / len(row["log_likelihoods"]) for row in own) / n,
        }
    # To forget WMDP is to fall to chance; a model that is there on MMLU has collapsed.
    low = [name for name, one in found.items() if one["accuracy"] <= one["chance"]]
    return {"domains": found, "at_chance": low, "collapse": [name for name in low if name.startswith("mmlu")]}


def choice_lines(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return what to print, by name."""
    shown = ("accuracy", "standard_error", "chance")
    return [
        (f"{name} {key.replace('_', ' ')}", one[key])
        for name, one in summary["domains"].items()
        for key in shown
    ]
