"""Statements of plain facts, labelled with what they are about: real text that needs no download.

The subjects are chemical elements, currencies, internet domains, continents, US state capitals, and
capitals of four continents. Half of the facts are public; the others' statements are federated, but for
one in five that is for testing, so a test statement is about a fact that the clients know in other
words. Wordings give most subjects away; the capitals of the four continents share theirs, and only
names tell them apart. It is a small and easy task, there to run the text path, and no benchmark.
"""

from __future__ import annotations

import numpy as np

from fedforget.data.facts import relations
from fedforget.data.records import Corpus, Records
from fedforget.seeds import derive_seed

_PUBLIC, _TEST = 0.5, 0.2


def statements(seed: int) -> Corpus:
    """Make the statements and cut them into public, federated and test records.

    Parameters
    ----------
    seed : int
        Data seed of the cut.
    """
    known = relations()
    labels = tuple(sorted(known))
    rows: dict[str, tuple[str, str, int]] = {}
    for label, domain in enumerate(labels):
        relation = known[domain]
        wordings = list(relation.train)
        for split in sorted(relation.test):
            wordings += [f"{prompt} {{answer}}." for prompt in relation.test[split]]
        for fact in relation.facts:
            for i, wording in enumerate(wordings):
                rows[f"{fact.id}/w{i}"] = (fact.id, relation.render(wording, fact), label)
    rng = np.random.default_rng(derive_seed(seed, "records", "statements"))
    facts = sorted({fact for fact, _, _ in rows.values()})
    public = {facts[i] for i in rng.permutation(len(facts))[: int(len(facts) * _PUBLIC)]}
    ids = sorted(rows)
    everything = Records.of(ids, tuple(rows[name][1] for name in ids), [rows[name][2] for name in ids])
    private = [name for name in ids if rows[name][0] not in public]
    order = rng.permutation(len(private))
    test = {private[i] for i in order[: round(len(private) * _TEST)]}
    return Corpus(
        public=everything.subset(name for name in ids if rows[name][0] in public),
        federated=everything.subset(name for name in private if name not in test),
        test=everything.subset(test),
        labels=labels,
        task="text",
    )
