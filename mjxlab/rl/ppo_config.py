"""The hyper-parameters of PPO, and the schedules they may follow."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mjxlab.errors import ConfigError
from mjxlab.nn.mlp import ACTIVATIONS
from mjxlab.rl.shuffle import check_minibatches

Scalar = float | Float[Array, ""]
Schedule = Literal["constant", "linear", "cosine"]


def schedule(kind: str, fraction: Float[Array, ""], end: Scalar) -> Float[Array, ""]:
    """Factor on a hyper-parameter: from 1 at fraction 0 to ``end`` at 1; ``"constant"`` stays at 1."""
    fraction = jnp.clip(fraction, 0, 1)
    if kind == "constant":
        return jnp.ones_like(fraction)
    falling = 1 - fraction if kind == "linear" else (1 + jnp.cos(math.pi * fraction)) / 2
    return end + (1 - end) * falling


def _static(default: Any) -> Any:
    return flax.struct.field(pytree_node=False, default=default)


@flax.struct.dataclass
class Config:
    """Hyper-parameters of PPO. Floats are leaves of the PyTree: ``vmap`` over them to sweep. The rest is static.

    Attributes:
      lr, lr_end, lr_schedule: Adam's step size; its schedule over ``total_updates`` falls to ``lr_end`` times ``lr``.
      adam_eps: Adam's epsilon.
      max_grad_norm: bound on the gradient's global norm; None for none.
      target_kl: if set, the step size is divided by 1.5 after a minibatch whose KL to the rollout's policy is above
        twice this, and multiplied by 1.5 after one below half of it (within 0.01 to 10 times the schedule: a policy
        that has become certain has no KL left, and would raise it for ever).
      discount, gae_lambda: of the advantages.
      clip: of the probability ratio. value_clip: of the value's move (None: not clipped).
      value_coef: weight of the value loss.
      entropy_cost, entropy_end, entropy_schedule: weight of the entropy bonus, and its schedule.
      reward_scale: factor on rewards.
      obs_clip: bound on normalised observations.
      num_envs: worlds, over all devices. rollout_length: steps of each per update.
      epochs, num_minibatches: passes over the rollout, and gradient steps in each.
      total_updates: what the schedules run over; needed unless both are constant.
      normalise_obs, normalise_rewards, normalise_advantages: see ``mjxlab.rl``.
      reset, episode_length: passed to ``vectorize`` (``episode_length`` None: the environment's own).
      squash: how an unbounded sample becomes an action in [-1, 1]: ``"tanh"`` or ``"clip"``.
      policy_widths, value_widths, shared, activation, layer_norm, kernel_init, final_scale, state_std, init_std, min_std:
        the networks, see ``mjxlab.nn.mlp.ActorCritic``.
    """

    lr: Scalar = 3e-4
    lr_end: Scalar = 0.0
    adam_eps: Scalar = 1e-5
    max_grad_norm: Scalar | None = 1.0
    target_kl: Scalar | None = None
    discount: Scalar = 0.99
    gae_lambda: Scalar = 0.95
    clip: Scalar = 0.2
    value_clip: Scalar | None = None
    value_coef: Scalar = 0.5
    entropy_cost: Scalar = 0.0
    entropy_end: Scalar = 0.0
    reward_scale: Scalar = 1.0
    obs_clip: Scalar = 10.0
    num_envs: int = _static(64)
    rollout_length: int = _static(64)
    epochs: int = _static(4)
    num_minibatches: int = _static(4)
    total_updates: int | None = _static(None)
    lr_schedule: Schedule = _static("constant")
    entropy_schedule: Schedule = _static("constant")
    normalise_obs: bool = _static(True)
    normalise_rewards: bool = _static(False)
    normalise_advantages: bool = _static(True)
    reset: Literal["pool", "fresh", "first"] = _static("pool")
    episode_length: int | None = _static(None)
    squash: Literal["tanh", "clip"] = _static("tanh")
    policy_widths: tuple[int, ...] = _static((64, 64))
    value_widths: tuple[int, ...] = _static((64, 64))
    shared: bool = _static(False)
    activation: Literal["tanh", "relu", "elu", "gelu", "swish"] = _static("tanh")
    layer_norm: bool = _static(False)
    kernel_init: Literal["orthogonal", "lecun"] = _static("orthogonal")
    final_scale: float = _static(0.01)
    state_std: bool = _static(False)
    init_std: float = _static(1.0)
    min_std: float = _static(1e-3)

    def validate(self) -> None:
        """Raise ``ConfigError`` for the first field that cannot work. Concrete values only: never under a trace."""
        check_fields(self, _FLOATS, _COUNTS, _CHOICES, _FLAGS)
        for name in ("policy_widths", "value_widths"):
            widths = getattr(self, name)
            if not isinstance(widths, tuple) or any(not isinstance(w, int) or w < 1 for w in widths):
                raise ConfigError(f"{name}: got {widths!r}, expected a tuple of positive integers")
        if not self.init_std > self.min_std:
            raise ConfigError(f"init_std: got {self.init_std!r}, expected more than min_std ({self.min_std!r})")
        for name in ("lr_schedule", "entropy_schedule"):
            if getattr(self, name) != "constant" and self.total_updates is None:
                raise ConfigError(f"total_updates: got None, expected the run's updates, as {name} is not constant")
        check_minibatches(self.num_envs, self.rollout_length, self.num_minibatches)


# name: (lowest, highest, lowest excluded, may be None)
_FLOATS: dict[str, tuple[float, float, bool, bool]] = {
    "lr": (0, math.inf, True, False),
    "lr_end": (0, math.inf, False, False),
    "adam_eps": (0, math.inf, True, False),
    "max_grad_norm": (0, math.inf, True, True),
    "target_kl": (0, math.inf, True, True),
    "discount": (0, 1, False, False),
    "gae_lambda": (0, 1, False, False),
    "clip": (0, math.inf, True, False),
    "value_clip": (0, math.inf, True, True),
    "value_coef": (0, math.inf, False, False),
    "entropy_cost": (-math.inf, math.inf, False, False),
    "entropy_end": (0, math.inf, False, False),
    "reward_scale": (0, math.inf, True, False),
    "obs_clip": (0, math.inf, True, False),
    "final_scale": (0, math.inf, False, False),
    "init_std": (0, math.inf, True, False),
    "min_std": (0, math.inf, True, False),
}
_COUNTS = {
    "num_envs": False,
    "rollout_length": False,
    "epochs": False,
    "num_minibatches": False,
    "total_updates": True,
    "episode_length": True,
}
_FLAGS = ("normalise_obs", "normalise_rewards", "normalise_advantages", "shared", "layer_norm", "state_std")
_CHOICES: dict[str, tuple[str, ...]] = {
    "lr_schedule": get_args(Schedule),
    "entropy_schedule": get_args(Schedule),
    "reset": ("pool", "fresh", "first"),
    "squash": ("tanh", "clip"),
    "activation": tuple(ACTIVATIONS),
    "kernel_init": ("orthogonal", "lecun"),
}


def check_fields(
    config: Any,
    floats: dict[str, tuple[float, float, bool, bool]],
    counts: dict[str, bool],
    choices: dict[str, tuple[str, ...]],
    flags: tuple[str, ...],
) -> None:
    """Raise ``ConfigError`` for the first field that is not what it should be.

    Args:
      config: whose fields they are.
      floats: by name: lowest and highest value, whether the lowest is excluded, whether None is allowed.
      counts: positive integers by name, and whether None is allowed.
      choices: by name, what is allowed.
      flags: names of the fields that are True or False.
    """
    for name, (low, high, open_low, optional) in floats.items():
        check_float(name, getattr(config, name), low, high, open_low, optional)
    for name, optional in counts.items():
        value = getattr(config, name)
        if optional and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: got {value!r}, expected an integer of at least 1")
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ConfigError(f"{name}: got {getattr(config, name)!r}, expected one of {', '.join(allowed)}")
    for name in flags:
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"{name}: got {getattr(config, name)!r}, expected True or False")


def check_float(name: str, value: Any, low: float, high: float, open_low: bool, optional: bool) -> None:
    """Raise ``ConfigError`` unless a field's value is a finite number within bounds (the lowest may be excluded)."""
    if value is None and optional:
        return
    bounds = f"{'above' if open_low else 'at least'} {low:g}" if low > -math.inf else "finite"
    if high < math.inf:
        bounds += f" and at most {high:g}"
    expected = f"expected a number {bounds}{' or None' if optional else ''}"
    if isinstance(value, bool) or not isinstance(value, int | float | jax.Array):
        raise ConfigError(f"{name}: got {value!r}, {expected}")
    number = float(value)
    below = number <= low if open_low else number < low
    if not math.isfinite(number) or below or number > high:
        raise ConfigError(f"{name}: got {number!r}, {expected}")
