"""The registry that the command line and the documentation read."""

from __future__ import annotations

import math

import pytest

from fedforget.merging import merge, methods

REQUIRED = {
    "firm", "avg", "sum", "ties", "fulm", "fulm_mean", "uniform", "firm_unnormalised",
    "firm_uniform_weights", "support_matched", "task_arithmetic", "fisher_average",
}  # fmt: skip


def test_every_method_is_there():
    assert set(methods()) >= REQUIRED


@pytest.mark.parametrize("name", sorted(methods()))
def test_method_describes_itself(name):
    method = methods()[name]
    assert method.name == name
    assert method.pretty
    assert method.reference
    assert method.summary
    for parameter in method.parameters:
        assert parameter.help
        assert parameter.type in (float, int, bool, str)
        assert isinstance(parameter.default, parameter.type)
        assert (parameter.default in parameter.choices) == (parameter.type is str)
    assert method.parameters[0].name == "gamma"
    assert method.parameters[0].default == 1.0


def test_parameters_of_firm():
    defaults = {parameter.name: parameter.default for parameter in methods()["firm"].parameters}
    assert defaults == {"gamma": 1.0, "alpha": 0.1, "epsilon": math.inf, "solver": "exact", "eps0": 1e-8}


@pytest.mark.parametrize("name", sorted(methods()))
def test_defaults_given_explicitly_change_nothing(federation, name):
    clients = federation(0)
    explicit = {parameter.name: parameter.default for parameter in methods()[name].parameters}
    given, default = merge(clients, name, **explicit), merge(clients, name)
    assert given.parameters == default.parameters == explicit
    assert given.report == default.report


def test_whole_numbers_are_numbers(make):
    result = merge([make("a", [1.0])], "sum", gamma=2)
    assert result.parameters == {"gamma": 2.0}
    assert result.deltas["w"].tolist() == [2.0]


def test_changing_the_list_does_not_change_the_registry():
    methods().clear()
    assert set(methods()) >= REQUIRED
