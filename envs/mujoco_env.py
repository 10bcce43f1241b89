"""The base of every MuJoCo environment: a robot file, and a task in four short methods.

A robot of one's own takes about forty lines::

    class Swing(MujocoEnv):
        name = "swing"
        mjcf = "swing.xml"  # a path, an XML string or an MjModel
        frame_skip = 5  # physics steps per control step
        episode_length = 200  # control steps

        def reset_pose(self, key):
            return {"qpos": jax.random.uniform(key, (2,), minval=-0.1, maxval=0.1)}

        def observe(self, data):
            return jnp.concatenate([jnp.sin(data.qpos), jnp.cos(data.qpos), data.qvel])

        def reward(self, before, after, action):
            return {"height": self.sensor(after, "tip")[2], "control": -0.01 * jnp.sum(action**2)}

        def terminated(self, data):
            return jnp.abs(data.qpos[0]) > 3

Every method is a pure function of one world; it runs on all three engines, since it reads only what they share:
state, frame positions and sensors.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Key

from mjxlab.envs.base import State, fresh_state
from mjxlab.envs.randomise import Hook, Randomise, bind
from mjxlab.envs.spaces import unbounded, unit_box
from mjxlab.errors import ConfigError
from mjxlab.physics import Data, Engine, load_model, make_engine
from mjxlab.physics.load import Model


def asset(name: str) -> str:
    """Path of one of the robots that come with mjxlab (``"ant.xml"``).

    Raises:
      ConfigError: there is no such file.
    """
    folder = importlib.resources.files("mjxlab.envs") / "assets"
    path = folder / name
    if not path.is_file():
        known = sorted(p.name for p in folder.iterdir() if p.name.endswith(".xml"))
        raise ConfigError(f"asset {name!r} does not exist; expected one of {', '.join(known)}")
    return str(path)


class MujocoEnv:
    """One robot in one world; subclass it and define the task.

    Class attributes that a subclass sets, each also an argument of the constructor:
      mjcf: path of an MJCF file, XML string, or ``MjModel``.
      frame_skip: physics steps per control step.
      episode_length: time limit in control steps.
      outputs: MjData fields that the task reads (each costs a copy). ``qpos`` and ``mocap_pos`` are always there,
        since ``pose`` needs them (the latter where the model has mocap bodies).

    Methods that a subclass defines: ``reset_pose``, ``observe``, ``reward``, ``terminated``; if need be ``control`` and
    ``metrics``.

    Attributes:
      engine: the physics engine.
      dt: seconds per control step.
      home: Float[nq], the pose of the keyframe "home" if the model has it, else ``qpos0``.
      randomise: draws per-world model fields at each reset, or None.
      action_space: a box of [-1, 1], one number per actuator.
    """

    name: str = "robot"
    mjcf: Any = None
    frame_skip: int = 1
    episode_length: int = 1000
    outputs: tuple[str, ...] = ("qpos", "qvel", "xpos", "sensordata")

    def __init__(
        self,
        mjcf: Model | None = None,
        *,
        engine: str = "auto",
        frame_skip: int | None = None,
        episode_length: int | None = None,
        outputs: Sequence[str] = (),
        randomise: Randomise | None = None,
    ) -> None:
        """Load the robot.

        Args:
          mjcf: the robot, instead of the class's own.
          engine: "auto", "mujoco", "mjx" or "warp".
          frame_skip, episode_length: instead of the class's own.
          outputs: MjData fields to return besides the class's own.
          randomise: ``fn(key, model) -> fields``, see ``mjxlab.envs.randomise``.

        Raises:
          ModelError: the model cannot be loaded.
          ConfigError: an argument that cannot work.
        """
        model = self.mjcf if mjcf is None else mjcf
        if model is None:
            raise ConfigError(
                f"environment {self.name!r} has no model; expected an MJCF path, an XML string or an MjModel"
            )
        self.frame_skip = _count("frame_skip", self.frame_skip if frame_skip is None else frame_skip)
        self.episode_length = _count(
            "episode_length", self.episode_length if episode_length is None else episode_length
        )
        loaded = load_model(model)
        wanted = dict.fromkeys(("qpos", *self.outputs, *outputs, *(("mocap_pos",) if loaded.nmocap else ())))
        self.engine: Engine = make_engine(loaded, engine, outputs=tuple(wanted))
        compiled: mujoco.MjModel = self.engine.model
        self.dt = self.frame_skip * float(compiled.opt.timestep)
        self.home: np.ndarray = np.array(compiled.qpos0)
        if mujoco.mj_name2id(compiled, mujoco.mjtObj.mjOBJ_KEY, "home") >= 0:
            self.home = np.array(compiled.key("home").qpos)
        limited = compiled.actuator_ctrllimited.astype(bool)
        low, high = compiled.actuator_ctrlrange.T
        self._middle: np.ndarray = np.where(limited, (low + high) / 2, 0.0)
        self._half: np.ndarray = np.where(limited, (high - low) / 2, 1.0)
        self.action_space: spaces.Space = unit_box(compiled.nu)
        self.randomise: Hook | None = bind(randomise, compiled)

    # the task

    def reset_pose(self, key: Key[Array, ""]) -> Mapping[str, Any]:
        """State fields of a new episode: ``qpos``, ``qvel``, ``mocap_pos`` … What is left out is at home, at rest."""
        return {}

    def observe(self, data: Data) -> Any:
        """What the policy sees: any PyTree of arrays. Default: qpos and qvel."""
        return jnp.concatenate([data.qpos, data.qvel])

    def reward(self, before: Data, after: Data, action: Float[Array, " nu"]) -> Any:
        """Reward of a step: a number, or a dict of named terms, which are added and logged as ``reward_NAME``."""
        return 0.0

    def terminated(self, data: Data) -> Any:
        """Whether the episode ends by the rules of the task. Default: never."""
        return False

    def metrics(self, before: Data, after: Data, action: Float[Array, " nu"]) -> dict[str, Any]:
        """Numbers to log."""
        return {}

    def control(self, data: Data, action: Float[Array, " nu"]) -> Float[Array, " ctrl"]:
        """Actuator inputs for an action. Default: [-1, 1] onto ``ctrlrange``, unclipped (MuJoCo clips to the range);
        actuators without a range take the action as it is."""
        return self.constant(self._middle) + self.constant(self._half) * action

    # helpers for the task

    def sensor(self, data: Data, name: str) -> Float[Array, " dim"]:
        """A sensor's numbers, by its name."""
        return self.engine.sensor(data, name)

    def body_id(self, name: str) -> int:
        """Row of a body in ``data.xpos`` and its like.

        Raises:
          ConfigError: the model has no such body.
        """
        index = mujoco.mj_name2id(self.engine.model, mujoco.mjtObj.mjOBJ_BODY, name)
        if index < 0:
            known = [self.engine.model.body(i).name for i in range(self.engine.model.nbody)]
            raise ConfigError(f"body {name!r} is not in the model; its bodies are {', '.join(known)}")
        return int(index)

    def position(self, data: Data, body: str) -> Float[Array, "3"]:
        """Position of a body's frame in the world, metres (needs the output ``xpos``)."""
        return data.xpos[self.body_id(body)]

    def constant(self, value: Any) -> Array:
        """A float array in JAX's default precision."""
        return jnp.asarray(value, jnp.result_type(float))

    # the environment

    @functools.cached_property
    def observation_space(self) -> spaces.Space:
        """Unbounded boxes in the shape of the observation."""
        return _space(jax.eval_shape(self.reset, jax.random.key(0)).obs)

    def reset(self, key: Key[Array, ""]) -> State:
        """A fresh episode; all randomness comes from ``key``."""
        key, draw, pose = jax.random.split(key, 3)
        fields = {} if self.randomise is None else self.randomise(draw)
        return self.start(key, fields, **self.reset_pose(pose))

    def start(self, key: Key[Array, ""], fields: Mapping[str, Any] | None = None, **pose: Any) -> State:
        """An episode that begins in a state of the caller's choice.

        Args:
          key: the world's key.
          fields: per-world model fields; None or {} for the model's own.
          pose: ``qpos``, ``qvel``, ``mocap_pos`` … as in ``Engine.init``; home and rest where not given.
        """
        fields = dict(fields or {})
        pose = {"qpos": self.constant(self.home), **pose}
        data = self.engine.init(fields, **pose)
        action = jnp.zeros((self.engine.model.nu,), jnp.result_type(float))
        shapes = jax.eval_shape(lambda d, a: self._score(d, d, a)[1], data, action)
        metrics = {name: jnp.zeros(m.shape, m.dtype) for name, m in shapes.items()}
        return fresh_state(
            data, self.observe(data), key, params={"fields": fields}, metrics=metrics, **self._extras(data)
        )

    def step(self, state: State, action: Any) -> State:
        """One control step: ``frame_skip`` physics steps under one control.

        Args:
          state: of one world.
          action: Float[nu] in [-1, 1].
        """
        action = self._action(action)
        control = self.control(state.data, action)
        data = self.engine.step(state.data, state.params["fields"], control, self.frame_skip)
        reward, metrics = self._score(state.data, data, action)
        return state.replace(
            data=data,
            obs=self.observe(data),
            reward=reward,
            terminated=_flag(self.terminated(data)),
            metrics=metrics,
            **self._extras(data),
        )

    def pose(self, state: State) -> dict[str, Any]:
        """What a renderer needs: ``qpos``, ``mocap_pos`` and ``mocap_quat``."""
        model, lead = self.engine.model, state.data.qpos.shape[:-1]
        moving = model.body_mocapid >= 0
        order = np.argsort(model.body_mocapid[moving])
        quat = self.constant(model.body_quat[moving][order])
        return {
            "qpos": state.data.qpos,
            "mocap_pos": state.data.mocap_pos if model.nmocap else jnp.zeros((*lead, 0, 3), quat.dtype),
            "mocap_quat": jnp.broadcast_to(quat, (*lead, *quat.shape)),
        }

    def _extras(self, data: Data) -> dict[str, Any]:
        """Further fields of ``State`` (goal tasks)."""
        return {}

    def _action(self, action: Any) -> Float[Array, " nu"]:
        array = jnp.asarray(action)
        expected = self.action_space.shape
        if array.shape != expected:
            hint = "; one world: use jax.vmap for many" if array.shape[1:] == expected else ""
            raise ConfigError(f"action of {self.name!r} has shape {array.shape}; expected {expected}{hint}")
        return array.astype(jnp.result_type(float))

    def _score(
        self, before: Data, after: Data, action: Float[Array, " nu"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The reward, and everything to log."""
        total, logged = self._named(self.reward(before, after, action))
        for name, value in self.metrics(before, after, action).items():
            logged[name] = self._scalar("metrics", name, value)
        return total, logged

    def _named(self, terms: Any) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The sum of reward terms, and each under the name that it is logged by."""
        named = terms if isinstance(terms, Mapping) else {"": terms}
        scalars = {name: self._scalar("reward", name, value) for name, value in named.items()}
        total = functools.reduce(lambda a, b: a + b, scalars.values(), self.constant(0.0))
        return total, {f"reward_{name}": value for name, value in scalars.items() if name}

    def _scalar(self, method: str, name: str, value: Any) -> Float[Array, ""]:
        array = jnp.asarray(value)
        if array.shape != ():
            which = f"{method}[{name!r}]" if name else method
            raise ConfigError(f"{which} of {self.name!r} has shape {array.shape}; expected a number")
        return array.astype(jnp.result_type(float))


def _flag(value: Any) -> Bool[Array, ""]:
    array = jnp.asarray(value)
    if array.shape != () or array.dtype != jnp.bool_:
        raise ConfigError(f"terminated returned {array.dtype}{list(array.shape)}; expected one true or false")
    return array


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; expected an integer of at least 1")
    return value


def _space(obs: Any) -> spaces.Space:
    if isinstance(obs, Mapping):
        return spaces.Dict({name: _space(part) for name, part in obs.items()})
    if isinstance(obs, (tuple, list)):
        return spaces.Tuple(tuple(_space(part) for part in obs))
    return unbounded(*obs.shape)
