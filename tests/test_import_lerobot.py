"""LeRobot data sets of both versions and every coding of depth arrive as the truth."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import extras
import import_sources as sources
import lerobot_sources
import numpy as np
import pytest

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data import writer
from hdvpd.data.calibration import agreement
from hdvpd.data.corrections import CameraCorrection, Corrections
from hdvpd.data.importers import conversions, lerobot, lerobot_info, video
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.parquet import open_parquet
from hdvpd.data.importers.readings import choose
from hdvpd.data.store import Dataset

pa: Any = extras.needed("pyarrow")
pq: Any = extras.needed("pyarrow.parquet")
extras.needed("mujoco")

SCENES = [sources.make_scene(0), sources.make_scene(1, frames=5)]
for scene in SCENES:
    for view in scene.views.values():
        view.depth_m[:, 3:6, 20:24] = 0.0  # pixels without depth
LEFT = "observation.images.left_view"


def half_step(depth_m: np.ndarray, coding: str) -> np.ndarray:
    """Largest error of a depth coding [m]: half of the wider code step next to a depth."""
    if coding == "linear":
        return np.full_like(depth_m, (lerobot_sources.FAR - lerobot_sources.NEAR) / 4095 / 2)
    if coding == "log":
        ratio = (lerobot_sources.FAR + lerobot_sources.SHIFT) / (
            lerobot_sources.NEAR + lerobot_sources.SHIFT
        )
        return (depth_m + lerobot_sources.SHIFT) * np.expm1(np.log(ratio) / 4095) / 2
    return np.full_like(depth_m, {"ffv1": 5e-5, "uint16": 5e-4, "float32": 0.0}[coding])


@pytest.fixture(scope="module")
def urdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("robot") / "arm.urdf"
    file.write_text(sources.URDF)
    return file


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("coding", ["log", "linear", "ffv1", "uint16", "float32"])
def test_depth_colours_and_times_of_every_coding(tmp_path, urdf, version, coding):
    path, out = tmp_path / "source", tmp_path / "out"
    kind = (
        {"coding": "tiff", "tiff": np.dtype(coding)}
        if coding in ("uint16", "float32")
        else {"coding": coding}
    )
    lerobot_sources.write_lerobot(path, SCENES, version, **kind)
    unit = 1e-4 if coding == "ffv1" else None
    import_dataset("lerobot", path, out, robot=urdf, depth_unit_m=unit)
    dataset = Dataset(out)
    for number, scene in enumerate(SCENES):
        assert dataset.episode(number).length == scene.frames
        assert dataset.episode(number).task == "push the box"
        time_s = dataset.read(number, "time_s")
        np.testing.assert_array_equal(time_s, np.arange(scene.frames) / sources.RATE)
        for camera, truth in scene.views.items():
            rgb, depth = (dataset.read(number, f"cameras/{camera}/{k}") for k in ("rgb", "depth"))
            np.testing.assert_array_equal(rgb, truth.rgb)
            assert ((depth == 0) == (truth.depth_m == 0)).all()
            assert (truth.depth_m == 0).any()
            error = np.abs(depth - truth.depth_m)[truth.depth_m > 0]
            limit = half_step(truth.depth_m, coding)[truth.depth_m > 0]
            assert (error <= 1.01 * limit + 1e-6).all()
            if coding != "float32":  # and the limit is not loose
                assert (error / limit).max() > 0.9


def test_depth_by_code_inverts_the_definition():
    codes = np.arange(4096)
    depth = conversions.depth_of_codes(0.01, 10.0, 3.5, logarithmic=True)
    assert depth[0] == 0
    np.testing.assert_array_equal(lerobot_sources.encode_depth(depth.astype(float), "log"), codes)
    linear = conversions.depth_of_codes(0.2, 1.2, 0.0, logarithmic=False)
    np.testing.assert_allclose(linear[1:], 0.2 + codes[1:] / 4095, atol=1e-6)


def test_lossy_colours_are_what_pyav_decodes(tmp_path, urdf):
    path, out = tmp_path / "source", tmp_path / "out"
    lerobot_sources.write_lerobot(path, SCENES, lossless=False, channel_first=True)
    import_dataset("lerobot", path, out, robot=urdf)
    with av.open(str(path / "videos" / LEFT / "chunk-000" / "file-000.mp4")) as container:
        decoded = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
    dataset = Dataset(out)
    np.testing.assert_array_equal(dataset.read(0, "cameras/left_view/rgb"), decoded[:8])
    np.testing.assert_array_equal(dataset.read(1, "cameras/left_view/rgb"), decoded[8:])
    red = SCENES[1].views["left_view"].rgb[..., 0] > 200
    assert decoded[8:][red][:, 0].mean() > 150
    assert decoded[8:][red][:, 2].mean() < 100


# --- frames by time -----------------------------------------------------------------------------

FPS = 30


@pytest.fixture(scope="module", params=["libsvtav1", "libx264", "libx265", "libx265 -g 2", "ffv1"])
def numbered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video whose frame k is a grey of 4 k: LeRobot's codecs, and one whose index is lazy."""
    file = tmp_path_factory.mktemp("video") / ("v.mkv" if request.param == "ffv1" else "v.mp4")
    options = {
        "libx264": {"bf": "3", "g": "12", "crf": "1"},
        "libx265": {"x265-params": "bframes=3:keyint=12:crf=1:log-level=none:pools=none"},
        "libsvtav1": {"g": "2", "crf": "10", "preset": "12", "svtav1-params": "lp=1"},
        "libx265 -g 2": {
            "g": "2",
            "x265-params": "lossless=1:log-level=none:pools=none:frame-threads=1",
        },
        "ffv1": {},
    }[request.param]
    with av.open(str(file), "w") as container:
        stream = container.add_stream(request.param.split()[0], FPS, options)
        stream.height = stream.width = 32
        stream.pix_fmt = "yuv420p"
        for k in range(60):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 4 * k, np.uint8), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file


@pytest.mark.parametrize(
    "rows",
    [[0, 1, 2, 3], [0, 17, 34, 51], [59], [11, 12, 13, 23, 24, 25], [36, 37], list(range(60))],
)
def test_frames_are_found_by_time_wherever_decoding_can_begin(numbered, rows):
    with video.open_video(SourcePlace(numbered, "e")) as opened:
        times = np.array(rows) / FPS
        found = [p.rgb().mean() / 4 for p in opened.frames(rows, times, 1 / FPS)]
    np.testing.assert_allclose(found, rows, atol=0.49)


@pytest.mark.parametrize("rows", [[12, 48], [13, 49], [59]])
def test_few_frames_of_a_long_video_are_reached_by_key_frames(numbered, rows):
    if numbered.suffix == ".mkv":
        pytest.skip("Matroska's index is read when it is needed, not before")
    with video.open_video(SourcePlace(numbered, "e")) as opened:
        decoded = 0
        decode = opened._decode

        def counting() -> Any:
            nonlocal decoded
            for found in decode():
                decoded += 1
                yield found

        opened._decode = counting
        list(opened.frames(rows, np.array(rows) / FPS, 1 / FPS))
    assert decoded < 36  # of 49 or 60 from the beginning


def test_a_missing_frame_is_named(numbered):
    with (
        video.open_video(SourcePlace(numbered, "e")) as opened,
        pytest.raises(UserError, match=r"episode e, frame 7: the video has no frame at 2\.5000 s"),
    ):
        list(opened.frames([7], np.array([2.5]), 1 / FPS))
    with (
        video.open_video(SourcePlace(numbered, "e")) as opened,
        pytest.raises(UserError, match="frame 3: the video has no frame at"),
    ):
        list(opened.frames([3], np.array([3.5 / FPS]), 1 / FPS))


def test_a_frame_may_be_asked_for_twice(numbered):
    rows = [5, 5, 6, 6, 6, 30, 30, 59, 59]
    with video.open_video(SourcePlace(numbered, "e")) as opened:
        for _ in range(2):
            found = [p.rgb().mean() / 4 for p in opened.frames(rows, np.array(rows) / FPS, 1 / FPS)]
            np.testing.assert_allclose(found, rows, atol=0.49)


def test_pictures_that_are_late_by_a_step_are_those_of_the_next(tmp_path, urdf):
    path, out = tmp_path / "source", tmp_path / "out"
    lerobot_sources.write_lerobot(path, SCENES)
    file = path / "hdvpd_calibration.json"
    late = Corrections({"left_view": CameraCorrection(lag_s=1 / sources.RATE)})
    file.write_text(json.dumps(json.loads(file.read_text()) | {"corrections": late.as_plain()}))
    import_dataset("lerobot", path, out, robot=urdf)
    for number, scene in enumerate(SCENES):
        left, right = (Dataset(out).read(number, f"cameras/{n}/rgb") for n in scene.views)
        np.testing.assert_array_equal(left, scene.views["left_view"].rgb[1:])
        np.testing.assert_array_equal(right, scene.views["right_view"].rgb[:-1])


# --- what is taken for what ---------------------------------------------------------------------


def import_columns(
    path: Path, out: Path, urdf: Path, calibration: Any = None, **flags: Any
) -> None:
    file = path.parent / "joints.json"
    given = {"version": 1, "joints": sources.CALIBRATION_JOINTS, **(calibration or {})}
    file.write_text(json.dumps(given))
    import_dataset("lerobot", path, out, robot=urdf, calibration=file, **flags)


@pytest.mark.parametrize("axes", ["opencv", "opengl"])
@pytest.mark.parametrize("direction", ["camera-to-world", "world-to-camera"])
def test_what_extrinsics_mean_is_decided_by_the_pictures(tmp_path, urdf, capsys, direction, axes):
    path, out = tmp_path / "source", tmp_path / "out"
    lerobot_sources.write_lerobot(path, SCENES, columns=f"{direction} {axes}")
    import_columns(path, out, urdf, episodes="0")
    decision = f"  extrinsics: {direction} with {axes} axes, decided by episode_000000 ("
    assert decision in capsys.readouterr().out
    import_columns(path, out, urdf)  # continues with the recorded decision
    dataset = Dataset(out)
    for camera, truth in SCENES[1].views.items():
        for key, expected in (
            ("intrinsics", truth.intrinsics),
            ("camera_to_world", truth.poses[0]),
        ):
            found = dataset.read(1, f"cameras/{camera}/{key}")
            np.testing.assert_allclose(found, expected, atol=1e-6)
    source = dataset.info.raw["source"]
    assert source["options"]["extrinsics"] == f"{direction} with {axes} axes"
    assert source["fields"]["extrinsics"].count("mm apart (pass)") == 1
    assert f"left_view_camera_extrinsics, {direction} with" in source["fields"]["left_view"]


def test_extrinsics_that_the_pictures_leave_open_are_to_be_stated(tmp_path, urdf):
    path, out = tmp_path / "source", tmp_path / "out"
    lerobot_sources.write_lerobot(path, SCENES[:1], columns="world-to-camera")
    with pytest.raises(UserError) as caught:
        import_columns(path, out, urdf, cameras=["left_view"])  # and no robot in the picture
    for word in (
        "do not decide it (camera-to-world with opencv axes: left_view",
        '"extrinsics": {',
    ):
        assert word in str(caught.value)
    assert not out.exists()
    stated = {"extrinsics": {"direction": "world-to-camera"}}
    import_columns(path, out, urdf, stated, cameras=["left_view"])
    dataset = Dataset(out)
    pose = dataset.read(0, "cameras/left_view/camera_to_world")
    np.testing.assert_allclose(pose, SCENES[0].views["left_view"].poses[0], atol=1e-6)
    assert dataset.info.raw["source"]["options"]["extrinsics"] is None


def test_the_robot_decides_where_other_views_do_not():
    def evidence(views: float, detached: float, judged: int = 50) -> agreement.Evidence:
        pair = agreement.PairEvidence(("a", "b"), 500, 400, views, views, 0.0, 0.001, 0.001)
        robot = agreement.RobotEvidence("a", judged, judged, 0.03, 0.05, detached)
        return agreement.Evidence((pair,), {"a": robot})

    right, wrong, _ = readings = lerobot.READINGS[:3]
    good, bad = 0.001, 0.5
    for measured, expected in (
        ([(good, bad), (bad, good), (bad, bad)], right),  # cameras come first
        ([(good, good), (good, bad), (bad, good)], right),  # both agree in depth: the robot
        ([(bad, bad), (bad, good), (bad, bad)], wrong),
        ([(good, good), (good, good), (bad, bad)], None),
        ([(bad, bad), (bad, bad), (bad, bad)], None),
        ([(good, good, 0), (good, good, 0), (bad, bad)], None),  # the robot is not in the image
    ):
        found = [evidence(*numbers) for numbers in measured]
        assert choose(dict(zip(readings, found, strict=True))) is expected


def test_the_side_car_names_features_and_picks_joints(tmp_path):
    path, out = tmp_path / "source", tmp_path / "out"
    lerobot_sources.write_lerobot(path, SCENES)
    info_file, sidecar_file = path / "meta/info.json", path / "hdvpd_calibration.json"
    info, sidecar = json.loads(info_file.read_text()), json.loads(sidecar_file.read_text())
    names = {"motors": ["tool.x", "tool.y", "tool.z"]}
    info["features"]["observation.state"]["names"] = names
    info["features"]["action"]["names"] = ["tool.x", "tool.y", "gripper"]
    info_file.write_text(json.dumps(info))
    camera = sidecar["cameras"].pop("right_view")
    camera |= {
        "rgb": "observation.images.right_view",
        "depth": "observation.images.right_view_depth",
    }
    tools = [{"name": "tool"}]
    joints = [{"name": "tool.z", "unit": "m"}]
    sidecar_file.write_text(
        json.dumps({"version": 1, "cameras": {"mine": camera}, "end_effectors": tools,
                    "joints": joints})
    )  # fmt: skip
    import_dataset("lerobot", path, out)
    dataset = Dataset(out)
    assert dataset.cameras == ("mine",)
    np.testing.assert_array_equal(
        dataset.read(1, "cameras/mine/rgb"), SCENES[1].views["right_view"].rgb
    )
    state = np.column_stack([SCENES[0].joints, SCENES[0].opening])
    np.testing.assert_allclose(
        dataset.read(0, "robot/link_to_world")[:, 0, :3, 3], state, atol=1e-6
    )
    positions = dataset.read(0, "robot/joint_positions")
    np.testing.assert_allclose(positions, state[:, 2:], atol=1e-6)
    episode = dataset.episode(0)
    assert episode.joint_targets_source == "next_positions"  # action is named otherwise


@pytest.mark.parametrize(
    ("key", "camera"),
    [
        ("observation.images.cam_high", "cam_high"),
        ("observation.images.cam_high_depth", "cam_high"),
        ("observation.images.depth.left_wrist", "left_wrist"),
        ("observation.images.rgb.left_wrist", "left_wrist"),
        ("observation.image", "image"),
        ("observation.images.head_color", "head"),
    ],
)
def test_cameras_by_the_keys_of_their_features(key, camera):
    assert lerobot_info._stem(key) == camera


def test_degrees_are_noticed_and_splits_are_kept(tmp_path, urdf):
    path, out = tmp_path / "source", tmp_path / "out"
    degrees = sources.Scene(np.rad2deg(SCENES[0].joints) + 90, SCENES[0].opening, SCENES[0].views)
    lerobot_sources.write_lerobot(path, [degrees, SCENES[1]])
    change_info(lambda info: info.update(splits={"train": "0:1", "val": "1:2"}))(path)
    with pytest.raises(UserError, match="Degrees\\? Joints are radians"):  # which the limits tell
        import_dataset("lerobot", path, out, robot=urdf)
    unlimited = tmp_path / "unlimited.urdf"
    unlimited.write_text(urdf.read_text().replace('type="revolute"', 'type="continuous"'))
    import_dataset("lerobot", path, out, robot=unlimited)
    assert [e.split for e in Dataset(out).episodes] == ["train", "validation"]
    meta = json.loads((writer.episode_folder(out, 0) / "episode.json").read_text())
    assert "joints shoulder, elbow reach" in meta["warnings"][0]


# --- broken sources: one line, status 2, nothing left behind -------------------------------------


def change_info(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        file = path / "meta/info.json"
        info = json.loads(file.read_text())
        change(info)
        file.write_text(json.dumps(info))

    return apply


def change_feature(key: str, **changes: Any) -> Callable[[Path], None]:
    return change_info(lambda info: info["features"][key].update(changes))


def depth_info(**changes: Any) -> Callable[[Path], None]:
    def change(info: dict[str, Any]) -> None:
        for key, feature in info["features"].items():
            if key.endswith("_depth"):
                feature["info"] |= {f"video.{name}": value for name, value in changes.items()}

    return change_info(change)


def change_table(
    change: Callable[[Any], Any], name: str = "data/chunk-000/file-000.parquet"
) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        pq.write_table(change(pq.read_table(path / name)), path / name)

    return apply


def column(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
    def apply(table: Any) -> Any:
        values = change(table.column(name).to_pylist())
        return table.set_column(table.schema.get_field_index(name), name, pa.array(values))

    return apply


def cut(name: str, share: float) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        os.truncate(path / name, int(share * (path / name).stat().st_size))

    return apply


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def overwrite(name: str, content: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        (path / name).write_text(content)

    return apply


def short_video(path: Path) -> None:
    """A good file that ends in the middle of the second episode."""
    frames = np.concatenate([scene.views["left_view"].rgb for scene in SCENES])[:10]
    options = lerobot_sources._rgb_options(lossless=True)
    lerobot_sources.write_video(path / VIDEO, frames, *options)


def other_size(path: Path) -> None:
    frames = np.zeros((13, 48, 64), np.uint16)
    lerobot_sources.write_video(path / DEPTH, frames, *lerobot_sources._depth_options("log"))


def eight_bit(path: Path) -> None:
    frames = np.zeros((13, *sources.SIZE, 3), np.uint8)
    lerobot_sources.write_video(path / DEPTH, frames, *lerobot_sources._rgb_options(lossless=False))


def rename_features(path: Path) -> None:
    def rename(name: str) -> str:
        return name.replace("images.left_view", "images/../../../x")

    change_info(
        lambda info: info.update(features={rename(k): v for k, v in info["features"].items()})
    )(path)
    change_table(lambda t: t.rename_columns([rename(n) for n in t.column_names]), EPISODES)(path)


def no_depth(info: dict[str, Any]) -> None:
    for key in [key for key in info["features"] if key.endswith("_depth")]:
        del info["features"][key]


VIDEO = f"videos/{LEFT}/chunk-000/file-000.mp4"
DEPTH = f"videos/{LEFT}_depth/chunk-000/file-000.mp4"
TABLE = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


def nan_at(row: int) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [[float("nan")] * 3 if k == row else v for k, v in enumerate(values)]


CASES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no info": (remove("meta/info.json"), ("is no LeRobot data set", "meta/info.json")),
    "info no JSON": (overwrite("meta/info.json", "{"), ("info.json: it cannot be read as JSON",)),
    "unknown version": (
        change_info(lambda info: info.update(codebase_version="v4.0")),
        ("codebase_version 'v4.0'", "v3.0 and v2.1", "Convert"),
    ),
    "version before the episodes' table": (
        change_info(lambda info: info.update(codebase_version="v2.0")),
        ("codebase_version 'v2.0'", "Convert"),
    ),
    "version that is no text": (
        change_info(lambda info: info.update(codebase_version=["v3.0"])), ("version ['v3.0']",),
    ),
    "no version": (change_info(lambda info: info.pop("codebase_version")), ("version None",)),
    "lance": (
        change_info(lambda info: info.update(storage_format="lance")),
        ("storage_format 'lance'", "Convert"),
    ),
    "no fps": (change_info(lambda info: info.update(fps=0)), ("fps 0",)),
    "no features": (change_info(lambda info: info.pop("features")), ("no usable `features`",)),
    "path out of the data set": (
        change_info(lambda info: info.update(data_path="../../{chunk_index}.parquet")),
        ("data_path = '../../", "leads to no file"),
    ),
    "videos out of the data set": (
        change_info(lambda info: info.update(video_path="../../{video_key}.mp4")),
        ("video_path = '../../", "leads to no file"),
    ),
    "camera named out of the data set": (
        rename_features, ("video_path", "leads to no file"),
    ),
    "path with an attribute": (
        change_info(lambda info: info.update(video_path="{video_key.__class__}")),
        ("video_path", "leads to no file"),
    ),
    "no table of episodes": (remove(EPISODES), ("holds no Parquet files",)),
    "truncated table of episodes": (cut(EPISODES, 0.5), ("file-000.parquet: it is damaged",)),
    "table of episodes without a column": (
        change_table(lambda t: t.drop_columns([f"videos/{LEFT}/from_timestamp"]), EPISODES),
        (f"no column 'videos/{LEFT}/from_timestamp'",),
    ),
    "episode listed twice": (
        change_table(column("episode_index", lambda _: [0, 0]), EPISODES),
        ("lists episode 0 twice",),
    ),
    "no table": (remove(TABLE), ("episode episode_000000: the file is missing",)),
    "truncated table": (cut(TABLE, 0.7), (TABLE, "episode episode_000000", "no Parquet file")),
    "empty table": (cut(TABLE, 0.0), ("no Parquet file",)),
    "no state": (
        change_table(lambda t: t.drop_columns(["observation.state"])),
        ("no column 'observation.state'", "timestamp"),
    ),
    "no timestamp": (
        change_table(lambda t: t.drop_columns(["timestamp"])), ("no column 'timestamp'",)
    ),
    "no action": (
        change_table(lambda t: t.drop_columns(["action"])), ("no column 'action'",)
    ),
    "text for state": (
        change_table(column("observation.state", lambda v: ["x"] * len(v))),
        ("'observation.state' holds string, expected equal rows of numbers",),
    ),
    "state of unequal length": (
        change_table(column("observation.state", lambda v: [[0.0], *v[1:]])),
        ("expected equal rows of numbers",),
    ),
    "state of unequal length, whose sum is as of equal ones": (
        change_table(column("observation.state", lambda v: [v[0][:2], [*v[1], 0.0], *v[2:]])),
        ("'observation.state' holds lists of 2 and 4 values, expected equal rows of numbers",),
    ),
    "NaN state": (
        change_table(column("observation.state", nan_at(10))),
        ("episode episode_000001, frame 2", "joint_positions: a value is NaN"),
    ),
    "names of another length": (
        change_feature("observation.state", names=["a", "b"]),
        ("has 3 values, info.json names 2",),
    ),
    "backwards time": (
        change_table(column("timestamp", lambda v: [*v[:2], 0.1, *v[3:]])),
        ("frame 2: time_s: the time stamp is not later",),
    ),
    "repeated time": (
        change_table(column("timestamp", lambda v: [*v[:3], v[2], *v[4:]])),
        ("episode episode_000000, frame 3: time_s: the time stamp is not later",),
    ),
    "rows of another episode": (
        change_table(lambda t: t.slice(0, 6)), ("the table has 6 rows, meta/episodes says 8",)
    ),
    "rows out of order": (
        change_table(column("frame_index", lambda v: [1, 0, *v[2:]])),
        ("frame 0: frame_index: the rows do not count up",),
    ),
    "no video": (remove(VIDEO), (VIDEO, "episode episode_000000: the video is missing")),
    "truncated video": (cut(VIDEO, 0.5), (VIDEO, "the video is damaged")),
    "empty video": (cut(DEPTH, 0.0), (DEPTH, "the video is damaged")),
    "a playlist for a video": (
        overwrite(VIDEO, "#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"), ("the video is damaged",)
    ),
    "video ends early": (
        short_video, (VIDEO, "episode episode_000001, frame 2: the video has no frame at 5.0000 s")
    ),
    "depth of another size": (other_size, ("depth is 48x64, its colours 24x32",)),
    "depth of 8 bits": (eight_bit, ("frame 0: depth has 8 bits per pixel, expected 12-bit codes",)),
    "no depth": (change_info(no_depth), ("no camera can be imported", "it has no depth")),
    "no range of codes": (
        depth_info(depth_max=None), ("depth_min, depth_max, shift, use_log = [0.01, None, 3.5",)
    ),
    "range upside down": (depth_info(depth_max=0.001), ("which is no range in metres",)),
    "no calibration": (
        remove("hdvpd_calibration.json"), ("it has no calibration", "hdvpd_calibration.json")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "source"
    lerobot_sources.write_lerobot(path, SCENES)
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_broken_source_is_one_line_and_leaves_nothing(name, good, urdf, tmp_path, capsys):
    damage, words = CASES[name]
    path, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(good, path)
    damage(path)
    flags = ["--out", str(out), "--robot", str(urdf), "--workers", "1"]
    assert main(["data", "import", "lerobot", str(path), *flags]) == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message
    for word in words:
        assert word in message
    if out.exists():  # the fault came after good episodes: they are kept, but not taken for all
        with pytest.raises(UserError, match="is incomplete"):
            Dataset(out)


@pytest.mark.parametrize(
    ("depth", "words"),
    [
        (np.full(sources.SIZE, np.nan), "no valid depth"),
        (np.ones((12, 16)), "is 12x16, the others of this camera are 24x32"),
        (None, "holds no picture"),
    ],
)
def test_a_depth_image_of_the_table_that_is_none_is_named(tmp_path, urdf, depth, words):
    path, key = tmp_path / "source", f"{LEFT}_depth"
    lerobot_sources.write_lerobot(path, SCENES, coding="tiff", tiff=np.float32)
    bad = {"bytes": None, "path": None}
    if depth is not None:
        bad = lerobot_sources._tiff(depth, np.float32)
    change_table(column(key, lambda v: [*v[:10], bad, *v[11:]]))(path)
    with pytest.raises(UserError) as caught:
        import_dataset("lerobot", path, tmp_path / "out", robot=urdf)
    assert "episode episode_000001, frame 2: " in str(caught.value)
    assert words in str(caught.value)


def test_depth_without_a_unit_is_refused(tmp_path, urdf):
    path = tmp_path / "source"
    lerobot_sources.write_lerobot(path, SCENES[:1], coding="ffv1")
    with pytest.raises(UserError, match="does not say what its depth means; give --depth-unit-m"):
        import_dataset("lerobot", path, tmp_path / "out", robot=urdf)


def test_truncated_video_and_table_of_version_2(tmp_path, urdf):
    path, out = tmp_path / "source", tmp_path / "out"
    lerobot_sources.write_lerobot(path, [*SCENES, SCENES[1]], "v2.1")
    cut(f"videos/chunk-000/{LEFT}/episode_000000.mp4", 0.5)(path)
    cut("data/chunk-000/episode_000001.parquet", 0.5)(path)
    import_dataset("lerobot", path, out, robot=urdf, skip_bad=True)
    assert [e.number for e in Dataset(out).episodes] == [2]
    listed = json.loads((out / "quarantine.json").read_text())["episodes"]
    assert [(e["number"], "damaged" in e["reason"]) for e in listed] == [(0, True), (1, True)]
    (path / "meta" / "episodes.jsonl").write_text('{"episode_index": 0}\n')
    with pytest.raises(UserError, match=r"episodes\.jsonl: line 1 is no JSON object with"):
        import_dataset("lerobot", path, tmp_path / "other", robot=urdf)


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ([[1, 2], [3, 4, 5, 6]], pa.list_(pa.int64()), "lists of 2 and 4 values"),
        ([[[1], [2, 3]], [[4, 5], [6]]], pa.list_(pa.list_(pa.int64())), "lists of 1 and 2 values"),
        ([[1, 2], None], pa.list_(pa.int64()), "nulls"),
        ([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2), "nulls"),
        ([[1, None], [2, 3]], pa.large_list(pa.int64()), "nulls"),
        ([[], []], pa.list_(pa.int64()), "empty lists"),
        ([{"a": 1}, {"a": 2}], pa.struct([("a", pa.int64())]), "struct<a: int64>"),
        ([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64()), "map<string, int64"),
    ],
)
def test_rows_that_are_not_equal_numbers_are_refused(tmp_path, values, kind, words):
    file = tmp_path / "table.parquet"
    pq.write_table(pa.table({"x": pa.array(values, kind)}), file)
    with (
        open_parquet(file) as table,
        pytest.raises(UserError, match=r"table\.parquet: column 'x' holds .*equal rows") as caught,
    ):
        table.numbers("x")
    assert words in str(caught.value)


def test_equal_rows_of_any_depth_are_read_row_by_row(tmp_path):
    file = tmp_path / "table.parquet"
    columns = {
        "one": pa.array([1, 2, 3]),
        "lists": pa.array([[1, 2], [3, 4], [5, 6]], pa.large_list(pa.float32())),
        "fixed": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
        "nested": pa.array([[[1], [2]], [[3], [4]], [[5], [6]]]),
    }
    pq.write_table(pa.table(columns), file)
    with open_parquet(file) as table:
        np.testing.assert_array_equal(table.numbers("one", 1), [[2], [3]])
        for name in ("lists", "fixed", "nested"):
            np.testing.assert_array_equal(table.numbers(name, 1), [[3, 4], [5, 6]])
        assert table.numbers("lists", 1, 1).shape == (0, 1)


def test_workers_and_interruptions_do_not_change_the_bytes(good, urdf, tmp_path):
    import_dataset("lerobot", good, tmp_path / "one", robot=urdf, episodes="0")
    import_dataset("lerobot", good, tmp_path / "one", robot=urdf)
    import_dataset("lerobot", good, tmp_path / "two", robot=urdf, workers=2)
    files = [f.relative_to(tmp_path / "one") for f in (tmp_path / "one").rglob("*") if f.is_file()]
    assert files
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
