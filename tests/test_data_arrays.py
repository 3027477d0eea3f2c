"""What is declared of arrays agrees with what is written, and writer and store ask it."""

import json
from pathlib import Path

import numpy as np
import pytest
from data_tools import edit_json

from hdvpd.data import arrays, schema, writer
from hdvpd.data.simulation import synthetic
from hdvpd.data.store import Dataset

FILE = Path("data/toy/dataset.json")


@pytest.fixture
def info() -> schema.DatasetInfo:
    return schema.parse_dataset(json.loads(json.dumps(synthetic.describe(12, 16))), FILE)


def test_every_array_of_an_episode_is_declared_with_its_shape_and_type(info):
    written = synthetic.synthetic_episode(np.random.default_rng(0), 4, 12, 16)
    assert set(written) == {*arrays.names_of(info), arrays.OBJECTS}
    for name, values in written.items():
        if name != arrays.OBJECTS:
            assert values.shape in arrays.shapes_of(name, info, 5)
            assert values.dtype in arrays.spec_of(name).dtypes


def test_a_matrix_of_a_camera_may_be_one_or_one_per_frame(info):
    for key, size in (("intrinsics", 3), ("camera_to_world", 4)):
        name = arrays.camera_array("cam0", key)
        assert arrays.shapes_of(name, info, 5) == ((size, size), (5, size, size))


def test_the_pose_of_a_camera_on_a_link_has_a_row_per_frame():
    raw = json.loads(json.dumps(synthetic.describe(12, 16)))
    raw["cameras"]["cam1"]["mount"] = "tcp"
    mounted = schema.parse_dataset(raw, FILE)
    assert arrays.shapes_of("cameras/cam1/camera_to_world", mounted, 5) == ((5, 4, 4),)
    assert arrays.shapes_of("cameras/cam1/intrinsics", mounted, 5) == ((3, 3), (5, 3, 3))
    assert arrays.shapes_of("cameras/cam0/camera_to_world", mounted, 5) == ((4, 4), (5, 4, 4))


def test_nothing_is_known_of_other_arrays(info):
    for name in ("truth/object_to_world", "robot/torque", "cameras/cam0/mask", "mask"):
        assert arrays.spec_of(name) == arrays.ArraySpec()
        assert arrays.shapes_of(name, info, 5) == ()


def test_stored_chunks_axes_and_codecs_are_those_declared(tmp_path):
    synthetic.write_synthetic_dataset(tmp_path, episodes=1, steps=2, height=12, width=16, seed=0)
    dataset = Dataset(tmp_path)
    for name in arrays.names_of(dataset.info):
        spec = arrays.spec_of(name)
        file = writer.episode_folder(tmp_path, 0) / name / "zarr.json"
        stored = json.loads(file.read_text())
        codecs = stored["codecs"]
        if spec.chunk_frames:
            assert stored["dimension_names"] == list(spec.dimensions)
            (sharded,) = codecs
            assert sharded["configuration"]["chunk_shape"] == [1, *stored["shape"][1:]]
            codecs = sharded["configuration"]["codecs"]
        compressed = {"zstd": "zstd", "lz4": "blosc"}[spec.codec]
        assert [codec["name"] for codec in codecs] == ["bytes", compressed, "crc32c"]


def test_an_array_that_is_not_declared_is_stored_and_read_as_it_is(tmp_path):
    synthetic.write_synthetic_dataset(tmp_path, episodes=1, steps=2, height=12, width=16, seed=0)
    truth = synthetic.synthetic_episode(np.random.default_rng([0, 0]), 2, 12, 16)
    edit_json(tmp_path / "dataset.json", objects=[])
    read = Dataset(tmp_path).read(0, arrays.OBJECTS, 1, 2)
    np.testing.assert_array_equal(read, truth[arrays.OBJECTS][1:])
