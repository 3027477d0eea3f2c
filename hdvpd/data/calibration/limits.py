"""What passes, and why: all thresholds of `hdvpd data check` (docs/calibration.md lists them).

They are wide enough for a good depth camera at arm's length and far narrower than what any of the
named mistakes produces (tens of centimetres, or nothing to compare at all).
"""

MEDIAN_M = 0.005
"""Median cross-view distance. Depth cameras repeat to 2-5 mm at 1 m; simulators to well below 1."""
MEDIAN_FOOTPRINTS = 1.0
"""The same in pixel footprints, where that is more: an image does not resolve less than a pixel."""
P95_M = 0.03
"""95th percentile of the cross-view distance: edges, thin parts and noise have a tail, but not one
of a hand's breadth."""
P95_SPACINGS = 3.0
"""The same in the spacing of the compared pixels (large images are thinned), where that is more:
at edges only the distance to the nearest sample is known. Exact data have about 1."""
DRIFT_M = 0.006
"""How far registration may move a camera's points as another sees them: cameras that stand right
move by a quarter of a pixel at most, good hand-eye calibrations are within a few millimetres."""
DRIFT_SPACINGS = 0.45
"""The same in the spacing of the compared pixels, where that is more."""
FRONT_M = 0.02
"""A point of one camera this far in front of what another camera sees contradicts it: that camera
looked through the point."""
FRONT_SHARE = 0.01
"""Share of such points: exact data have none; flying pixels at depth edges are below 1 %."""
BEHIND_M = 0.05
"""A point this far behind what another camera sees is hidden from it and says nothing."""
SILHOUETTE_M = 0.01
"""Beside a silhouette (`SLOPE_LIMIT`) a point this far behind the nearest of the 3x3 pixels around
it may be seen or hidden within the width of a pixel, and says nothing either."""
SETTLED_M = 0.015
"""95th percentile of the cross-view distance above which an estimated correction is not offered."""
SETTLED_SPACINGS = 1.4
"""The same in the spacing of the compared pixels, where that is more: cameras that stand right have
about 1, those that were registered beside the right place 1.5 and more."""
MIN_SHARED_POINTS = 100
"""Fewer shared points than this say nothing about two cameras."""
MIN_SHARED_SHARE = 0.05
"""Of the points inside the other image at least this share must be unhidden in it; else the cameras
look at opposite sides of things."""
LINK_RADIUS_M = 0.03
"""A kinematic point that floats in front of everything seen and is this far from every surface is
detached from the robot's image: a skeleton's points lie inside links or a little beside them."""
TOOL_RADIUS_M = 0.05
"""The same for a few points, which are tool centres: half the opening of a wide gripper."""
MIN_SKELETON = 8
"""Fewer kinematic points than this are tool centres."""
DETACHED_SHARE = 0.10
"""Share of detached points among those that can be judged. Points between open fingers or of a link
that is thinner than its axis suggests may be, a tenth of a skeleton is not."""
LINK_DEPTH_M = 0.15
"""A kinematic point this far behind the seen surface is hidden by something else."""
ROBOT_MEDIAN_M = 0.08
"""Median distance of the judged points from the seen surface: a link's radius, 3 to 8 cm."""
MIN_ROBOT_POINTS = 10
"""Fewer judged points (over all frames) than this say nothing."""
MIN_ROBOT_SHARE = 0.10
"""If less than this share of the robot's points inside the image can be judged, because all others
are hidden, the image does not show the robot."""
MEDIAN_DEPTH_M = (0.05, 20.0)
"""Plausible median depth of a scene within a robot's reach; millimetres read as metres exceed it a
hundredfold."""
VALID_SHARE = 0.05
"""With fewer valid pixels a camera gives no particles to speak of."""
SENTINEL_SHARE = 0.005
"""Share of pixels with exactly the same, farthest depth that makes it a code for 'invalid'."""
SENTINEL_GAP, SENTINEL_DISTINCT = 1.1, 0.5
"""By how much such a depth exceeds all others at least, and the share of these that are distinct,
where it is not twice as far."""
CENTER_OFFSET = 0.15
"""Principal point off the image's centre, in image sizes; lenses stay below 0.05."""
ASPECT = 0.02
"""Relative difference of the two focal lengths; pixels of real sensors are square to 1 %."""
RATE = 0.05
"""Relative difference of the mean time step from 1 / rate_hz."""
LAG_CORRELATION = 0.5
"""A correlation below this between robot and image motion says nothing about their lag: other
things move, too."""
LAG_CHANCE = 1e-3
"""Probability that chance alone names a lag, over all lags that are looked at."""
MIN_LAG_BLOCKS = 6
"""Pieces of episodes, each longer than the motion remembers itself, that must agree on a lag."""
MIN_LAG_MOMENTS = 4
"""Moments in which the robot moves before its places in the images are compared over time."""
LAG_AGREEMENT = 0.75
"""Share of the episodes in which the robot's places must speak for a lag."""
LAG_STEPS = 0.15
"""Lags below this [frames] are none: an image resolves no less where the robot moves slowly."""
COLOR_ANGLE = 0.05
"""By how much [rad] observed colours must fit one reading of the channels better than the other."""
SUGGESTED_COVER = 0.99
"""Share of kinematic points that the workspace box should hold."""
