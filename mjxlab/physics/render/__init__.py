"""Pictures of simulations: a ray caster in pure JAX, MuJoCo's own renderer where there is OpenGL, and videos.

>>> scene = make_scene(model)  # shapes, materials, lights, sky
>>> camera = make_rig(model, "track")  # or free_camera(lookat, distance, azimuth, elevation)
>>> image = render_bodies(scene, data.xpos, data.xquat, camera)  # Image(rgb, depth, segmentation); jit and vmap it
>>> save_gif("run.gif", frames(model, {"qpos": qpos}), fps=30)  # host side, with either renderer
"""

from __future__ import annotations

from mjxlab.physics.render.camera import Camera, Rig, free_camera, make_rig
from mjxlab.physics.render.draw import Image, cast, pixels, render, render_bodies
from mjxlab.physics.render.gl import GLRenderer
from mjxlab.physics.render.pictures import caption, save_gif, save_png, tile
from mjxlab.physics.render.scene import Light, Placed, Scene, make_scene
from mjxlab.physics.render.video import frames

__all__ = [
    "Camera",
    "GLRenderer",
    "Image",
    "Light",
    "Placed",
    "Rig",
    "Scene",
    "caption",
    "cast",
    "frames",
    "free_camera",
    "make_rig",
    "make_scene",
    "pixels",
    "render",
    "render_bodies",
    "save_gif",
    "save_png",
    "tile",
]
