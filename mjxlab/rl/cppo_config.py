"""The hyper-parameters of CPPO."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import flax.struct
from jaxtyping import Array, Float

from mjxlab.errors import ConfigError
from mjxlab.nn.contrastive import SKIP
from mjxlab.rl.contrastive import Energy, Loss, warn_if_unidentified
from mjxlab.rl.ppo_config import Schedule, check_fields
from mjxlab.rl.shuffle import num_groups

Scalar = float | Float[Array, ""]
GaeKind = Literal["none", "smooth_adv", "value_diff", "q_as_reward"]


def _static(default: Any) -> Any:
    return flax.struct.field(pytree_node=False, default=default)


@flax.struct.dataclass
class Config:
    """Hyper-parameters of CPPO. Floats are leaves of the PyTree: ``vmap`` over them to sweep. The rest is static.

    Attributes:
      lr: Adam's step size for the policy. critic_lr: for the critic (None: the same).
      lr_end, lr_schedule: the schedule of both over ``total_updates`` falls to ``lr_end`` times the step size.
      adam_eps: Adam's epsilon.
      max_grad_norm: bound on the global norm of either gradient; None for none.
      discount: of the hindsight goals, hence of the future that the critic speaks of; and of ``gae_kind``.
      gae_kind: what becomes of A = f - V (see ``cppo_advantage.smooth_advantage``): "none": nothing; "smooth_adv":
        summed over later steps; two ablations, "value_diff" and "q_as_reward". gae_lambda: their decay.
      clip: of the probability ratio.
      entropy_cost: weight of the entropy bonus (None: 0.01 for discrete actions, 1e-4 for continuous ones).
      adaptive_entropy: the weight follows the entropy instead, by a factor exp(entropy_lr (target - entropy)) per
        minibatch, within ``entropy_min`` and ``entropy_max``. target_entropy: in nats; None: half of log(choices), or
        -0.5 per action component (before squashing).
      temperature: f = energy / temperature. energy, critic_loss, rho: see ``mjxlab.rl.contrastive``.
      obs_clip: bound on normalised observations, with ``normalise_obs``.
      init_std: the policy's standard deviation at the start, before squashing (the default is the middle of its range).
      mask_duplicates: equal goals of a batch are no negatives of each other.
      num_envs: worlds, over all devices. rollout_length: steps of each per update.
      epochs, batch_size: passes of the policy over the rollout, and samples per gradient step over all devices.
      critic_epochs, critic_batch_size: the critic's own (None: the policy's).
      loop: "decoupled": all steps of the critic, then all of the policy; "interleaved": in turns. The same result.
      value_samples: K, the policy's actions that V is the mean over, for continuous actions.
      total_updates: what the schedule runs over; needed unless it is constant.
      normalise_obs: scale observations by running statistics (goals by those of the achieved ones).
      final_goals: hindsight goals are taken from the states *after* steps, so that the state in which an episode ends
        is among them and every step has a future. False: from the states *before* later steps; last steps are dropped.
      state_only, film, skip, layer_norm, repr_dim, critic_widths: the encoders, see ``mjxlab.nn.contrastive``.
      policy_widths, policy_layer_norm, final_scale: the policy, with the encoders' ``skip``.
      shuffle_goals: a control: advantages are for the commanded goals of other samples.
      critic_data: "on-policy", or as an ablation "stale": the critic learns from the rollout of ``stale_lag`` updates ago.
      reset, episode_length: passed to ``vectorize`` (``episode_length`` None: the environment's own).
    """

    lr: Scalar = 3e-4
    critic_lr: Scalar | None = None
    lr_end: Scalar = 0.0
    adam_eps: Scalar = 1e-5
    max_grad_norm: Scalar | None = 1.0
    discount: Scalar = 0.99
    gae_lambda: Scalar = 0.95
    clip: Scalar = 0.2
    entropy_cost: Scalar | None = None
    target_entropy: Scalar | None = None
    entropy_lr: Scalar = 1e-2
    entropy_min: Scalar = 0.003
    entropy_max: Scalar = 0.05
    temperature: Scalar = 1.0
    rho: Scalar = 0.1
    obs_clip: Scalar = 10.0
    init_std: Scalar = math.exp(-1.5)
    gae_kind: GaeKind = _static("none")
    adaptive_entropy: bool = _static(False)
    energy: Energy = _static("norm")
    critic_loss: Loss = _static("fwd")
    mask_duplicates: bool = _static(False)
    num_envs: int = _static(64)
    rollout_length: int = _static(128)
    epochs: int = _static(4)
    batch_size: int = _static(256)
    critic_epochs: int | None = _static(None)
    critic_batch_size: int | None = _static(None)
    loop: Literal["decoupled", "interleaved"] = _static("decoupled")
    value_samples: int = _static(16)
    total_updates: int | None = _static(None)
    lr_schedule: Schedule = _static("constant")
    normalise_obs: bool = _static(False)
    final_goals: bool = _static(True)
    state_only: bool = _static(True)
    film: bool = _static(False)
    skip: bool = _static(False)
    layer_norm: bool = _static(True)
    repr_dim: int = _static(64)
    critic_widths: tuple[int, ...] = _static((256, 256))
    policy_widths: tuple[int, ...] = _static((256, 256))
    policy_layer_norm: bool = _static(False)
    final_scale: float = _static(0.01)
    shuffle_goals: bool = _static(False)
    critic_data: Literal["on-policy", "stale"] = _static("on-policy")
    stale_lag: int = _static(4)
    reset: Literal["pool", "fresh", "first"] = _static("pool")
    episode_length: int | None = _static(None)

    @property
    def first(self) -> int:
        """The least distance of a hindsight goal's step, see ``goals.future_goal_indices``."""
        return 0 if self.final_goals else 1

    @property
    def policy_minibatches(self) -> int:
        """Gradient steps of the policy in an epoch."""
        return self.num_envs * self.rollout_length // self.batch_size

    @property
    def critic_minibatches(self) -> int:
        """Gradient steps of the critic in an epoch."""
        return self.num_envs * self.rollout_length // (self.critic_batch_size or self.batch_size)

    def validate(self) -> None:
        """Raise ``ConfigError`` for the first field that cannot work. Concrete values only: never under a trace."""
        check_fields(self, _FLOATS, _COUNTS, _CHOICES, _FLAGS)
        for name in ("policy_widths", "critic_widths"):
            widths = getattr(self, name)
            if not isinstance(widths, tuple) or any(not isinstance(w, int) or w < 1 for w in widths):
                raise ConfigError(f"{name}: got {widths!r}, expected a tuple of positive integers")
            if self.skip and len(set(widths[::SKIP])) > 1:
                raise ConfigError(f"{name}: got {widths!r}, expected equal widths for skip connections")
        if float(self.entropy_min) > float(self.entropy_max):
            raise ConfigError(f"entropy_min: got {self.entropy_min!r}, expected at most entropy_max")
        if self.lr_schedule != "constant" and self.total_updates is None:
            raise ConfigError("total_updates: got None, expected the run's updates, as lr_schedule is not constant")
        self.check_batches()
        warn_if_unidentified(self.critic_loss, self.rho)

    def check_batches(self) -> None:
        """Raise ``ConfigError`` unless the rollout splits into whole minibatches, on any number of devices."""
        rows, groups = self.num_envs * self.rollout_length, num_groups(self.num_envs)
        for name in ("batch_size", "critic_batch_size"):
            size = getattr(self, name)
            if size is None:
                continue
            if rows % size or size % groups:
                raise ConfigError(
                    f"{name}: got {size}, expected a divisor of {rows} (rollout_length {self.rollout_length} times num_envs "
                    f"{self.num_envs}) that is a multiple of {groups} (the groups that worlds are shuffled in)"
                )
            if name == "batch_size" and size < 2 and self.critic_batch_size is None:
                raise ConfigError("batch_size: got 1, expected at least 2: a goal is told from the others of its batch")
        if self.critic_batch_size == 1:
            raise ConfigError(
                "critic_batch_size: got 1, expected at least 2: a goal is told from the others of its batch"
            )
        steps = (self.epochs * self.policy_minibatches, (self.critic_epochs or self.epochs) * self.critic_minibatches)
        if self.loop == "interleaved" and steps[0] != steps[1]:
            raise ConfigError(
                f"loop: got 'interleaved' with {steps[0]} steps of the policy and {steps[1]} of the critic, expected as many"
            )


# name: (lowest, highest, lowest excluded, may be None)
_FLOATS: dict[str, tuple[float, float, bool, bool]] = {
    "lr": (0, math.inf, True, False),
    "critic_lr": (0, math.inf, True, True),
    "lr_end": (0, math.inf, False, False),
    "adam_eps": (0, math.inf, True, False),
    "max_grad_norm": (0, math.inf, True, True),
    "discount": (0, 1, False, False),
    "gae_lambda": (0, 1, False, False),
    "clip": (0, math.inf, True, False),
    "entropy_cost": (-math.inf, math.inf, False, True),
    "target_entropy": (-math.inf, math.inf, False, True),
    "entropy_lr": (0, math.inf, True, False),
    "entropy_min": (0, math.inf, True, False),
    "entropy_max": (0, math.inf, True, False),
    "temperature": (0, math.inf, True, False),
    "rho": (0, math.inf, False, False),
    "obs_clip": (0, math.inf, True, False),
    "init_std": (math.exp(-4.9), math.exp(1.9), False, False),
}
_COUNTS = {
    "num_envs": False,
    "rollout_length": False,
    "epochs": False,
    "batch_size": False,
    "critic_epochs": True,
    "critic_batch_size": True,
    "value_samples": False,
    "total_updates": True,
    "repr_dim": False,
    "stale_lag": False,
    "episode_length": True,
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "gae_kind": get_args(GaeKind),
    "energy": get_args(Energy),
    "critic_loss": get_args(Loss),
    "loop": ("decoupled", "interleaved"),
    "lr_schedule": get_args(Schedule),
    "critic_data": ("on-policy", "stale"),
    "reset": ("pool", "fresh", "first"),
}
_FLAGS = (
    "adaptive_entropy",
    "mask_duplicates",
    "normalise_obs",
    "final_goals",
    "state_only",
    "film",
    "skip",
    "layer_norm",
    "policy_layer_norm",
    "shuffle_goals",
)


def entropy_cost(config: Config, discrete: bool) -> Scalar:
    """The weight of the entropy bonus at the start."""
    given = config.entropy_cost
    if given is None:
        return 0.01 if discrete else 1e-4
    return given


def target_entropy(config: Config, discrete: bool, actions: int) -> Scalar:
    """What ``adaptive_entropy`` aims at: nats of a Categorical with ``actions`` choices, or of a Normal of that size."""
    if config.target_entropy is None:
        return 0.5 * math.log(actions) if discrete else -0.5 * actions
    return config.target_entropy
