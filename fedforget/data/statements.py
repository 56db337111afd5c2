"""Statements about countries, labelled with the country's continent: real text that needs no download.

The statements tell currencies, internet domains and capitals, in several wordings, and never the continent.
Half of the countries are public; the others' statements are federated, but for one in five that is for
testing. A test statement is thus about a country that the clients know from other statements: what
is learnt is which names belong where. It is a small and easy task, there to run the text path without a
download, and no benchmark.
"""

from __future__ import annotations

import numpy as np

from fedforget.data.facts import relations
from fedforget.data.records import Corpus, Records
from fedforget.seeds import derive_seed

_ABOUT = ("currencies", "domains", "africa", "americas", "asia", "europe")
_MERGED = {"North America": "the Americas", "South America": "the Americas"}
_PUBLIC, _TEST = 0.5, 0.2


def statements(seed: int) -> Corpus:
    """Make the statements and cut them into public, federated and test records.

    Parameters
    ----------
    seed : int
        Data seed of the cut.
    """
    known = relations()
    continent = {fact.subject: _MERGED.get(fact.answer, fact.answer) for fact in known["continents"].facts}
    labels = tuple(sorted(set(continent.values())))
    rows: dict[str, tuple[str, str]] = {}
    for domain in _ABOUT:
        relation = known[domain]
        wordings = [*relation.train]
        for split in sorted(relation.test):
            wordings += [f"{prompt} {{answer}}." for prompt in relation.test[split]]
        for fact in relation.facts:
            if fact.subject in continent:
                for i, wording in enumerate(wordings):
                    rows[f"{fact.id}/w{i}"] = (fact.subject, relation.render(wording, fact))
    rng = np.random.default_rng(derive_seed(seed, "records", "statements"))
    countries = sorted({country for country, _ in rows.values()})
    public = {countries[i] for i in rng.permutation(len(countries))[: int(len(countries) * _PUBLIC)]}
    ids = sorted(rows)
    everything = Records.of(
        ids, tuple(rows[name][1] for name in ids), [labels.index(continent[rows[name][0]]) for name in ids]
    )
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
