"""Data sets in remote stores: the same values as on disk, and a message where a store fails."""

import dataclasses
import functools
import itertools
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import imageio.v3 as iio
import jax
import numpy as np
import pytest
import scenes
import stores

import hdvpd
from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.config import DataConfig
from hdvpd.data import arrays, remote
from hdvpd.data.inspect import inspect
from hdvpd.data.loader import Loader
from hdvpd.data.metadata import INDEX, read_json, write_index
from hdvpd.data.remote import RemotePath, locate
from hdvpd.data.setup import describe_setup
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex
from hdvpd.training import step as step_module


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory, synthetic_dataset: Path) -> Path:
    """A folder that holds the bucket `robots`, which holds the data set `my scene`."""
    root = tmp_path_factory.mktemp("buckets")
    shutil.copytree(synthetic_dataset, root / "robots/my scene")
    assert write_index(root / "robots/my scene") == 10
    return root


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon, and know nothing of this machine's own stores."""
    monkeypatch.setattr(remote, "RETRIES", stores.QUICK)
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture(params=["http", "s3", "gs"])
def address(
    request: pytest.FixtureRequest, buckets: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of the data set in each kind of store."""
    if request.param == "http":
        with stores.serving_files(buckets) as server:
            yield f"{server}/robots/my scene"
    elif request.param == "s3":
        with stores.serving_s3(buckets) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server)
            yield "s3://robots/my scene"
    else:
        with stores.serving_files(buckets, kind=stores.GoogleObjects) as server:
            monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", server)
            yield "gs://robots/my scene"


def batches(path: str | Path) -> list:
    dataset = Dataset(path)
    config = DataConfig(height=24, width=30, num_workers=2, prefetch=2)
    index = WindowIndex(dataset, "train", 4)
    with Loader(dataset, index, config, batch_size=3, seed=7) as loader:
        return list(itertools.islice(loader, 3))


def test_a_remote_data_set_reads_as_the_local_one(address, synthetic_dataset):
    ours, local = Dataset(address), Dataset(synthetic_dataset)
    assert ours.identity() == local.identity()
    assert ours.episodes == local.episodes
    assert describe_setup(ours) == describe_setup(local)
    ours.check_arrays()
    for name in arrays.names_of(local.info):
        np.testing.assert_array_equal(ours.read(3, name), local.read(3, name))
    assert not ours.has_array(3, "truth/no_such")
    jax.tree.map(np.testing.assert_array_equal, batches(address), batches(synthetic_dataset))


def test_inspect_writes_the_sheet_of_a_remote_data_set_here(
    buckets, synthetic_dataset, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with stores.serving_files(buckets) as server:
        assert main(["data", "inspect", f"{server}/robots/my scene"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert Dataset(synthetic_dataset).identity() in words
    assert "not looked up" in words
    expected = iio.imread(inspect(synthetic_dataset, tmp_path / "local"))
    np.testing.assert_array_equal(iio.imread(tmp_path / "contact_sheet.png"), expected)
    assert sorted(f.name for f in (buckets / "robots/my scene").iterdir()) == [
        "dataset.json", "episodes", "episodes.json", "robot.json"]  # fmt: skip


def test_a_remote_data_set_is_never_listed(buckets):
    asked: list[str] = []
    with stores.serving_files(buckets, asked) as server:
        batches(f"{server}/robots/my scene")
    assert asked
    assert not [path for path in asked if path.endswith(("/", "/episodes", "/000000"))]


def test_addresses_join_print_and_survive_path(buckets):
    place = locate("s3://robots/my scene/")
    assert str(place / "episodes" / "a") == "s3://robots/my scene/episodes/a"
    assert locate(Path("s3://robots/my scene")) == place
    assert isinstance(locate(Path("https://h/a")), RemotePath)
    assert locate("data/s3") == Path("data/s3")
    wrong_ones = (("https://h/a?token=1", "query"), ("s3://", "bucket"), ("http://", "server"))
    for wrong, part in wrong_ones:
        with pytest.raises(UserError, match=part):
            locate(wrong)


@pytest.mark.parametrize(
    "words",
    [
        ["data", "synthetic", "--out", "s3://robots/new"],
        ["data", "simulate", "--out", "gs://robots/new"],
        ["data", "check", "s3://robots/my scene"],
        ["data", "calibrate", "s3://robots/my scene"],
        ["data", "robot", "http://127.0.0.1/my scene"],
    ],
)
def test_what_would_write_to_a_remote_data_set_says_so(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words[-1].partition("//")[2] in line
    assert "never writes" in line
    assert not list(tmp_path.iterdir())


def refused() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/scene"


def test_a_server_that_is_not_there_is_one_message():
    with pytest.raises(UserError, match=r"dataset\.json cannot be read: .*onnect"):
        Dataset(refused())


def test_a_server_that_does_not_answer_is_given_up(monkeypatch):
    # In a process of its own: the first request of one decides the time limits of all.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "1")
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/scene"
        program = (
            "from hdvpd.data import remote, store; "
            f"remote.RETRIES = {stores.QUICK}; store.Dataset({address!r})"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
    assert "UserError" in done.stderr
    assert "too slow" in done.stderr


def test_what_is_not_there_is_named(buckets, monkeypatch):
    with stores.serving_files(buckets) as server, pytest.raises(UserError) as caught:
        Dataset(f"{server}/robots/nothing")
    assert f"no data set at {server}/robots/nothing" in str(caught.value)
    with stores.serving_s3(buckets) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server)
        with pytest.raises(UserError, match="no bucket 'elsewhere'"):
            Dataset("s3://elsewhere/my scene")
        with pytest.raises(UserError, match="bucket or the folder in it may be wrong"):
            Dataset("s3://robots/nothing")


def test_a_server_without_byte_ranges_is_named_as_such(buckets):
    handler = functools.partial(stores.Files, directory=str(buckets))
    with stores.serving(handler) as server:
        dataset = Dataset(f"{server}/robots/my scene")
        with pytest.raises(UserError, match="does not answer requests for a part of a file"):
            dataset.read(0, "cameras/cam0/rgb", 0, 1)


def test_a_store_that_refuses_is_named_with_what_gives_credentials(monkeypatch):
    with stores.serving(stores.Refusing) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server)
        with pytest.raises(UserError, match=r"refuses to be read.*AWS_ACCESS_KEY_ID"):
            Dataset("s3://robots/my scene")


def test_a_data_set_without_an_index_or_with_a_damaged_one_says_how_to_make_one(buckets, tmp_path):
    scene = Path(shutil.copytree(buckets / "robots/my scene", tmp_path / "scene"))
    with stores.serving_files(tmp_path) as server:
        for content in (None, "[]", '{"format": "hdvpd-episodes", "version": 2}', "{"):
            if content is None:
                (scene / INDEX).unlink()
            else:
                (scene / INDEX).write_text(content)
            with pytest.raises(UserError, match=INDEX) as caught:
                Dataset(f"{server}/scene")
            assert content == "{" or "hdvpd data index" in str(caught.value)
        assert len(Dataset(scene).episodes) == 10  # what lies here is listed, not looked up
        assert main(["data", "index", str(scene)]) == 0
        assert len(Dataset(f"{server}/scene").episodes) == 10


def test_an_array_that_was_not_uploaded_and_a_store_that_stops_are_told_apart(buckets, tmp_path):
    scene = Path(shutil.copytree(buckets / "robots/my scene", tmp_path / "scene"))
    shutil.rmtree(scene / "episodes/000002/cameras/cam1/rgb")
    with stores.serving_files(tmp_path) as server:
        dataset = Dataset(f"{server}/scene")
        with pytest.raises(UserError, match=r"cameras/cam1/rgb.*episode 2 cannot be opened"):
            dataset.read(2, "cameras/cam1/rgb")
        dataset.read(0, "cameras/cam0/rgb", 0, 1)
    with pytest.raises(UserError, match=r"cannot be read.*what is saved of a run is intact"):
        dataset.read(0, "cameras/cam0/rgb", 0, 1)
    with pytest.raises(UserError, match="what is saved of a run is intact"):
        dataset.read(1, "cameras/cam0/rgb")


def test_the_index_is_the_episodes_own_files(buckets):
    scene = buckets / "robots/my scene"
    listed = json.loads((scene / INDEX).read_text())["episodes"]
    assert list(listed) == [f"{number:06d}" for number in range(10)]
    for name, content in listed.items():
        assert content == read_json(scene / "episodes" / name / "episode.json")


def test_a_training_on_remote_and_local_data_is_that_on_local_data(
    buckets, synthetic_dataset, debug_config, tmp_path, monkeypatch
):
    monkeypatch.setattr(step_module, "Model", scenes.TinyModel)
    logs = []
    with stores.serving_files(buckets) as server:
        for place, workers in (
            (f"{server}/robots", "processes"),
            (str(buckets / "robots"), "threads"),
        ):
            data = dataclasses.replace(
                debug_config.data,
                path=(f"{place}/my scene", str(synthetic_dataset)),
                weights=(2.0, 1.0),
                workers=workers,
            )
            steps = dataclasses.replace(
                debug_config.train, num_steps=2, log_every=1, validate_every=0, warmup_steps=0
            )
            config = dataclasses.replace(debug_config, data=data, train=steps)
            hdvpd.train.main(config, run_dir=tmp_path / workers)
            logs.append((tmp_path / workers / "metrics.jsonl").read_text())
    assert logs[0] == logs[1]
    assert len(logs[0].splitlines()) == 3
