"""What XLA makes of every entry point for an H100, on a machine that has none.

Of the training step, validation, encoding, rollout and rendering of an experiment, with one window
of the analytic scene: seconds to compile, kernels, and the buffers that the program holds beside
its arguments. XLA chooses forms of products and convolutions by trying them, for which it needs the
GPU; here it takes what its libraries propose. So the GPU compiles longer, and what it compiles runs
faster.

With --save the programs are written with their arguments, and with --run they are loaded on a
machine with such a GPU and the same version of jax and timed there, best of up to 20 calls, without
compiling anything.

Needs jax 0.11 and the packages that `pip install 'jax[cuda13]'` brings, no driver.

Run: python benchmarks/gpu_programs.py [paper] [--only rollout render] [--save DIR] [flags ...]
     python benchmarks/gpu_programs.py --run DIR
"""

import argparse
import functools
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any, cast
from unittest import mock

NO_DRIVER = {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
"""What makes jax register CUDA's compiler without a GPU; to be set before jax is imported."""

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84978434048 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 12 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""What XLA asks the driver of such a GPU."""

KIND = "NVIDIA H100 80GB HBM3"
UNTUNED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
DEFAULTS = ["--model.kernels", "pallas", "--model.knn", "xla", "--train.batch-size", "1"]
Entry = tuple[Any, tuple[Any, ...]]
"""A function compiled by jax, and its arguments."""


def entry_points(experiment: str, flags: list[str]) -> dict[str, Entry]:
    """Return the functions that hdvpd compiles, by name, and arguments."""
    import jax
    from timing import analytic_batch

    from hdvpd.commands.flags import read_flags
    from hdvpd.config.experiments import load_config
    from hdvpd.model import abstract_model
    from hdvpd.model.compiled import make_compiler
    from hdvpd.training.step import create_train_state, make_train_step, make_validate

    config = load_config(experiment, read_flags([*DEFAULTS, *flags]))
    dataset, batch = analytic_batch(config)
    scene, key = dataset.scene_spec(config.data), jax.random.key(0)
    graphdef, state = create_train_state(config, scene)
    model = abstract_model(config, scene)
    parts = make_compiler(model)(model)
    bound = cast(list[functools.partial[Any]], [parts.encode, parts.rollout, parts.render])
    encode, rollout, render = (part.func for part in bound)
    window = jax.tree.map(lambda x: x[0], batch)
    observed = jax.tree.map(lambda x: x[:2], (window.frames, window.robot))
    clouds = encode(state.params, *observed, key)
    camera, first = jax.tree.map(lambda x: x[:1], (window.frames.camera, clouds))
    return {
        "training step": (make_train_step(config, graphdef), (state, batch, key)),
        "validation": (make_validate(graphdef), (state.params, batch, key)),
        "encode": (encode, (state.params, *observed, key)),
        "rollout": (rollout, (state.params, clouds, window.robot, key)),
        "render": (render, (state.params, first, camera)),
    }


def compile_all(entries: dict[str, Entry], save: Path | None) -> None:
    """Compile for an H100 and print a row each."""
    import jax
    from jax.experimental import serialize_executable, topologies
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    try:
        topology = topologies.get_topology_desc(
            topology_name="", platform="cuda", topology="1x1x1", target_config=H100
        )
    except NotImplementedError:
        raise SystemExit("CUDA's compiler is not installed: pip install 'jax[cuda13]'.") from None
    there = jax.sharding.SingleDeviceSharding(topology.devices[0])
    device = AbstractDevice(device_kind=KIND, num_cores=132, platform="cuda")
    mesh = AbstractMesh((1,), ("x",), abstract_device=device)
    print(f"{'program':14s} {'seconds':>8s} {'kernels':>8s} {'GiB':>7s}")
    for name, (function, arguments) in entries.items():
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), arguments
        )
        # The package asks jax where it runs.
        on_gpu = mock.patch.object(jax, "default_backend", return_value="gpu")
        with on_gpu, use_abstract_mesh(mesh):
            lowered = function.trace(*shapes).lower()
        start = time.perf_counter()
        program = lowered.compile(compiler_options=UNTUNED)
        seconds = time.perf_counter() - start
        kernels = len(re.findall(r"= .* (?:fusion|sort|custom-call|copy)\(", program.as_text()))
        gib = program.memory_analysis().temp_size_in_bytes / 2**30
        print(f"{name:14s} {seconds:8.1f} {kernels:8d} {gib:7.2f}", flush=True)
        if save:
            save.mkdir(parents=True, exist_ok=True)
            leaves = jax.tree.leaves(arguments)
            # Random keys are read and written as their data.
            are_keys = [jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
            data = [
                jax.device_get(jax.random.key_data(x) if is_key else x)
                for x, is_key in zip(leaves, are_keys, strict=True)
            ]
            written = *serialize_executable.serialize(program), are_keys, data
            (save / f"{name}.pkl").write_bytes(pickle.dumps(written))


def run_all(folder: Path) -> None:
    """Load what `compile_all` has written, and time it on this machine's GPU."""
    import jax
    from jax.experimental import serialize_executable

    device = jax.devices()[0]
    print(f"{device.device_kind}, jax {jax.__version__}, milliseconds")
    for file in sorted(folder.glob("*.pkl")):
        *program, are_keys, data = pickle.loads(file.read_bytes())
        call = serialize_executable.deserialize_and_load(*program, execution_devices=[device])
        leaves = [
            jax.random.wrap_key_data(x) if is_key else x
            for x, is_key in zip(data, are_keys, strict=True)
        ]
        arguments, _ = jax.tree.unflatten(program[1], jax.device_put(leaves, device))
        times, begun = [], time.perf_counter()
        while len(times) < 4 or (len(times) < 20 and time.perf_counter() - begun < 2):
            start = time.perf_counter()
            result = jax.block_until_ready(call(*arguments))
            times.append(time.perf_counter() - start)
            if file.stem == "training step":  # which uses up its state
                arguments = (result[0], *arguments[1:])
        print(f"{file.stem:14s} {1e3 * min(times[1:]):10.2f}", flush=True)


def main() -> None:
    """Compile, or run what has been compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    parser.add_argument("--only", nargs="+", help="of the programs")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--run", type=Path)
    arguments, flags = parser.parse_known_args()
    if arguments.run:
        run_all(arguments.run)
        return
    os.environ.update(NO_DRIVER)
    entries = entry_points(arguments.experiment, flags)
    wanted = arguments.only or list(entries)
    compile_all({name: entries[name] for name in wanted}, arguments.save)


if __name__ == "__main__":
    main()
