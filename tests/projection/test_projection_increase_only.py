"""The paper's increase-only routine, against a transcription of its appendix and against the optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedforget.projection import project


def transcription(base, fishers, epsilon, eps0=1e-8):
    """Appendix B, "Numerical procedure used in the experiments", step by step on whole arrays."""
    tau = max(1e-4 * epsilon, 1e-12)
    lam = np.zeros(len(fishers))

    def b(k, multipliers):
        x = base / (1 + sum(value * f for value, f in zip(multipliers, fishers, strict=True)))
        return 0.5 * np.sum(fishers[k] * x**2)

    for _ in range(500):
        old = lam.copy()
        for k in range(len(fishers)):
            if b(k, lam) <= epsilon:
                continue
            low, high = lam[k], max(1.0, 2 * lam[k])

            def at(value, k=k):
                return np.array([value if i == k else lam[i] for i in range(len(lam))])

            while b(k, at(high)) > epsilon:
                low, high = high, 2 * high
            for _ in range(60):
                middle = (low + high) / 2
                if b(k, at(middle)) > epsilon:
                    low = middle
                else:
                    high = middle
            lam[k] = high
        if all(b(k, lam) <= epsilon + tau for k in range(len(fishers))):
            break
        if np.max(np.abs(lam - old)) <= 1e-12 * max(1.0, lam.max()):
            break
    shrink = 1 + sum(value * f for value, f in zip(lam, fishers, strict=True))
    used = np.any([f > 0 for f, v in zip(fishers, lam, strict=True) if v > 0], axis=0)
    return lam, np.where(used, base / (shrink + eps0), base)


@pytest.mark.parametrize("m", [1, 2, 3, 5])
@pytest.mark.parametrize("share", [1e-4, 0.1, 0.6])
def test_agrees_with_the_transcription(m, share, draw):
    for seed in range(4):
        base, fishers = draw(100 + seed, m, 40, keep=0.6)
        epsilon = share * max(0.5 * float((f * base * base).sum()) for f in fishers)
        lam, x = transcription(base.numpy(), [f.numpy() for f in fishers], epsilon)
        result = project(base, fishers, epsilon, "increase-only")
        np.testing.assert_allclose(result.multipliers.numpy(), lam, rtol=1e-9, atol=0)
        np.testing.assert_allclose(result.update.numpy(), x, rtol=1e-9, atol=0)


def test_one_client_reaches_the_optimum(draw):
    base, fishers = draw(7, 1, 100)
    epsilon = 0.2 * 0.5 * float((fishers[0] * base * base).sum())
    routine, exact = project(base, fishers, epsilon, "increase-only"), project(base, fishers, epsilon)
    torch.testing.assert_close(routine.multipliers, exact.multipliers, rtol=1e-9, atol=0)
    torch.testing.assert_close(routine.update, exact.update, rtol=2e-8, atol=0)


def test_a_slack_constraint_keeps_its_multiplier_and_the_order_matters():
    # F2 = 2 F1, so F2 alone binds. Going through client 1 first raises its multiplier for nothing.
    base = torch.tensor([1.0, 1.0], dtype=torch.float64)
    weak, strong = torch.tensor([0.5, 0.5]).double(), torch.tensor([1.0, 1.0]).double()
    weak_first = project(base, [weak, strong], 0.1, "increase-only")
    strong_first = project(base, [strong, weak], 0.1, "increase-only")
    # Alone, 0.5 / (1 + lambda/2)^2 = 0.1 gives lambda = 2 (sqrt(5) - 1).
    assert float(weak_first.multipliers[0]) == pytest.approx(2 * (5**0.5 - 1), rel=1e-6)
    assert float(weak_first.damage[0]) < 0.06
    assert weak_first.certificate.complementarity > 0.1
    assert not weak_first.certificate.certified
    assert strong_first.multipliers.tolist()[1] == 0.0


def test_the_update_depends_on_the_order_of_the_clients():
    base = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    first, second = torch.tensor([1.0, 0.4, 0.0]).double(), torch.tensor([0.0, 0.6, 1.0]).double()
    forward = project(base, [first, second], 0.2, "increase-only").update
    backward = project(base, [second, first], 0.2, "increase-only").update
    assert float((forward - backward).abs().max()) > 1e-3
    exact = [project(base, order, 0.2).update for order in ([first, second], [second, first])]
    torch.testing.assert_close(exact[0], exact[1], rtol=1e-9, atol=0)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_the_exact_solver_is_never_farther_from_the_base(m, draw):
    farther = 0
    for seed in range(15):
        base, fishers = draw(seed, m, 60)
        epsilon = 0.1 * max(0.5 * float((f * base * base).sum()) for f in fishers)
        routine = project(base, fishers, epsilon, "increase-only")
        # The routine may end above the budget, within its tolerance: compare at the damage it reached.
        reached = max(epsilon, float(routine.damage.max())) * (1 + 1e-11)
        ours = float((project(base, fishers, reached).update - base).norm())
        theirs = float((routine.update - base).norm())
        assert ours <= theirs * (1 + 1e-9)
        farther += theirs > ours * 1.001
    assert farther > 5 or m == 1


def test_what_it_reports_is_about_the_cast_tensor(draw):
    base, fishers = draw(9, 1, 300, dtype=torch.bfloat16)
    epsilon = 0.2 * 0.5 * float((fishers[0] * base.double() ** 2).sum())
    result = project(base, fishers, epsilon, "increase-only")
    b = 0.5 * float((fishers[0] * result.update.double() ** 2).sum())
    assert float(result.damage) == pytest.approx(b, rel=1e-12)
    assert result.certificate.primal == pytest.approx(max(0.0, b / epsilon - 1), abs=1e-12)
    assert result.certificate.certified == (b <= epsilon)


def test_the_stabiliser_enters_the_recovery_only(draw):
    base, fishers = draw(10, 1, 30, keep=1.0)
    epsilon = 0.2 * 0.5 * float((fishers[0] * base * base).sum())
    none = project(base, fishers, epsilon, "increase-only", eps0=0.0)
    some = project(base, fishers, epsilon, "increase-only", eps0=0.5)
    assert torch.equal(none.multipliers, some.multipliers)
    shrink = 1 + some.multipliers[0] * fishers[0]
    torch.testing.assert_close(some.update, base / (shrink + 0.5), rtol=1e-12, atol=0)


def test_by_hand_it_ends_farther_away_and_in_another_place_by_order():
    # x = (a, a, c) has b_1 = (2 a^2 + c^2) / 4 and b_2 = a^2. Both bind at 0.3: a^2 = 0.3, c^2 = 0.6.
    # Client 1 first: all coordinates fall to a^2 = c^2 = 0.4, then a^2 to 0.3 for client 2, and c stays
    # too small. Client 2 first: a^2 = 0.3 and c = 1, then client 1 lowers a as well as c: client 2 is slack.
    base = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    one, two = torch.tensor([0.5, 0.5, 0.5]).double(), torch.tensor([1.0, 1.0, 0.0]).double()
    exact = project(base, [one, two], 0.3).update
    assert exact.tolist() == pytest.approx([0.3**0.5, 0.3**0.5, 0.6**0.5], rel=1e-9)
    forward = project(base, [one, two], 0.3, "increase-only").update
    backward = project(base, [two, one], 0.3, "increase-only").update
    assert float(forward[2]) == pytest.approx(0.4**0.5, rel=1e-4)
    assert float(backward[0]) < 0.99 * 0.3**0.5
    distance = [float((x - base).norm()) for x in (exact, forward, backward)]
    assert min(distance[1:]) > 1.01 * distance[0]
    assert distance[1] != pytest.approx(distance[2], rel=1e-3)
    torch.testing.assert_close(exact, project(base, [two, one], 0.3).update, rtol=1e-10, atol=0)
