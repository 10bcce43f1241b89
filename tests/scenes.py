"""Small MuJoCo scenes for the tests of the physics engines."""

# Contacts, actuators with activation and with delay, equalities to switch, a mocap body, and sensors of each stage.
RIG = """
<mujoco model="rig">
  <option timestep="0.004" iterations="20" ls_iterations="10"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="hand" mocap="true" pos="0 0 .9"><geom type="sphere" size=".02" contype="0" conaffinity="0"/></body>
    <body name="box" pos="0 0 .6"><freejoint/><geom name="box" type="box" size=".1 .08 .06" mass="1.3"/></body>
    <body name="ball" pos=".25 0 .4"><freejoint/><geom name="ball" type="sphere" size=".09" mass=".4"/></body>
    <body name="arm" pos="-.6 0 .5">
      <joint name="shoulder" axis="0 1 0" range="-90 90" damping=".05" frictionloss=".01"/>
      <geom name="upper" type="capsule" fromto="0 0 0 .3 0 0" size=".03"/>
      <body name="fore" pos=".3 0 0">
        <joint name="elbow" axis="0 1 0" range="-120 120" damping=".05" armature=".01"/>
        <geom name="fore" type="capsule" fromto="0 0 0 .25 0 0" size=".025"/>
        <site name="tip" pos=".25 0 0" size=".04"/>
      </body>
    </body>
  </worldbody>
  <equality>
    <weld name="grasp" body1="hand" body2="box" active="false"/>
    <connect name="tie" body1="fore" body2="ball" anchor=".25 0 0" active="false"/>
  </equality>
  <actuator>
    <general name="slow" joint="shoulder" dyntype="filterexact" dynprm=".05" gainprm="3" ctrlrange="-1 1"/>
    <general name="sum" joint="elbow" dyntype="integrator" gainprm="4" actlimited="true" actrange="-1 1" biasprm="0 -1"/>
    <motor name="late" joint="elbow" gear=".5" delay=".012" nsample="4"/>
  </actuator>
  <sensor>
    <framepos name="tip" objtype="site" objname="tip"/>
    <framelinvel name="tip_velocity" objtype="site" objname="tip"/>
    <touch name="touch" site="tip"/>
    <accelerometer name="accelerometer" site="tip"/>
    <jointpos name="elbow" joint="elbow"/>
  </sensor>
</mujoco>
"""

# One ball above a floor: what MuJoCo derives from its size and mass decides whether and how it lands.
BALL = """
<mujoco model="ball">
  <option timestep="0.005"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="ball" pos="0 0 .5"><freejoint/><geom name="ball" type="sphere" size=".05" mass="1"/></body>
    <body name="slab" pos="2 0 .3"><freejoint/><geom name="slab" type="box" size=".1 .1 .02" mass="2"/></body>
  </worldbody>
  <sensor><framepos name="ball" objtype="body" objname="ball"/></sensor>
</mujoco>
"""

# The same question for MJX, cheaper to compile: a dumbbell of two spheres that lands on one of them.
DUMBBELL = """
<mujoco model="dumbbell">
  <option timestep="0.005" iterations="4" ls_iterations="8"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="dumbbell" pos="0 0 .12">
      <freejoint/>
      <geom name="low" type="sphere" size=".05" mass="1"/>
      <geom name="high" type="sphere" size=".03" pos=".1 0 .1" mass=".5"/>
    </body>
  </worldbody>
  <sensor><framepos name="place" objtype="body" objname="dumbbell"/></sensor>
</mujoco>
"""

# One hinge with a limit: cheap to compile for MJX.
PENDULUM = """
<mujoco model="pendulum">
  <option timestep="0.01" iterations="4" ls_iterations="8"/>
  <worldbody>
    <body name="rod" pos="0 0 1">
      <joint name="hinge" axis="0 1 0" range="-20 20" damping=".1"/>
      <geom name="rod" type="capsule" fromto="0 0 0 .05 0 -.3" size=".05"/>
      <site name="tip" pos=".05 0 -.3"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge"/></actuator>
  <sensor>
    <framepos name="tip" objtype="site" objname="tip"/>
    <accelerometer name="accelerometer" site="tip"/>
  </sensor>
</mujoco>
"""

# An arena too small for a step: MuJoCo raises.
CRAMPED = """
<mujoco>
  <size memory="2K"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .05"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
    <body pos="0 0 .2"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
  </worldbody>
</mujoco>
"""

# Every joint type, every primitive geom, a tendon: for the constants that MuJoCo derives from model fields.
CHAIN = """
<mujoco model="chain">
  <option timestep="0.005" iterations="4" ls_iterations="6"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="base" pos="0 0 1">
      <freejoint/>
      <geom name="ellipsoid" type="ellipsoid" size=".1 .2 .15"/>
      <body name="upper" pos=".2 0 0">
        <joint name="ball" type="ball"/>
        <geom name="capsule" type="capsule" fromto="0 0 0 .2 .1 0" size=".04"/>
        <body name="lower" pos=".3 0 0">
          <joint name="hinge" axis="0 1 1" armature=".02"/>
          <geom name="cylinder" type="cylinder" fromto="0 0 0 .1 0 .2" size=".05"/>
          <body name="slider" pos=".1 0 .1">
            <joint name="slide" type="slide" axis="1 0 .5"/>
            <geom name="box" type="box" size=".05 .07 .03" pos=".02 0 .01"/>
          </body>
        </body>
      </body>
    </body>
    <body name="post" pos="1 1 0"><geom name="sphere" size=".3"/></body>
  </worldbody>
  <tendon><fixed name="pull"><joint joint="hinge" coef=".5"/><joint joint="slide" coef="-2"/></fixed></tendon>
  <actuator><motor joint="hinge" gear="3"/><motor tendon="pull" gear="2"/></actuator>
</mujoco>
"""
