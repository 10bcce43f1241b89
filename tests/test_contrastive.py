"""Contrastive pieces: the law of hindsight goals, energies, losses, encoders."""

from __future__ import annotations

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from jax.test_util import check_grads
from scipy import stats

from mjxlab.envs import fast, toys
from mjxlab.errors import ConfigError
from mjxlab.nn.contrastive import ContrastiveCritic, Tower
from mjxlab.rl import contrastive, goals

ENERGIES = ("norm", "l2", "dot", "cosine")
LOSSES = ("fwd", "bwd", "sym", "binary")


def draws(traj_id, gamma, n: int = 20_000, first: int = 1, seed: int = 0):
    keys = jax.random.split(jax.random.key(seed), n)
    pick = jax.jit(
        jax.vmap(lambda k: goals.future_goal_indices(k, jnp.asarray(traj_id, jnp.int32), gamma, first=first))
    )
    return np.asarray(pick(keys))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 0.9999, 1.0])
@pytest.mark.parametrize("first", [0, 1])
def test_future_goals_follow_the_truncated_geometric_law(gamma: float, first: int) -> None:
    ids = [3] * 4 + [4] * 7 + [0]
    found = draws(ids, gamma, first=first)
    for start, end in ((0, 4), (4, 11)):
        for t in range(start, end - 1):
            later = np.arange(t + first, end)
            weights = gamma ** (later - t - first).astype(float)
            expected = len(found) * weights / weights.sum()
            counts = np.bincount(found[:, t], minlength=len(ids))
            assert counts.sum() == counts[later].sum()  # nothing outside of the trajectory, or before
            seen = expected > 0
            np.testing.assert_array_equal(counts[later][~seen], 0)
            if seen.sum() > 1:  # significance 1e-4 each, about 90 of them
                assert stats.chisquare(counts[later][seen], expected[seen]).pvalue > 1e-4


def test_a_step_without_future_points_at_itself() -> None:
    found = draws([0, 0, 1, 2, 2], 0.9, 100)
    np.testing.assert_array_equal(found[:, [1, 2, 4]], np.tile([1, 2, 4], (100, 1)))
    np.testing.assert_array_equal(found[:, [0, 3]], np.tile([1, 4], (100, 1)))


def test_relabelling_takes_goals_of_the_same_world_and_trajectory() -> None:
    length, worlds = 12, 3
    done = jax.random.bernoulli(jax.random.key(0), 0.3, (length, worlds))
    ids = goals.trajectory_ids(done)
    np.testing.assert_array_equal(ids, np.vstack([np.zeros((1, worlds)), np.cumsum(done, 0)[:-1]]))
    where = jnp.stack(jnp.meshgrid(jnp.arange(length), jnp.arange(worlds), indexing="ij"), -1)
    batch = goals.GoalBatch(
        state=jnp.zeros((length, worlds, 1)),
        action=jnp.zeros((length, worlds, 1)),
        achieved=jnp.concatenate([where, ids[..., None]], -1).astype(float),
        goal=jnp.zeros((length, worlds, 3)),
        traj_id=ids,
        valid=jnp.zeros((length, worlds), bool),
    )
    for first in (0, 1):
        new = goals.relabel(batch, jax.random.key(1), 0.9, first=first)
        goal, valid = np.asarray(new.goal), np.asarray(new.valid)
        t, world = np.asarray(where[..., 0]), np.asarray(where[..., 1])
        assert (goal[..., 0] >= t + first)[valid].all()
        np.testing.assert_array_equal(goal[..., 1], world)
        np.testing.assert_array_equal(goal[..., 2], ids)
        last = np.vstack([np.asarray(done)[:-1], np.ones((1, worlds), bool)])
        np.testing.assert_array_equal(valid, ~last if first else np.ones_like(last))
    # a team's axis goes along: each member gets its own goal, of the same later step
    team = batch.replace(
        state=jnp.zeros((length, worlds, 2, 1)),
        achieved=jnp.stack([batch.achieved, batch.achieved + 100], 2),
        goal=jnp.zeros((length, worlds, 2, 3)),
    )
    both = goals.relabel(team, jax.random.key(1), 0.9).goal
    np.testing.assert_array_equal(both[..., 0, :], goals.relabel(batch, jax.random.key(1), 0.9).goal)
    np.testing.assert_array_equal(both[..., 1, :], both[..., 0, :] + 100)


def test_observations_split_and_take_other_goals() -> None:
    obs = jnp.arange(7.0)
    state, commanded = goals.split(obs, 2)
    np.testing.assert_array_equal(state, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(commanded, [5, 6])
    np.testing.assert_array_equal(goals.achieved(obs, 2), [3, 4])
    np.testing.assert_array_equal(goals.with_goal(obs, jnp.array([8.0, 9.0])), [0, 1, 2, 3, 4, 8, 9])
    assert goals.goal_spec(fast.Fast()) == goals.GoalSpec(4, 2)
    assert goals.goal_spec(fast.Fast()).state_size == 2


class _Changed(fast.Fast):
    """``Fast`` with fields of its reset replaced."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = change

    def reset(self, key):
        state = super().reset(key)
        return state.replace(**self.change(state))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (toys.Constant(), "environment toy_constant: its states have no achieved goal, expected a goal task"),
        (_Changed(lambda s: {"commanded": None}), "environment fast: its states have no commanded goal"),
        (
            _Changed(lambda s: {"achieved": jnp.zeros(3)}),
            r"environment fast: achieved has the shape \(3,\), expected \(2,\), the size of its goals",
        ),
        (
            _Changed(lambda s: {"obs": {"a": s.obs, "b": s.obs}}),
            "environment fast: its observations are a dict of a, b",
        ),
        (
            _Changed(lambda s: {"obs": s.obs[:3]}),
            r"observations have the shape \(3,\), expected one axis of at least 4",
        ),
        (_Changed(lambda s: {"obs": (s.obs, s.obs)}), "observations are a tuple, expected one array"),
    ],
)
def test_what_is_no_goal_task_is_refused_in_one_line(env, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        goals.goal_spec(env)
    assert "\n" not in str(error.value)


def test_masks_beside_the_flat_array() -> None:
    env = _Changed(lambda s: {"obs": {"action_mask": jnp.ones(3, bool), "flat": s.obs}})
    spec = goals.goal_spec(env)
    assert spec == goals.GoalSpec(4, 2, "flat")
    x, mask = goals.flat(spec, env.reset(jax.random.key(0)).obs)
    assert x.shape == (4,) and mask.shape == (3,)


# --- energies ---------------------------------------------------------------------------------------------------------


def gradients_agree(function, *args) -> None:
    """With finite differences, whose points come as NumPy arrays."""
    check_grads(lambda *a: function(*map(jnp.asarray, a)), args, 1, modes=["rev"], rtol=1e-5)


def plain_energy(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = np.asarray(x, np.float64)[:, None], np.asarray(y, np.float64)[None]
    square = ((x - y) ** 2).sum(-1)
    dot = (x * y).sum(-1)
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    return {"norm": -np.sqrt(square + 1e-6), "l2": -square, "dot": dot, "cosine": dot / lengths}[name]


@pytest.mark.parametrize("name", ENERGIES)
def test_energies_of_all_pairs(name: str) -> None:
    x, y = jax.random.normal(jax.random.key(0), (2, 5, 8))
    y = y[:4]
    np.testing.assert_allclose(contrastive.energy(name, x, y), plain_energy(name, x, y), rtol=2e-5, atol=2e-5)
    pairs = contrastive.energy_pairs(name, x[:4], y)
    np.testing.assert_allclose(pairs, np.diagonal(plain_energy(name, x, y)), rtol=2e-5, atol=2e-5)
    stretched = contrastive.energy_pairs(name, x[:, None], y[None])
    np.testing.assert_allclose(stretched, plain_energy(name, x, y), rtol=2e-5, atol=2e-5)


def test_norm_far_from_the_origin() -> None:
    # |x|² = 1e6 in float32 has an error of 0.06: without centring nothing of these distances would be left
    x = 300 + 0.01 * jax.random.normal(jax.random.key(0), (6, 12))
    y = x + 0.01 * jax.random.normal(jax.random.key(1), (6, 12))
    np.testing.assert_allclose(contrastive.energy("norm", x, y), plain_energy("norm", x, y), atol=1e-4)


@pytest.mark.x64
@pytest.mark.parametrize("name", ENERGIES)
def test_gradients_of_energies(name: str) -> None:
    x, y = jax.random.normal(jax.random.key(0), (2, 4, 3))
    gradients_agree(lambda x, y: contrastive.energy(name, x, y), x, y)
    gradients_agree(lambda x, y: contrastive.energy_pairs(name, x, y), x, y)
    for function in (contrastive.energy, contrastive.energy_pairs):
        # where x = y (and where both are 0) they are finite, and for distances 0
        for point in (x, jnp.zeros_like(x)):
            gradient = jax.grad(lambda x, p=point, f=function: jnp.sum(f(name, x, p)))(point)
            assert np.isfinite(gradient).all()
        if name in ("norm", "l2"):
            gradient = jax.grad(lambda x, f=function: jnp.trace(jnp.atleast_2d(f(name, x, x[:1]))))(x[:1])
            np.testing.assert_allclose(gradient, 0, atol=1e-12)


# --- losses -----------------------------------------------------------------------------------------------------------


def plain_loss(name: str, logits: np.ndarray, rho: float) -> float:
    n = len(logits)
    rows, columns = (np.log(np.exp(m).sum(1)) for m in (logits, logits.T))
    diagonal = np.diagonal(logits)
    if name == "binary":
        negatives = np.log1p(np.exp(logits))[~np.eye(n, dtype=bool)].mean()
        return np.log1p(np.exp(-diagonal)).mean() + negatives
    parts = {k: (lse - diagonal).mean() + rho * (lse**2).mean() for k, lse in (("fwd", rows), ("bwd", columns))}
    return parts[name] if name in parts else (parts["fwd"] + parts["bwd"]) / 2


@pytest.mark.x64
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name: str) -> None:
    logits = jax.random.normal(jax.random.key(0), (6, 6))
    found = contrastive.contrastive_loss(name, logits, 0.1)
    np.testing.assert_allclose(found, plain_loss(name, np.asarray(logits), 0.1), rtol=1e-12)
    # a mask that allows everything changes nothing
    np.testing.assert_allclose(contrastive.contrastive_loss(name, logits, 0.1, jnp.ones((6, 6), bool)), found)
    # rows that are left out (and their goals) might as well not be there
    valid = jnp.array([True, True, False, True, False, True])
    masked = contrastive.contrastive_loss(name, logits, 0.1, contrastive.valid_mask(valid))
    rows = np.flatnonzero(valid)
    np.testing.assert_allclose(masked, plain_loss(name, np.asarray(logits)[np.ix_(rows, rows)], 0.1), rtol=1e-12)
    for mask in (None, contrastive.valid_mask(valid), contrastive.valid_mask(jnp.zeros(6, bool))):
        gradients_agree(lambda x, m=mask: contrastive.contrastive_loss(name, x, 0.1, m), logits)


@pytest.mark.parametrize("n", [2, 7, 64])
def test_info_nce_of_equal_logits_is_log_batch(n: int) -> None:
    for name in ("fwd", "bwd", "sym"):
        for value in (0.0, -3.0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", contrastive.IdentifiabilityWarning)
                loss = contrastive.contrastive_loss(name, jnp.full((n, n), value), 0.0)
            np.testing.assert_allclose(loss, np.log(n), rtol=1e-5)


def test_rho_of_0_with_fwd_warns() -> None:
    logits = jnp.zeros((3, 3))
    with pytest.warns(contrastive.IdentifiabilityWarning, match="rho: got 0 with the loss fwd"):
        contrastive.contrastive_loss("fwd", logits, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, rho in (("fwd", 0.1), ("bwd", 0.0), ("sym", 0.0), ("binary", 0.0)):
            contrastive.contrastive_loss(name, logits, rho)


def test_duplicate_goals_are_no_negatives() -> None:
    goal = jnp.array([[0.0, 1], [0, 2], [0, 1], [3, 3]])
    mask = contrastive.duplicate_mask(goal)
    expected = np.ones((4, 4), bool)
    expected[0, 2] = expected[2, 0] = False
    np.testing.assert_array_equal(mask, expected)
    with_units = contrastive.duplicate_mask(goal, jnp.array([0, 1, 2, 1]))
    expected[1, 3] = expected[3, 1] = False
    np.testing.assert_array_equal(with_units, expected)
    valid = contrastive.duplicate_mask(goal, None, jnp.array([True, False, True, True]))
    assert not valid[1].any() and not valid[:, 1].any() and bool(valid[0, 0]) and not bool(valid[0, 2])
    # the logit of a false negative has no part in the loss
    logits = jax.random.normal(jax.random.key(0), (4, 4))
    changed = logits.at[0, 2].set(5.0).at[2, 0].set(-5.0)
    for name in LOSSES:
        losses = [
            contrastive.contrastive_loss(name, x, 0.1, contrastive.duplicate_mask(goal)) for x in (logits, changed)
        ]
        np.testing.assert_allclose(*losses, rtol=1e-6)


def test_metrics_of_a_batch() -> None:
    logits = jnp.array([[2.0, 0, 0], [1, 0, 3], [0, 0, 4]])
    found = contrastive.contrastive_metrics(logits)
    np.testing.assert_allclose(found["accuracy"], 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(found["positive"], 2.0)
    np.testing.assert_allclose(found["negative"], 4 / 6, rtol=1e-6)
    np.testing.assert_allclose(found["logsumexp"], np.log(np.exp(logits).sum(1)).mean(), rtol=1e-6)
    masked = contrastive.contrastive_metrics(logits, contrastive.valid_mask(jnp.array([True, False, True])))
    np.testing.assert_allclose([masked["accuracy"], masked["positive"], masked["negative"]], [1, 3, 0], rtol=1e-6)


def test_bad_names_give_one_clear_line() -> None:
    x = jnp.zeros((2, 2))
    with pytest.raises(ConfigError, match="energy: got 'euclid', expected one of norm, l2, dot, cosine"):
        contrastive.energy("euclid", x, x)
    with pytest.raises(ConfigError, match="critic_loss: got 'nce', expected one of fwd, bwd, sym, binary"):
        contrastive.contrastive_loss("nce", x, 0.1)


# --- encoders ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Case:
    state: jax.Array
    action: jax.Array
    goal: jax.Array


def case() -> _Case:
    a, b, c = jax.random.split(jax.random.key(0), 3)
    return _Case(jax.random.normal(a, (5, 4)), jax.random.normal(b, (5, 2)), jax.random.normal(c, (5, 3)))


@pytest.mark.parametrize("film", [False, True])
def test_phi_sees_state_and_action_and_not_the_command(film: bool) -> None:
    x = case()
    module = ContrastiveCritic((16, 16), 8, film=film)
    params = module.init(jax.random.key(1), x.state, x.action, x.goal)

    def phi(state, action, goal):
        return module.apply(params, state, action, goal, method="phi")

    base = phi(x.state, x.action, x.goal)
    assert base.shape == (5, 8)
    np.testing.assert_array_equal(base, phi(x.state, x.action, x.goal + 1))
    assert np.abs(base - phi(x.state, x.action + 1, x.goal)).min(1).max() > 1e-3
    assert np.abs(base - phi(x.state + 1, x.action, x.goal)).min(1).max() > 1e-3
    # any batch axes, the same rows
    np.testing.assert_allclose(
        phi(x.state[:, None], x.action[:, None], x.goal[:, None])[:, 0], base, rtol=1e-5, atol=1e-6
    )


def test_phi_with_the_command_is_an_ablation() -> None:
    x = case()
    module = ContrastiveCritic((16,), 8, state_only=False)
    params = module.init(jax.random.key(1), x.state, x.action, x.goal)
    a, b = (module.apply(params, x.state, x.action, g, method="phi") for g in (x.goal, x.goal + 1))
    assert np.abs(a - b).max() > 1e-3
    with pytest.raises(ConfigError, match="commanded: got None"):
        module.apply(params, x.state, x.action, method="phi")


def test_skips_leap_over_four_layers() -> None:
    x = jax.random.normal(jax.random.key(0), (3, 6))
    module = Tower((8,) * 5, 4, layer_norm=False, skip=True)
    params = module.init(jax.random.key(1), x)
    layers = [params["params"][f"Dense_{i}"] for i in range(6)]
    h = [np.asarray(x)]
    for layer in layers[:5]:
        z = h[-1] @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
        h.append(z / (1 + np.exp(-z)))
    expected = (h[5] + h[1]) @ np.asarray(layers[5]["kernel"]) + np.asarray(layers[5]["bias"])
    np.testing.assert_allclose(module.apply(params, x), expected, rtol=1e-4, atol=1e-5)


def test_weights_start_lecun_uniform() -> None:
    module = Tower((400,), 64)
    params = module.init(jax.random.key(0), jnp.zeros((1, 300)))["params"]
    kernel = np.asarray(params["Dense_0"]["kernel"])
    bound = np.sqrt(3 / 300)
    assert np.abs(kernel).max() <= bound and np.abs(kernel).max() > 0.99 * bound
    np.testing.assert_allclose(kernel.var(), 1 / 300, rtol=0.02)


def test_goals_are_shared_over_devices() -> None:
    # the loss over gathered representations, its gradient averaged: the same as on one device
    from mjxlab import spmd

    x, y = jax.random.normal(jax.random.key(0), (2, 8, 3))
    w = jax.random.normal(jax.random.key(1), (3, 3))

    def grad(w, x, y):
        def loss(w):
            left, right = spmd.all_gather((x @ w, y @ w))
            return contrastive.contrastive_loss("sym", contrastive.energy("norm", left, right), 0.1)

        return spmd.pmean(jax.value_and_grad(loss)(w))

    mesh = Mesh(np.array(jax.devices()[:2]), ("device",))
    split, whole = PartitionSpec("device"), PartitionSpec()
    two = jax.jit(jax.shard_map(grad, mesh=mesh, in_specs=(whole, split, split), out_specs=whole, check_vma=False))(
        w, x, y
    )
    for a, b in zip(grad(w, x, y), two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
