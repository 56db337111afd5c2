"""Records: disjoint parts, slices that deletions do not move, data that are not reachable."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedforget.data.corpora import load_corpus
from fedforget.data.holdings import client_names, client_records, holdings
from fedforget.data.records import Corpus, Records, joined
from fedforget.errors import DataError, PlanError
from fedforget.sequences import barycentre_objective
from fedforget.sequential.classifiers import load_classifier
from fedforget.sequential.config import RecordsConfig
from fedforget.sequential.embeddings import slice_embeddings
from fedforget.sequential.plan import SequentialPlan, make_plan


@pytest.mark.parametrize("family", ["digits", "statements"])
def test_parts_are_disjoint_and_seeded(family):
    cfg = RecordsConfig(family=family)
    one, other = load_corpus(cfg, 0), load_corpus(cfg, 1)
    parts = [set(part.ids) for part in (one.public, one.federated, one.test)]
    assert all(parts)
    assert len(set.union(*parts)) == sum(map(len, parts))
    assert set(one.test.ids) != set(other.test.ids)
    assert set(one.test.labels) <= set(range(len(one.labels)))


def test_no_fact_is_both_public_and_federated():
    corpus = load_corpus(RecordsConfig(family="statements"), 0)
    facts = [{name.split("/")[0] for name in part.ids} for part in (corpus.public, corpus.federated)]
    assert facts[0].isdisjoint(facts[1])
    assert {name.split("/")[0] for name in corpus.test.ids} <= facts[1]


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_clients_and_slices_share_the_federated_records(partition):
    cfg = RecordsConfig(partition=partition)
    federated = load_corpus(cfg, 0).federated
    held = holdings(cfg, federated, 0)
    assert list(held) == client_names(cfg) == [f"client-{i:02d}" for i in range(10)]
    ids = [name for own in held.values() for part in own.values() for name in part]
    assert sorted(ids) == list(federated.ids)
    for own in held.values():
        sizes = [len(part) for part in own.values()]
        assert len(sizes) == 5
        assert max(sizes) - min(sizes) <= 1 <= min(sizes)


def test_deleted_records_are_gone_and_others_stay_where_they_were(config):
    client = client_names(config.data)[1]
    whole = client_records(config, client)
    name = whole.slices[0].ids[0]
    left = client_records(config, client, without={0: [name], 1: None})
    assert left.slices[0].ids == whole.slices[0].ids[1:]
    assert list(left.slices) == [0]
    assert left.size([0, 1]) == len(whole.slices[0]) - 1
    # The array is a copy, not a view of one that holds the deleted image.
    assert (
        left.slices[0].inputs.base is None
        or left.slices[0].inputs.base.nbytes == left.slices[0].inputs.nbytes
    )
    with pytest.raises(DataError, match="there is no slice 7"):
        client_records(config, client, slices=[7])
    with pytest.raises(DataError, match="did you mean 'client-01'"):
        client_records(config, "client-1")
    with pytest.raises(DataError, match="none of the slices"):
        left.records([1])


def test_order_of_records_never_matters():
    one = Records.of(["b", "a"], np.array([[1.0], [2.0]]), [0, 1])
    assert one.ids == ("a", "b")
    assert one.inputs.tolist() == [[2.0], [1.0]]
    again = joined([one.subset(["b"]), one.subset(["a"])])
    assert (again.ids, again.labels.tolist()) == (("a", "b"), [1, 0])
    assert one.without(["a", "zz"]).ids == ("b",)


def test_bad_records_are_refused():
    good = Records.of(["a"], ("x",), [0])
    with pytest.raises(DataError, match="'a' appears twice"):
        Records.of(["a", "a"], ("x", "y"), [0, 1])
    with pytest.raises(DataError, match="as many of each"):
        Records.of(["a"], ("x", "y"), [0])
    with pytest.raises(DataError, match="no record 'b'"):
        good.subset(["b"])
    with pytest.raises(DataError, match="in two parts"):
        Corpus(good, good, good, ("x",), "text")
    with pytest.raises(DataError, match="outside 0 to 0"):
        Corpus(good.subset([]), Records.of(["b"], ("x",), [1]), good, ("x",), "text")
    with pytest.raises(DataError, match="cannot fill 10 clients"):
        holdings(RecordsConfig(), good, 0)


def test_barycentre_groups_come_from_embeddings(config, plan):
    config = dataclasses.replace(config, grouping=dataclasses.replace(config.grouping, method="barycentre"))
    classifier = load_classifier(config)
    embeddings = {}
    for client in client_names(config.data):
        embeddings |= slice_embeddings(classifier, client_records(config, client))
    slices = sorted(item for group in plan.groups for item in group)
    assert embeddings.keys() == {item[:2] for item in slices}
    assert all(value.shape == (16,) for value in embeddings.values())
    grouped = make_plan(config, slices, embeddings)
    points = {item: embeddings[item[:2]] for item in slices}
    assert barycentre_objective(grouped.groups, points) <= barycentre_objective(plan.groups, points)
    with pytest.raises(PlanError, match="needs the slices' embeddings"):
        make_plan(config, slices)


def test_a_plan_comes_back_from_plain_values(plan):
    again = SequentialPlan.from_dict(plan.as_dict())
    assert again == plan
    prefix = plan.sequences[0][:2]
    assert set(plan.clients(prefix)) == {item.client_id for item in plan.slices(prefix)}
    with pytest.raises(PlanError, match="no group 9"):
        plan.slices((9,))
