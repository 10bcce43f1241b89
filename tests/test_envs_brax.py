"""The tasks that are Brax's: the robots' constants, and transitions from the same state under the same action.

Brax runs live (``backend="mjx"``); nothing here is a stored result. The comparison itself, and the tolerances, are in
``benchmarks/brax_parity.py``.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import warnings
from xml.etree import ElementTree

import mujoco
import numpy as np
import pytest

import mjxlab

_PATH = pathlib.Path(__file__).resolve().parent.parent / "benchmarks" / "brax_parity.py"
_SPEC = importlib.util.spec_from_file_location("brax_parity", _PATH)
brax_parity = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(brax_parity)
BRAX = brax_parity.BRAX


def _brax_model(name):
    """Brax's robot as MuJoCo compiles it, after Brax has fused bodies that have no joint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import brax
        from brax.io.mjcf import _fuse_bodies

    file = {"half_cheetah": "half_cheetah", "walker": "walker2d"}.get(name, name)
    path = os.path.join(os.path.dirname(brax.__file__), "envs", "assets", f"{file}.xml")
    root = ElementTree.parse(path).getroot()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _fuse_bodies(root)
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))


@pytest.mark.parametrize("name", BRAX)
def test_constants_are_those_of_brax(name):
    """Masses, inertias, frames, joints, actuators, contact geometry and options."""
    ours, theirs = mjxlab.make(name).engine.model, _brax_model(name)
    bodies, joints = (4, 2) if name == "reacher" else (theirs.nbody, theirs.njnt)  # Brax's target has two slides
    moving = slice(1, bodies - 1 if name == "reacher" else bodies)
    for field in ("body_mass", "body_inertia", "body_pos", "body_ipos", "body_parentid"):
        np.testing.assert_allclose(getattr(ours, field)[moving], getattr(theirs, field)[moving], rtol=1e-5, atol=1e-6)
    for field in ("type", "axis", "pos", "stiffness", "limited", "solref", "solimp", "margin"):
        np.testing.assert_allclose(
            getattr(ours, f"jnt_{field}")[:joints], getattr(theirs, f"jnt_{field}")[:joints], atol=1e-6
        )
    limited = ours.jnt_limited[:joints].astype(bool)
    np.testing.assert_allclose(ours.jnt_range[:joints][limited], theirs.jnt_range[:joints][limited], atol=1e-6)
    for field in ("dof_armature", "dof_damping"):
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field)[: ours.nv], atol=1e-9)
    for field in ("gear", "ctrlrange", "ctrllimited", "gainprm", "biasprm"):
        np.testing.assert_allclose(getattr(ours, f"actuator_{field}"), getattr(theirs, f"actuator_{field}"), atol=1e-9)
    np.testing.assert_array_equal(ours.actuator_trnid, theirs.actuator_trnid)
    assert _touching(ours) == _touching(theirs)
    assert ours.opt.timestep == theirs.opt.timestep and ours.opt.integrator == theirs.opt.integrator
    np.testing.assert_array_equal(ours.opt.gravity, theirs.opt.gravity)
    if name in ("ant", "humanoid"):  # Brax changes these for its MJX backend
        assert ours.opt.iterations == 1
        assert ours.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_EULERDAMP
    else:
        assert ours.opt.iterations == theirs.opt.iterations and ours.opt.ls_iterations == theirs.opt.ls_iterations


def _touching(model):
    """Shape, place and material of the geoms that can touch another (where none can, there is nothing to compare)."""
    meets = [
        any(
            (model.geom_contype[i] & model.geom_conaffinity[j]) | (model.geom_contype[j] & model.geom_conaffinity[i])
            for j in range(model.ngeom)
            if j != i
        )
        for i in range(model.ngeom)
    ]
    rows = []
    for i in np.flatnonzero(meets):
        size = () if model.geom_type[i] == mujoco.mjtGeom.mjGEOM_PLANE else model.geom_size[i]
        numbers = [*size, *model.geom_pos[i], *np.abs(model.geom_quat[i]), *model.geom_friction[i]]
        numbers += [*model.geom_solref[i], *model.geom_solimp[i], model.geom_margin[i]]
        rows.append((int(model.geom_bodyid[i]), int(model.geom_condim[i]), tuple(np.round(numbers, 5) + 0.0)))
    return sorted(rows)


def _check(name, engine, worlds=32):
    complaints = brax_parity.excess(name, brax_parity.parity(name, engine, worlds))
    assert not complaints, complaints


def test_ant_steps_as_brax_does():
    _check("ant", "mujoco")


def test_a_wrong_reward_or_end_would_be_noticed():
    errors = {
        "first": np.zeros(2),
        "obs": np.zeros(2),
        "reward": np.array([0.0, 1e-3]),
        "ends": np.array([False, True]),
    }
    assert len(brax_parity.excess("ant", errors)) == 2
    assert brax_parity.excess("ant", errors | {"reward": np.array([np.nan]), "ends": np.zeros(1, bool)})


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in BRAX if n != "ant"])
def test_steps_as_brax_does(name):
    _check(name, "mujoco")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant", "inverted_double_pendulum", "reacher"])
def test_steps_as_brax_does_through_mjx(name):
    _check(name, "mjx")
