"""``fit``: the one training loop.

Every device runs the same program on its share of the state (``jax.shard_map`` over the mesh axis ``"device"``). A device
call makes many updates; their metrics come back once, when it ends. Update number u of a run uses the key
``fold_in(key, u)``, whatever was grouped into calls, saved, or resumed: N updates are k updates, a kill, and N - k updates
in a new process, bit for bit on a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from mjxlab import spmd
from mjxlab.batches import Batches
from mjxlab.configs import check_seed
from mjxlab.errors import ConfigError
from mjxlab.history import History
from mjxlab.learner import Learner
from mjxlab.sinks import Sink
from mjxlab.training import Phase, Settings, Training, evaluation_key, init_key, update_key

__all__ = ["History", "evaluation_key", "fit", "fit_phases", "init_key", "update_key"]

Evaluate = Callable[[Any, Any], dict[str, Any]]
PRECISIONS = ("default", "high", "highest", "bfloat16", "tensorfloat32", "float32")


def fit(
    learner: Learner,
    *,
    steps: int,
    key: jax.Array | int,
    batches: Batches | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    config: Any = None,
    env: Any = None,
    env_options: dict[str, Any] | None = None,
    agent: str | None = None,
    sinks: Sequence[str | Sink] | None = None,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = 300.0,
    keep: int = 3,
    updates_per_call: int | None = None,
    log_every: int = 1,
    devices: Any = None,
    resume: str | int = "auto",
    state: Any = None,
    matmul_precision: str = "float32",
    until: Callable[[dict[str, Any]], bool] | None = None,
) -> tuple[Any, History]:
    """Train.

    Args:
      learner: what to train. State fields marked ``flax.struct.field(metadata={"axis": "device"})`` are split over
        devices along axis 0, all others are on every device.
      steps: number of updates of the whole run, those made before a resume included.
      key: a typed key, or a seed.
      batches: for a learner that does not collect its own data: a function ``step -> batch``, a sequence, or an
        iterator. Batches are global; axis 0 is split over devices. ``mjxlab.batches.Feed`` says how each kind resumes.
      evaluate: ``evaluate(state, key) -> dict``, pure; runs on the devices at step 0, every ``evaluate_every`` updates
        and at the end, each time with another key. What it sees is each device's share of the state.
      evaluate_every: by default a twentieth of ``steps``.
      run_dir: the run folder: ``run.json``, ``metrics.jsonl``, ``curve.png``, ``checkpoints/STEP/``. None: nothing is
        written.
      config: recorded in ``run.json``; a resumed run must have the same. Its ``validate()``, if any, is called.
      env: the environment, or its name; recorded. env_options: what it was made with; recorded.
      agent: name of the system; recorded.
      sinks: names (``console jsonl csv tensorboard wandb``) or ``mjxlab.sinks.Sink`` objects; by default the console,
        and ``jsonl`` where there is a run folder.
      checkpoint_every: save after each so many updates, besides at the end and on a signal.
      checkpoint_seconds: save when so much time has passed; None: never for that reason.
      keep: number of checkpoints that stay.
      updates_per_call: by default as many as take about 2 seconds. Results do not depend on it.
      log_every: keep the metrics of each so many updates.
      devices: all by default; a number, or a list.
      resume: ``"auto"``: go on from the newest intact checkpoint of the run folder, if there is one (one line says
        where a newer one was damaged); ``"must"``: as auto, but there has to be one; ``"never"``: refuse a folder with
        checkpoints; a number: from that checkpoint.
      state: start from this state rather than from ``learner.init``.
      matmul_precision: of all matrix products, see ``jax.default_matmul_precision``; recorded. On GPUs and TPUs
        ``"default"`` is faster and less exact.
      until: ``until(row) -> bool``, asked after each evaluation with its metrics (``{"step": …, "eval/NAME": …}``); True
        ends the training.

    Returns:
      The state on its devices, and the ``History``. The first SIGTERM or SIGINT finishes the call that is running, saves,
      and returns as if ``steps`` were reached; ``history.interrupted`` then names the signal.

    Raises:
      ConfigError: an argument, the config, or the run folder cannot work. UnknownNameError: no such sink.
      CheckpointError: a checkpoint is damaged, or of another training state.
      WorkLostError: a checkpoint or metrics could not be written; earlier checkpoints are intact.

    Example:
      >>> import jax, mjxlab
      >>> from mjxlab.agents import ppo
      >>> env = mjxlab.make("pendulum")
      >>> learner = ppo.make(env, ppo.config_for("pendulum"))  # doctest: +SKIP
      >>> state, history = mjxlab.fit(learner, steps=100, key=jax.random.key(0), run_dir="runs/p")  # doctest: +SKIP
    """
    phases = [Phase(agent or "training", learner, _count("steps", steps), None, batches, evaluate)]
    settings = Settings(
        key=_key(key),
        evaluate_every=evaluate_every,
        run_dir=run_dir,
        config=config,
        env=env,
        env_options=env_options,
        agent=agent,
        sinks=sinks,
        checkpoint_every=checkpoint_every,
        checkpoint_seconds=checkpoint_seconds,
        keep=keep,
        updates_per_call=updates_per_call,
        log_every=log_every,
        devices=devices,
        resume=resume,
        state=state,
        matmul_precision=matmul_precision,
        until=until,
    )
    return _train(phases, settings)


def fit_phases(
    phases: Sequence[tuple[str, Learner]],
    *,
    steps: Sequence[int] | Mapping[str, int],
    key: jax.Array | int,
    enter: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    batches: Mapping[str, Batches] | None = None,
    evaluate: Evaluate | Mapping[str, Evaluate] | None = None,
    **settings: Any,
) -> tuple[Any, History]:
    """Train in phases, one learner after the other, as one run: one folder, one count of updates, one resume.

    Args:
      phases: ``[(name, learner), …]``. The first learner's ``init`` makes the state; each later phase goes on with the
        state of the one before.
      steps: updates of each phase, in order or by name.
      key: a typed key, or a seed.
      enter: by name, ``enter(state, key) -> state`` for phases that start from another state than the one before left.
      batches, evaluate: by name; one ``evaluate`` serves all.
      **settings: as for ``fit``.

    Returns:
      As ``fit``. A resumed run goes on within the phase that it was in.
    """
    names = [name for name, _ in phases]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"phases: got the names {names}, expected at least one, all different")
    counts = [steps.get(name) for name in names] if isinstance(steps, Mapping) else list(steps)
    if len(counts) != len(names) or None in counts:
        raise ConfigError(f"steps: got {steps!r}, expected a number for each of {', '.join(names)}")
    shared = dict.fromkeys(names, evaluate) if callable(evaluate) else dict(evaluate or {})
    for field, given in (("enter", enter), ("batches", batches), ("evaluate", shared)):
        for name in given or {}:
            if name not in names:
                raise ConfigError(f"{field}: names the phase {name!r}, expected one of {', '.join(names)}")
    stages = [
        Phase(
            name,
            learner,
            _count(f"steps of {name}", count),
            (enter or {}).get(name),
            (batches or {}).get(name),
            shared.get(name),
        )
        for (name, learner), count in zip(phases, counts, strict=True)
    ]
    return _train(stages, Settings(key=_key(key), **settings))


def _train(phases: Sequence[Phase], settings: Settings) -> tuple[Any, History]:
    for name in ("evaluate_every", "checkpoint_every", "updates_per_call"):
        if getattr(settings, name) is not None:
            _count(name, getattr(settings, name))
    _count("log_every", settings.log_every)
    _count("keep", settings.keep)
    if settings.matmul_precision not in PRECISIONS:
        raise ConfigError(
            f"matmul_precision: got {settings.matmul_precision!r}, expected one of {', '.join(PRECISIONS)}"
        )
    resume = settings.resume
    if isinstance(resume, bool) or not (isinstance(resume, int) or resume in ("auto", "must", "never")):
        raise ConfigError(f"resume: got {resume!r}, expected auto, must, never, or the step of a checkpoint")
    if settings.checkpoint_every is not None and settings.run_dir is None:
        raise ConfigError(f"checkpoint_every: got {settings.checkpoint_every}, but no run_dir to write to")
    validate = getattr(settings.config, "validate", None)
    if validate is not None:
        validate()
    return Training(phases, settings).execute()


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise ConfigError(f"{name}: got {value!r}, expected an integer of at least 1 (and below 2^31)")
    return value


def _key(key: Any) -> jax.Array:
    if isinstance(key, int) and not isinstance(key, bool):
        return jax.random.key(check_seed(key, "key"))
    if not spmd.is_key(key) or key.shape != ():
        kind = f"{key.dtype}{list(key.shape)}" if hasattr(key, "dtype") else repr(key)
        raise ConfigError(f"key: got {kind}, expected one typed key (jax.random.key(seed)) or a seed")
    return key
