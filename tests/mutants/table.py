"""The mutants. ``README.md`` beside this file says what each invariant is."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
from mutants.framework import Mutant

from mjxlab import spmd
from mjxlab.errors import ConfigError
from mjxlab.rl import normalise

MUTANTS: list[Mutant] = [
    Mutant(
        "first_state_cached",
        1,
        "gives every episode the same start",
        "mjxlab.envs.vectorize:make_fill",
        lambda original: lambda env: _same_start(original, env),
        "test_vectorize:test_no_start_comes_twice",
    ),
    Mutant(
        "guard_blind",
        5,
        "calls every world finite",
        "mjxlab.envs.vectorize:is_finite",
        lambda original: lambda state: jnp.ones((), bool),
        "test_vectorize:test_guard_spares_the_neighbours",
    ),
    Mutant(
        "worlds_numbered_per_device",
        11,
        "numbers the worlds of each device from 0",
        "mjxlab.spmd:global_index",
        lambda original: _per_device,
        "test_vectorize:test_two_devices_give_what_one_gives",
    ),
    Mutant(
        "gradients_not_averaged",
        11,
        "leaves every device its own mean",
        "mjxlab.spmd:pmean",
        lambda original: lambda tree: tree,
        "test_loop:test_one_device_and_two_agree",
        refusals=(ConfigError,),  # fit itself finds that devices disagree
    ),
    Mutant(
        "float32_for_ever",
        10,
        "says float32 where JAX's default is float64",
        "mjxlab.envs._trees:strong",
        lambda original: lambda tree: jax.tree.map(_to_float32, original(tree)),
        "test_vectorize:test_double_precision",
        refusals=(jax.dtypes.TypePromotionError,),  # strict promotion does not let the two meet
    ),
    Mutant(
        "memory_not_refused",
        9,
        "lets everything through",
        "mjxlab.training:refuse_if_larger",
        lambda original: lambda *args, **kwargs: None,
        "test_loop:test_memory_is_refused_with_numbers",
        refusals=(jax.errors.JaxRuntimeError,),  # out of memory
    ),
    Mutant(
        "resume_starts_keys_anew",
        4,
        "counts updates from the start of the process instead of the run's",
        "mjxlab.program:Updates.__call__",
        lambda original: _count_from_zero(original),
        "test_checkpoint:test_a_run_falls_back_to_the_newest_intact_checkpoint_and_says_so",
    ),
    Mutant(
        "another_tree_accepted",
        4,
        "finds no difference between the saved tree and the expected one",
        "mjxlab.checkpoint:_difference",
        lambda original: lambda saved, expected: "",
        "test_checkpoint:test_another_tree_is_refused_with_the_paths",
        {"like": {"x": jnp.zeros(4)}, "message": "x"},
    ),
    Mutant(
        "versions_forgotten",
        7,
        "forgets what the run ran on",
        "mjxlab.runs:machine",
        lambda original: dict,
        "test_checkpoint:test_run_json_says_what_is_needed_to_repeat_it",
        refusals=(KeyError,),
    ),
    Mutant(
        "another_config_accepted",
        7,
        "goes on with a run of another config",
        "mjxlab.runs:differences",
        lambda original: lambda *args: [],
        "test_checkpoint:test_another_run_in_the_folder_is_refused_by_field",
    ),
    Mutant(
        "hash_not_compared",
        12,
        "believes every file",
        "mjxlab.checkpoint:_hash",
        lambda original: lambda path: "always the same",
        "test_checkpoint:test_damage_is_found_and_the_one_before_is_used_only_when_asked_for",
        {"how": "flip", "message": "is damaged, its SHA-256 does not fit"},
    ),
    Mutant(
        "paths_escape",
        12,
        "follows a manifest out of its folder",
        "pathlib:PurePath.is_relative_to",
        lambda original: lambda self, *other: True,
        "test_checkpoint:test_damage_is_found_and_the_one_before_is_used_only_when_asked_for",
        {"how": "outside", "message": "names a file outside its folder"},
    ),
    Mutant(
        "truncation_sees_the_next_episode",
        2,
        "bootstraps a truncation from the state after the reset",
        "mjxlab.rl.returns:next_values",
        lambda original: lambda values, done, final: original(values, jnp.zeros_like(done), final),
        "test_rl_returns:test_the_four_ends_of_a_step_by_hand",
        {"terminated": False, "truncated": True},
    ),
    Mutant(
        "truncation_worth_nothing",
        2,
        "takes a truncation for a termination",
        "mjxlab.rl.returns:gae",
        lambda original: lambda r, v, n, e, d, **kw: original(r, v, n, e | d, d, **kw),
        "test_rl_returns:test_the_four_ends_of_a_step_by_hand",
        {"terminated": False, "truncated": True},
    ),
    Mutant(
        "termination_bootstraps",
        2,
        "takes a termination for a truncation",
        "mjxlab.rl.returns:gae",
        lambda original: lambda r, v, n, e, d, **kw: original(r, v, n, jnp.zeros_like(e), e | d, **kw),
        "test_rl_returns:test_the_four_ends_of_a_step_by_hand",
        {"terminated": True, "truncated": True},
    ),
    Mutant(
        "clipped_element_by_element",
        3,
        "clips every element of the gradient by itself",
        "mjxlab.rl.losses:clip_by_global_norm",
        lambda original: _clip_elements,
        "test_rl_losses:test_gradient_clipping_is_by_the_global_norm",
    ),
    Mutant(
        "counter_wraps",
        3,
        "loses the carry at 2^32",
        "mjxlab.rl.counter:Counter.__add__",
        lambda original: lambda self, n: self.replace(low=self.low + jnp.asarray(n, jnp.uint32)),
        "test_loop:test_counters_are_exact_beyond_32_bits",
    ),
    Mutant(
        "traced_twice",
        8,
        "traces the update twice",
        "mjxlab.program:Updates._program",
        lambda original: lambda self, *args: (original(self, *args), original(self, *args))[1],
        "test_loop:test_update_is_traced_once_and_state_is_donated",
    ),
    Mutant(
        "randomised_once",
        6,
        "draws the same model fields at every reset",
        "mjxlab.envs.mujoco_env:bind",
        lambda original: lambda fn, model: _draw_once(original(fn, model)),
        "test_randomise:test_drawn_anew_for_each_reset_world_and_device",
    ),
    Mutant(
        "action_clipped_before_it_is_kept",
        3,
        "keeps the action that the environment takes instead of the sampled one",
        "mjxlab.rl.distributions:Normal.sample",
        lambda original: lambda self, key: jnp.clip(original(self, key), -1, 1),
        "test_ppo:test_log_probabilities_are_of_the_unclipped_action",
    ),
    Mutant(
        "normaliser_updated_too_early",
        3,
        "updates the statistics before the epochs",
        "mjxlab.rl.ppo:prepare",
        lambda original: (
            lambda n, c, p, stats, data, *rest: original(n, c, p, normalise.update(stats, data.obs), data, *rest)
        ),
        "test_ppo:test_the_loss_sees_what_the_rollout_saw",
    ),
    Mutant(
        "bad_gradient_applied",
        5,
        "calls every gradient finite",
        "mjxlab.rl.ppo:jnp",
        lambda original: AllFinite(original),
        "test_ppo:test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted",
    ),
    Mutant(
        "ppo_gradients_not_averaged",
        11,
        "leaves every device its own mean",
        "mjxlab.spmd:pmean",
        lambda original: lambda tree: tree,
        "test_ppo:test_one_device_and_two_agree",
    ),
    Mutant(
        "config_not_checked",
        12,
        "accepts every config",
        "mjxlab.rl.ppo_config:Config.validate",
        lambda original: lambda self: None,
        "test_ppo:test_bad_configs_give_one_clear_line",
        {"change": {"lr": float("nan")}, "message": "lr: got nan, expected a number above 0"},
    ),
]


def _same_start(make_fill, env):
    stuck = copy.copy(env)
    stuck.reset = lambda key: env.reset(jax.random.key(0))
    return make_fill(stuck)


def _count_from_zero(call):
    first = {}

    def broken(self, state, key, start, count, batches=None):
        return call(self, state, key, start - first.setdefault(id(self), start), count, batches)

    return broken


def _clip_elements(grads, bound):
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(grads)))
    return (grads if bound is None else jax.tree.map(lambda x: jnp.clip(x, -bound, bound), grads)), norm


def _draw_once(hook):
    return None if hook is None else lambda key: hook(jax.random.key(0))


class AllFinite:
    """``jax.numpy`` to which everything is finite."""

    def __init__(self, numpy):
        self._numpy = numpy

    def __getattr__(self, name):
        return getattr(self._numpy, name)

    def isfinite(self, x):
        return self._numpy.ones_like(x, bool)


def _per_device(local):
    return 0 * spmd.axis_index() + jnp.arange(local, dtype=jnp.int32)


def _to_float32(x):
    return x.astype(jnp.float32) if x.dtype == jnp.float64 else x
