from __future__ import annotations

import pytest
import torch

from fedforget.errors import ModelError
from fedforget.sequential.modules import ModuleCache, PrefixModule, first_difference, module_hash

TENSORS = {"b": torch.tensor([1.0, -0.0]), "a": torch.tensor([[2]], dtype=torch.int64)}


def test_the_hash_sees_names_dtypes_shapes_and_bits():
    variants = [
        TENSORS,
        {"c": TENSORS["b"], "a": TENSORS["a"]},
        {"b": TENSORS["b"].double(), "a": TENSORS["a"]},
        {"b": TENSORS["b"][None], "a": TENSORS["a"]},
        {"b": torch.tensor([1.0, 0.0]), "a": TENSORS["a"]},  # equal as numbers, not as bits
    ]
    assert len({module_hash(one) for one in variants}) == len(variants)
    assert module_hash(dict(reversed(TENSORS.items()))) == module_hash(TENSORS)
    strided = {"b": torch.tensor([[1.0, 9.0], [-0.0, 9.0]])[:, 0], "a": TENSORS["a"]}
    assert module_hash(strided) == module_hash(TENSORS)


def test_the_first_difference_is_named():
    assert first_difference(TENSORS, TENSORS) == ""
    assert first_difference(TENSORS, {"a": TENSORS["a"]}) == "b is missing"
    assert first_difference({"a": TENSORS["a"]}, TENSORS) == "b is one too many"
    changed = {"b": torch.tensor([1.5, -0.0]), "a": TENSORS["a"]}
    assert first_difference(TENSORS, changed) == "b differs in 1 of 2 values, by up to 0.5"
    assert "float64" in first_difference(TENSORS, {**TENSORS, "b": TENSORS["b"].double()})


def test_a_module_comes_back_from_disk(tmp_path):
    module = PrefixModule((3, 1), TENSORS)
    module.save(tmp_path / "m.safetensors")
    again = PrefixModule.load(tmp_path / "m.safetensors", module.sha256)
    assert again.prefix == (3, 1)
    assert again.sha256 == module.sha256
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_changed_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    PrefixModule((0,), {"a": torch.tensor([1.0])}).save(path)
    with pytest.raises(ModelError, match="changed since"):
        PrefixModule.load(path, "0" * 64)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ModelError, match=r"cannot be read as a module.*`fedforget retrain`"):
        PrefixModule.load(path)
    with pytest.raises(ModelError, match="cannot be read as a module"):
        PrefixModule.load(tmp_path / "absent")


def test_the_cache_keeps_by_hash_and_drops_what_is_damaged(tmp_path):
    cache = ModuleCache(tmp_path / "modules")
    module = PrefixModule((0, 2), TENSORS)
    absent = "f" * 64
    assert cache.get(module.sha256) is None
    assert cache.put(module) == cache.put(module) == module.sha256
    assert cache.missing([absent, module.sha256, absent]) == [absent]
    found = cache.get(module.sha256)
    assert found is not None
    assert found.prefix == (0, 2)
    file = next((tmp_path / "modules").iterdir())
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    assert cache.get(module.sha256) is None
    assert not file.exists()


def test_the_cache_takes_no_paths_for_hashes(tmp_path):
    with pytest.raises(ModelError, match="not a module's hash"):
        ModuleCache(tmp_path).get("../../etc/passwd")
