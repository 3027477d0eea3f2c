"""The named trees that cross module borders. Lengths are metres in the world frame."""

from hdvpd.array_typing import Array, Bool, Float, Int, UInt8, pytree


@pytree
class Camera:
    """Pinhole cameras.

    Attributes:
      intrinsics: 3x3 without skew [px]; the centre of pixel (row i, column j) is
        (x, y) = (j + 0.5, i + 0.5).
      camera_to_world: 4x4 pose, OpenCV axes (x right, y down, z forward) [m].
    """

    intrinsics: Float[Array, "*batch 3 3"]
    camera_to_world: Float[Array, "*batch 4 4"]


@pytree
class RgbdFrames:
    """Calibrated RGB-D images.

    Attributes:
      rgb: colours, 0..255.
      depth_m: planar depth along the optical axis [m]; 0, NaN and inf are invalid.
      camera: one camera per frame and view.
    """

    rgb: UInt8[Array, "*batch h w 3"]
    depth_m: Float[Array, "*batch h w"]
    camera: Camera


@pytree
class RobotPoints:
    """Kinematic points of the robot.

    Attributes:
      positions: forward kinematics of every point [m].
      gripper: opening of the point's arm, of order one: in units of 5 cm, radians, or from 0 to 1.
    """

    positions: Float[Array, "*batch p 3"]
    gripper: Float[Array, "*batch p"]


@pytree
class Batch:
    """Windows of 2 observed and f - 2 following frames.

    Attributes:
      frames: images of every view; axes (b f v).
      robot: measured points for the two observed frames, commanded ones after; axes (b f).
      episode: number of the episode of each window.
      start: first frame of each window.
    """

    frames: RgbdFrames
    robot: RobotPoints
    episode: Int[Array, "*batch"]
    start: Int[Array, "*batch"]


@pytree
class ParticleCloud:
    """Particles of one time step.

    Attributes:
      positions: [m].
      features: latent features.
      mask: True for real particles, False for padding.
    """

    positions: Float[Array, "*batch n 3"]
    features: Float[Array, "*batch n c"]
    mask: Bool[Array, "*batch n"]


@pytree
class Rays:
    """Rays through pixel centres.

    Attributes:
      origins: camera centres [m].
      directions: unit vectors; distance along a ray is in metres.
      z_scale: z component of the direction in camera axes: planar depth = distance * z_scale.
    """

    origins: Float[Array, "*batch 3"]
    directions: Float[Array, "*batch 3"]
    z_scale: Float[Array, "*batch"]


@pytree
class Rendering:
    """What a ray sees.

    Attributes:
      rgb: colour on the white background, in [0, 1].
      depth_m: planar depth [m]; the background lies at the far end of the ray.
      acc: accumulated opacity in [0, 1].
    """

    rgb: Float[Array, "*batch 3"]
    depth_m: Float[Array, "*batch"]
    acc: Float[Array, "*batch"]
