"""Multiple choice through lm-eval, the harness that published numbers come from; an optional extra."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedforget.data.items import LETTERS, MultipleChoice
from fedforget.errors import ConfigError
from fedforget.evaluation.modes import evaluating
from fedforget.progress import quieted

TASK = Path(__file__).parent / "lm_eval_tasks" / "multiple_choice.yaml"


def harness_scores(
    model: Any, tokenizer: Any, items: Sequence[MultipleChoice], *, batch_size: int = 16
) -> list[tuple[float, ...]]:
    """Return lm-eval's log-likelihood of every choice, by the task file that comes with the package.

    Nothing is fetched: model, tokenizer and questions are the ones in memory.

    Parameters
    ----------
    model : PreTrainedModel
    tokenizer : object
    items : sequence of MultipleChoice
    batch_size : int

    Raises
    ------
    ConfigError
        lm-eval is not installed.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            [
                "--scorer: lm-eval is not installed; install it with: pip install 'fedforget[eval]', or "
                "leave the scorer at builtin"
            ]
        )
    with quieted("lm_eval", logging.ERROR):
        from datasets import Dataset
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.evaluator import evaluate
        from lm_eval.models.huggingface import HFLM

        rows = [
            {
                "question": item.question,
                "choices": list(item.choices),
                "answer": item.label,
                "subject": item.subject,
                "letters": list(LETTERS[: len(item.choices)]),
            }
            for item in items
        ]
        config = yaml.safe_load(TASK.read_text(encoding="utf-8"))
        name = config["task"]
        # From memory instead of through load_dataset, which asks the hub even about local files.
        config |= {"custom_dataset": lambda **_: {"test": Dataset.from_list(rows)}, "dataset_kwargs": None}
        with evaluating(model):
            # In a half precision's own softmax, choices of different likelihood come out equal.
            harness = HFLM(
                pretrained=model, tokenizer=tokenizer, batch_size=batch_size, softmax_dtype="float32"
            )
            found: Any = evaluate(
                harness, {name: ConfigurableTask(config=config)}, bootstrap_iters=0, log_samples=True
            )
    samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
    return [tuple(float(one[0]) for one in sample["filtered_resps"]) for sample in samples]
