"""Model fields drawn at reset: anew each time, for each world, on each device; and the physics uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from mjxlab.envs import make, vectorize
from mjxlab.envs.mujoco_env import MujocoEnv
from mjxlab.envs.randomise import bind, combine, damping, draw, friction, gains, gravity, mass, randomise
from mjxlab.errors import ConfigError
from mjxlab.physics import load_model, perturb

XML = """<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body><joint name="slide" type="slide" axis="1 0 0" damping="0.5"/><geom name="block" size="0.1" mass="2"/></body>
  </worldbody>
  <actuator><motor joint="slide" ctrlrange="-1 1"/></actuator>
</mujoco>"""


@pytest.fixture(autouse=True)
def _compile_quickly() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Block(MujocoEnv):
    """A block that is pushed."""

    name = "block"
    mjcf = XML
    episode_length = 3
    outputs = ("qpos", "qvel")

    def reset_pose(self, key: jax.Array) -> dict[str, jax.Array]:
        return {"qpos": 0.01 * jax.random.normal(key, (1,))}


def play(vec: Any, steps: int) -> Any:
    """``key -> (drawn masses, worlds' velocities, whether they were just reset)`` at every step."""

    def run(key: jax.Array) -> Any:
        def one(vstate: Any, _: None) -> Any:
            vstate = vec.step(vstate, jnp.ones((vstate.reward.shape[0], 1)))
            return vstate, (vstate.state.params["fields"]["body_mass"][:, 1], vstate.obs[:, 1], vstate.elapsed == 0)

        return jax.lax.scan(one, vec.reset(key), None, steps)[1]

    return run


def test_drawn_anew_for_each_reset_world_and_device() -> None:
    env = Block(randomise=mass(0.5, 2.0))
    mesh = jax.make_mesh((2,), ("device",), axis_types=(AxisType.Auto,))
    split = jax.shard_map(play(vectorize(env, 4), 9), mesh=mesh, in_specs=P(), out_specs=P(None, "device"))
    masses, speed, fresh = jax.tree.map(np.asarray, jax.jit(split)(jax.random.key(0)))
    assert (fresh == (np.arange(9) % 3 == 2)[:, None]).all()
    # constant within an episode (the step that ends one already shows the next), and no two alike
    assert (masses[0] == masses[1]).all() and (masses[2] == masses[3]).all() and (masses[2] == masses[4]).all()
    drawn = masses[[0, 2, 5, 8]]
    assert len(np.unique(drawn)) == drawn.size == 32 and drawn.min() >= 1 and drawn.max() <= 4
    # and the block obeys: v' = 1 / m after 0.01 s of one newton, damping aside
    np.testing.assert_allclose(speed[3], 0.01 / masses[3], rtol=0.02)


def test_ready_made_ones_draw_within_their_ranges() -> None:
    model = load_model(XML)
    fn = combine(mass(0.5, 2), friction(0.5, 1.5), damping(1, 3), gains(0.9, 1.1), gravity(0.8, 1.0))
    hook = bind(fn, model)
    assert hook is not None
    fields = jax.jit(jax.vmap(hook))(jax.random.split(jax.random.key(0), 200))
    for name, low, high in (
        ("body_mass", 0.5, 2),
        ("geom_friction", 0.5, 1.5),
        ("dof_damping", 1, 3),
        ("actuator_gainprm", 0.9, 1.1),
        ("opt.gravity", 0.8, 1),
    ):
        own = np.asarray(perturb.field(model, name))
        at = np.abs(own) > 0
        ratio = np.asarray(fields[name])[:, at] / own[at]
        assert low <= ratio.min() < low + 0.1 * (high - low) and high - 0.1 * (high - low) < ratio.max() <= high
    assert abs(np.corrcoef(fields["body_mass"][:, 1], fields["dof_damping"][:, 0])[0, 1]) < 0.25  # keys of their own


def test_an_environment_can_be_randomised_afterwards() -> None:
    plain: Any = Block()
    env: Any = randomise(plain, mass(0.5, 2.0))
    assert plain.randomise is None and env.randomise is not None
    reset = jax.jit(lambda key: env.reset(key).params["fields"]["body_mass"][1])
    assert reset(jax.random.key(0)) != reset(jax.random.key(1))
    assert randomise(env, None).randomise is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Block(randomise=lambda key, model: {"body_weight": jnp.zeros(2)}), ["randomise", "body_weight"]),
        (lambda: Block(randomise=lambda key, model: {"body_mass": jnp.zeros(3)}), ["body_mass", "[3]", "[2]"]),
        (lambda: Block(randomise=lambda key, model: jnp.zeros(2)), ["randomise", "dict"]),
        (lambda: Block(randomise=combine(mass(0.5, 1), draw(perturb.mass, 1, 2))), ["body_mass", "twice"]),
        (lambda: mass(2.0, 1.0), ["mass", "[2.0, 1.0]", "low <= high"]),
        (lambda: randomise(make("fast"), mass(1.0, 2.0)), ["'fast'", "no MuJoCo model"]),
    ],
)
def test_one_clear_line(call: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        call()
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words), str(error.value)
