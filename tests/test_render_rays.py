"""The ray caster against ``mj_ray`` of the C library: distances, ids, normals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from mjxlab.physics.render import cast, make_scene
from mjxlab.physics.render.camera import quat_to_mat

shoot = jax.jit(cast)
SHAPES = ("plane", "sphere", "capsule", "ellipsoid", "cylinder", "box")


def model_of(*shapes: str, seed: int = 0) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """Shapes of random size at random poses within a metre or so of the origin."""
    rng = np.random.default_rng(seed)
    geoms = ""
    for shape in shapes:
        size = rng.uniform(0.1, 0.5, 3)
        if shape == "plane":
            size[:2] = rng.uniform(1, 2, 2)
        pos, quat = rng.normal(size=3) * 0.8, rng.normal(size=4)
        geoms += '<geom type="{}" size="{} {} {}" pos="{} {} {}" quat="{} {} {} {}"/>'.format(shape, *size, *pos, *quat)
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{geoms}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def c_rays(model, data, origin, direction):
    """Distance in metres (inf), id (-1) and normal (zeros) by ``mj_ray``."""
    out, geom, normal = np.empty(len(origin)), np.empty(len(origin), np.int32), np.zeros((len(origin), 3))
    for i in range(len(origin)):
        unit = direction[i] / np.linalg.norm(direction[i])
        found, n = np.zeros((1, 1), np.int32), np.zeros((3, 1))
        out[i] = mujoco.mj_ray(model, data, origin[i][:, None], unit[:, None], None, True, -1, found, n)
        geom[i] = found[0, 0]
        if geom[i] >= 0:
            normal[i] = n[:, 0]
    return np.where(geom >= 0, out, np.inf), geom, normal


def jax_rays(model, data, origin, direction):
    return jax.tree.map(np.asarray, shoot(make_scene(model), data.geom_xpos, data.geom_xmat, origin, direction))


def compare(model, data, origin, direction, tolerance):
    t, geom, normal = jax_rays(model, data, origin, direction)
    want_t, want_geom, want_normal = c_rays(model, data, origin, direction)
    np.testing.assert_array_equal(geom, want_geom)
    hit = geom >= 0
    assert np.isinf(t[~hit]).all() and (normal[~hit] == 0).all()
    np.testing.assert_allclose(t[hit], want_t[hit], rtol=0, atol=tolerance)
    np.testing.assert_allclose(normal[hit], want_normal[hit], rtol=0, atol=30 * tolerance)
    return hit.mean()


def random_rays(rng, count):
    """Origins all about, some inside the shapes; most directions roughly inwards, none of unit length."""
    origin = rng.normal(size=(count, 3)) * rng.choice([0.3, 1.5, 5.0], size=(count, 1))
    direction = rng.normal(size=(count, 3)) * 0.7 - origin * rng.uniform(0, 1, (count, 1))
    return origin, direction * rng.uniform(0.1, 10, (count, 1))


@pytest.mark.x64
@pytest.mark.parametrize("seed", range(3))
def test_random_rays_in_double_precision_are_those_of_mj_ray(seed):
    model, data = model_of(*SHAPES, *SHAPES, seed=seed)
    origin, direction = random_rays(np.random.default_rng(seed), 4000)
    share = compare(model, data, origin, direction, 1e-8)
    assert 0.3 < share < 0.95  # hits and misses both


def test_random_rays_in_single_precision_are_within_rounding():
    model, data = model_of(*SHAPES, *SHAPES)
    origin, direction = random_rays(np.random.default_rng(9), 4000)
    t, geom, normal = jax_rays(model, data, origin, direction)
    want_t, want_geom, want_normal = c_rays(model, data, origin, direction)
    assert t.dtype == np.float32
    same = geom == want_geom
    assert same.mean() > 0.999  # the others pass within rounding of an edge
    hit = same & (geom >= 0)
    slope = np.abs(np.sum(want_normal * direction, 1)) / np.linalg.norm(direction, axis=1)
    assert (np.abs(t[hit] - want_t[hit]) * slope[hit]).max() < 2e-5  # off the surface by 20 micrometres at most
    assert np.quantile(np.abs(normal - want_normal)[hit], 0.999) < 1e-3


@pytest.mark.x64
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_each_shape_from_inside_along_axes_and_grazing(shape):
    model, data = model_of(shape, seed=5)
    rng = np.random.default_rng(1)
    pos, mat, size = data.geom_xpos[0], data.geom_xmat[0].reshape(3, 3), model.geom_size[0]
    radius = {"sphere": size[[0, 0, 0]], "capsule": size[[0, 0, 0]], "cylinder": size[[0, 0, 1]]}.get(shape, size)

    inside = rng.uniform(-0.5, 0.5, (200, 3)) * radius
    free = rng.normal(size=(200, 3))

    # Exactly parallel to an axis of the geom, from outside: the other coordinates anywhere, within and without.
    axis = rng.integers(0, 3, 300)
    beside = rng.uniform(-1.3, 1.3, (300, 3)) * radius
    beside[np.arange(300), axis] = -3.0

    # Tangents of the silhouette at the widest place, a hair within and a hair without.
    near, past = 1 - 1e-6, 1 + 1e-6
    touch = np.array([[radius[0], -3, 0], [-3, radius[1], 0], [-radius[0], 3, 0]])
    scale = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]])
    grazing = np.concatenate([touch * np.where(scale, near, 1), touch * np.where(scale, past, 1)])
    ways = np.tile([[0, 1.0, 0], [1.0, 0, 0], [0, -1.0, 0]], (2, 1))

    starts = np.concatenate([inside, beside, grazing]) @ mat.T + pos
    directions = np.concatenate([free, np.eye(3)[axis], ways]) @ mat.T
    compare(model, data, starts, directions, 1e-8)
    geom = jax_rays(model, data, starts, directions)[1]
    assert (geom[:200] == 0).all()
    assert 0.2 < (geom[200:500] == 0).mean() < 0.9
    assert (geom[500:] == [0, 0, 0, -1, -1, -1]).all()


@pytest.mark.x64
def test_planes_end_at_their_sides_and_are_met_from_the_front_only():
    model, data = model_of("plane", seed=3)
    pos, mat = data.geom_xpos[0], data.geom_xmat[0].reshape(3, 3)
    grid = np.stack(np.meshgrid(np.linspace(-2.5, 2.5, 21), np.linspace(-2.5, 2.5, 21)), -1).reshape(-1, 2)
    above = np.concatenate([grid, np.ones((len(grid), 1))], 1) @ mat.T + pos
    down = np.tile(-mat[:, 2], (len(grid), 1))
    assert 0.1 < compare(model, data, above, down, 1e-10) < 0.9
    below = np.concatenate([grid, -np.ones((len(grid), 1))], 1) @ mat.T + pos
    assert compare(model, data, below, -down, 1e-10) == 0.0
    endless = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><geom type="plane" size="0 0 1"/></worldbody></mujoco>'
    )
    t, geom, normal = jax_rays(endless, at_rest(endless), np.array([[300.0, -200, 4]]), np.array([[0.0, 0.6, -0.8]]))
    assert geom[0] == 0 and t[0] == pytest.approx(5) and normal[0] == pytest.approx([0, 0, 1])


def at_rest(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data


@pytest.mark.x64
def test_gradients_are_those_of_finite_differences():
    """In positions, orientations, sizes, origins and directions, for every shape; through distance and normal."""
    model, data = model_of(*SHAPES[1:], *SHAPES[1:], seed=7)
    rng = np.random.default_rng(2)
    origin, direction = random_rays(rng, 600)
    scene = make_scene(model)
    names = ("geom_xpos", "turn", "size", "origin", "direction")
    start = {
        "geom_xpos": data.geom_xpos,
        "turn": np.zeros((model.ngeom, 3)),
        "size": model.geom_size,
        "origin": origin,
        "direction": direction,
    }
    way = {name: rng.normal(size=start[name].shape) * 0.1 for name in names}

    def moved(step, which):
        value = {name: start[name] + step * which[i] * way[name] for i, name in enumerate(names)}
        mat = jnp.einsum("gij,gjk->gik", jax.vmap(rotation)(value["turn"]), data.geom_xmat.reshape(-1, 3, 3))
        sized = scene.replace(geom_size=value["size"])
        t, geom, normal = cast(sized, value["geom_xpos"], mat, value["origin"], value["direction"])
        return jnp.where(geom >= 0, t, 0), normal, geom

    value = jax.jit(moved)
    slope_of = jax.jit(lambda which: jax.jvp(lambda step: moved(step, which)[:2], (0.0,), (1.0,))[1])
    _, normal, geom = value(0.0, np.zeros(5))
    slope = np.abs(np.sum(normal * direction, 1)) / np.linalg.norm(direction, axis=1)
    for i in range(len(names)):
        which = np.eye(5)[i]
        plus, minus = jax.tree.map(np.asarray, (value(1e-5, which), value(-1e-5, which)))
        steady = (plus[2] == geom) & (minus[2] == geom) & (np.asarray(geom) >= 0) & (slope > 0.05)
        steady &= np.abs(plus[1] - minus[1]).max(1) < 1e-2  # not across an edge either, where the normal jumps
        assert steady.sum() > 150
        dt, dn = jax.tree.map(np.asarray, slope_of(which))
        np.testing.assert_allclose(dt[steady], ((plus[0] - minus[0]) / 2e-5)[steady], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(dn[steady], ((plus[1] - minus[1]) / 2e-5)[steady], rtol=1e-3, atol=1e-4)


def rotation(v):
    """A rotation about v, by about its length while that is small."""
    q = jnp.concatenate([jnp.ones(1), v / 2])
    return quat_to_mat(q / jnp.linalg.norm(q))


def test_gradients_are_finite_everywhere_in_single_precision():
    """Misses, grazing rays and rays along axes included: one bad number would spoil a whole batch's gradient."""
    model, data = model_of(*SHAPES)
    rng = np.random.default_rng(0)
    origin, direction = random_rays(rng, 500)
    sphere = data.geom_xpos[1] + np.array([model.geom_size[1, 0], -3, 0])
    origin = np.concatenate([origin, sphere[None], data.geom_xpos + np.array([0, 0, 3.0])])
    direction = np.concatenate([direction, [[0, 1.0, 0]], np.tile([0, 0, -1.0], (6, 1))])
    scene = make_scene(model)

    def total(pos, mat, size, origin):
        t, geom, normal = cast(scene.replace(geom_size=size), pos, mat, origin, direction)
        return jnp.sum(jnp.where(geom >= 0, t, 0)) + jnp.sum(normal)

    arguments = [jnp.asarray(a, jnp.float32) for a in (data.geom_xpos, data.geom_xmat, model.geom_size, origin)]
    for gradient in jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))(*arguments):
        assert np.isfinite(gradient).all()
