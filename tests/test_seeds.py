"""Seeds depend on their purpose and on nothing else."""

from __future__ import annotations

import hashlib

import torch

from fedforget.seeds import derive_seed


def test_is_the_head_of_a_digest() -> None:
    # sha256 of the tuple's repr, first 8 bytes, big-endian, halved to stay below 2**63.
    digest = hashlib.sha256(b"(7, 'train', 3)").digest()
    assert derive_seed(7, "train", 3) == int.from_bytes(digest[:8], "big") // 2


def test_purposes_do_not_collide() -> None:
    purposes = [(), ("a",), ("a", "b"), ("ab",), (("a", "b"),), ("1",), (1,), ("a", 1), ("a1",)]
    assert len({derive_seed(0, *purpose) for purpose in purposes}) == len(purposes)
    assert derive_seed(0, "a") != derive_seed(1, "a")


def test_generators_take_it() -> None:
    for root in (-1, 0, 2**40):
        seed = derive_seed(root, "x")
        assert 0 <= seed < 2**63
        assert torch.Generator().manual_seed(seed).initial_seed() == seed
