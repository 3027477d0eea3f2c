"""The small vision transformers of the studies: masks wired right, frozen walks, training."""

import dataclasses

import extras
import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from flax import nnx

from hdvpd.attention.masked import masked_linear_attention
from hdvpd.basics.errors import UserError
from studies import classification, video, vision
from studies.classification import Examples
from studies.head_masks import Frozen, grid_graph
from studies.settings import VideoSettings, VisionSettings, parse_variant
from studies.vision_transformer import Attention, Encoder, ImageTransformer, patches

CELLS = (3, 4)
WIDTH, HEADS = 8, 2
MASKED = ("linear+toeplitz", "linear+exact", "linear+grf-3", "linear+ad-hoc-3", "linear+free",
          "softmax+grf-3")  # fmt: skip
SETTINGS = VisionSettings(width=WIDTH, heads=HEADS, depth=1, hops=3, seeds=2, steps=5, batch_size=4)


def streams(seed=0):
    weights, masks = jax.random.split(jax.random.key(seed))
    return nnx.Rngs(params=weights, masks=masks)


def family(variant):
    make = classification.family_of(parse_variant(variant), SETTINGS)
    return None if make is None else make(CELLS)


def make_attention(variant):
    kind = parse_variant(variant).attention
    return Attention(WIDTH, HEADS, kind, family(variant), rngs=streams())


def make_model(variant, positions=False, rngs=None):
    encoder = Encoder(1, CELLS, width=WIDTH, num_heads=HEADS, depth=2, kind=variant.attention,
                      family=classification.family_of(variant, SETTINGS), positions=positions,
                      rngs=rngs or streams())  # fmt: skip
    return ImageTransformer(encoder, WIDTH, 2, rngs=rngs or streams())


def logits(model, inputs):
    return np.asarray(jax.jit(jax.vmap(lambda x: model(x)))(inputs))


def bright_and_dark(number=24):
    """Images of one of two brightnesses with noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(number, dtype=np.int32) % 2
    inputs = rng.normal(size=(number, 12, 1)) + 2.0 * labels[:, None, None] - 1
    return Examples(np.float32(inputs), labels)


def perturbed(masks):
    """Move the parameters off their symmetric start."""
    noise = jax.random.normal(jax.random.key(7), masks.parameters.shape)
    masks.parameters.set_value(masks.parameters.get_value() + 0.3 * noise)


def grid_weights(cells=CELLS):
    graph = nx.grid_2d_graph(*cells)
    adjacency = nx.to_numpy_array(graph, nodelist=sorted(graph))
    degrees = adjacency.sum(1)
    return adjacency / np.sqrt(degrees[:, None] * degrees[None])


def oracle_mask(variant, masks, head):
    """Return a head's mask with its class token, in float64 and from the definition."""
    parameters = np.float64(masks.parameters.get_value()[head])
    positive = np.log1p(np.exp(parameters))
    places = [(row, column) for row in range(CELLS[0]) for column in range(CELLS[1])]
    name = parse_variant(variant).mask
    if name == "toeplitz":
        inner = np.array(
            [[positive[i[0] - j[0] + 2, i[1] - j[1] + 3] for j in places] for i in places]
        )
    elif name == "free":
        inner = positive @ positive.T
    elif name == "exact":
        powers = [np.linalg.matrix_power(grid_weights(), hop) for hop in range(4)]
        features = sum(f * power for f, power in zip(positive, powers, strict=True))
        inner = features @ features.T
    else:
        features = np.zeros((12, 12))
        walks = masks.frozen.get_value()
        for token in range(12):
            for entry in range(int(walks.num_entries[head, token])):
                load = np.float64(walks.loads[head, token, entry])
                features[token, int(walks.nodes[head, token, entry])] += load @ positive
        inner = features @ features.T
    return np.pad(inner, ((1, 0), (1, 0)), constant_values=1.0)


@pytest.mark.parametrize("variant", MASKED)
def test_attention_is_the_dense_oracle_and_the_fast_product_the_same(variant):
    attention = make_attention(variant)
    perturbed(attention.masks)
    x = jax.random.normal(jax.random.key(1), (13, WIDTH))
    query, key, value = attention.heads(x)
    linear = attention.kind == "linear"
    read = []
    for head in range(HEADS):
        q, k, v = (np.float64(part[head]) for part in (query, key, value))
        scores = q @ k.T if linear else np.exp(q @ k.T / np.sqrt(q.shape[1]))
        weights = oracle_mask(variant, attention.masks, head) * scores
        assert (weights >= 0).all()
        read.append(weights @ v / weights.sum(1, keepdims=True))
    expected = attention.merge(jnp.concatenate([jnp.float32(part) for part in read], axis=1))
    np.testing.assert_allclose(attention(x), expected, atol=2e-5)
    if linear:
        fast = attention.masks.map(
            lambda mask, q, k, v: masked_linear_attention(q, k, v, mask), query, key, value
        )
        np.testing.assert_allclose(fast, np.array(read), atol=5e-5)


def test_unmasked_attention_is_that_of_a_mask_of_ones():
    x = jax.random.normal(jax.random.key(1), (13, WIDTH))
    for kind in ("softmax", "linear"):
        attention = make_attention(kind)
        query, key, value = attention.heads(x)
        scores = jnp.einsum("atm,asm->ats", query, key)
        weights = scores if kind == "linear" else jnp.exp(scores / np.sqrt(WIDTH // HEADS))
        read = weights @ value / weights.sum(2, keepdims=True)
        expected = attention.merge(jnp.swapaxes(read, 0, 1).reshape(13, WIDTH))
        np.testing.assert_allclose(attention(x), expected, atol=1e-5)


def test_grid_graph_is_that_of_networkx_also_for_a_path():
    from studies.attention.graphs import graph_matrix

    for cells in (CELLS, (1, 5), (1, 1)):
        expected = grid_weights(cells) if np.prod(cells) > 1 else np.zeros((1, 1))
        np.testing.assert_allclose(graph_matrix(grid_graph(cells)), expected, atol=1e-6)


def test_loads_carry_importance_weights_or_only_count_visits():
    counts = make_attention("linear+ad-hoc-3").masks.frozen.get_value().loads * 3
    np.testing.assert_allclose(counts[..., 1:], np.round(counts[..., 1:]), atol=1e-5)
    loads = np.asarray(make_attention("linear+grf-3").masks.frozen.get_value().loads * 3)
    # From the corner (degree 2) one hop to an edge (degree 3): sqrt(2 / 3) / 0.9 per walker.
    hops = loads[:, 0, :, 1] / (np.sqrt(2 / 3) / 0.9)
    np.testing.assert_allclose(hops, np.round(hops), atol=1e-5)
    assert hops.sum() > 0


def test_heads_and_layers_draw_their_own_walks_and_a_seed_always_the_same():
    one, again = (make_attention("linear+grf-3").masks.frozen.get_value() for _ in range(2))
    assert (one.loads == again.loads).all()
    assert (one.nodes[0] != one.nodes[1]).any()


def test_a_seed_gives_every_variant_the_same_weights():
    plain, masked = (
        make_model(parse_variant(word), rngs=streams(3)) for word in ("linear", "linear+grf-3")
    )
    shared = dict(nnx.to_flat_state(nnx.state(plain, nnx.Param)))
    others = dict(nnx.to_flat_state(nnx.state(masked, nnx.Param)))
    assert set(shared) < set(others)
    for path, value in shared.items():
        np.testing.assert_array_equal(value.get_value(), others[path].get_value())


def test_training_lowers_the_loss_moves_the_masks_and_keeps_the_walks():
    model = make_model(parse_variant("linear+grf-3"), positions=True)
    masks = model.encoder.blocks[0].attention.masks
    before = masks.parameters.get_value()
    examples = bright_and_dark()
    batches = np.tile(np.arange(24), (6, 1))
    trained = classification.train(model, examples, batches, 1e-2)
    assert trained.losses[-1] < trained.losses[1] < trained.losses[0] + 1e-6
    after = trained.model.encoder.blocks[0].attention.masks
    assert (after.parameters.get_value() != before).all()
    for old, new in zip(
        jax.tree.leaves(nnx.state(model, Frozen)),
        jax.tree.leaves(nnx.state(trained.model, Frozen)),
        strict=True,
    ):
        np.testing.assert_array_equal(old, new)


def test_without_positions_only_masks_see_where_pixels_are():
    images = np.float32(np.random.default_rng(1).normal(size=(12, 1)))
    shuffled = np.random.default_rng(2).permutation(12)
    turned = np.arange(12)[::-1]  # half a turn maps the grid onto itself
    for word, sees in (("softmax", False), ("linear", False), ("linear+exact", True)):
        model = make_model(parse_variant(word))
        inputs = np.stack([images, images[shuffled], images[turned]])
        out, of_shuffled, of_turned = logits(model, inputs)
        assert (np.abs(of_shuffled - out).max() > 1e-4) == sees
        np.testing.assert_allclose(of_turned, out, atol=1e-5)


def test_splits_do_not_overlap_and_batches_stay_within_them():
    for seed in range(3):
        to_train, to_test = classification.split(50, 30, seed)
        assert sorted([*to_train, *to_test]) == list(range(50))
        batches = classification.draw_batches(to_train, 7, 9, seed)
        assert batches.shape == (9, 7)
        assert set(batches.ravel()) <= set(to_train)
        for epoch in (batches[:4], batches[4:8]):
            assert len(set(epoch.ravel())) == 28
    assert (classification.split(50, 30, 0)[0] != classification.split(50, 30, 1)[0]).any()


def test_study_writes_runs_and_a_summary_that_does_not_depend_on_their_order(tmp_path):
    settings = dataclasses.replace(SETTINGS, variants="linear+exact", positions="none",
                                   train_images=16)  # fmt: skip
    classification.run_study(
        tmp_path, bright_and_dark(), 16, make_model, settings, reference="linear", title="tried"
    )
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"settings.toml", "runs.csv", "summary.csv", "accuracy.png"}
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    assert len(lines) == 1 + 2


def test_summary_pairs_the_runs_of_a_seed():
    rows = [
        {"positions": "none", "variant": variant, "seed": seed, "accuracy": 0.5 + gain + seed / 10,
         "train accuracy": 1.0, "parameters": 1, "seconds": 1.0}
        for variant, gain in (("linear", 0.0), ("linear+exact", 0.25))
        for seed in range(3)
    ]  # fmt: skip
    summary, shuffled = (
        classification.summarize(some, "linear") for some in (rows, rows[:3] + rows[:2:-1])
    )
    exact = summary[1]
    assert exact["accuracy"] == pytest.approx(0.85)
    # t(2, 0.975) 0.1 / sqrt(3)
    assert exact["+-"] == pytest.approx(4.30265 * 0.1 / np.sqrt(3), rel=1e-4)
    assert exact["minus linear"] == pytest.approx(0.25)
    assert exact["+- of that"] == pytest.approx(0.0, abs=1e-9)
    for column in ("accuracy", "+-", "minus linear"):
        assert shuffled[1][column] == pytest.approx(exact[column])


def test_patches_are_squares_in_row_major_order():
    images = np.random.default_rng(0).random((2, 4, 6, 3), np.float32)
    cut = patches(images, 2)
    assert cut.shape == (2, 6, 12)
    np.testing.assert_array_equal(cut[1, 4], images[1, 2:4, 2:4].ravel())
    np.testing.assert_array_equal(cut[0, 2], images[0, :2, 4:].ravel())


def test_clip_transformer_reads_all_frames_and_has_masks_in_both_encoders():
    settings = VideoSettings(width=WIDTH, heads=HEADS, depth=2, hops=2, patch=8, frames=3)
    model = video.make_model(parse_variant("softmax+grf-2"), False, settings, rngs=streams())
    clips = np.float32(np.random.default_rng(0).normal(size=(3, 20, 192)))[None].repeat(4, 0)
    for frame in range(3):
        clips[frame + 1, frame] += 1
    out = logits(model, clips)
    assert out.shape == (4, 3)
    assert (np.abs(out[1:] - out[0]).max(1) > 1e-5).all()
    shapes = [
        encoder.blocks[0].attention.masks.dense().shape
        for encoder in (model.spatial, model.temporal)
    ]
    assert shapes == [(HEADS, 21, 21), (HEADS, 4, 4)]


def test_digits_are_patches_of_known_images():
    datasets = extras.needed("sklearn.datasets")
    examples = vision.load_digits(2)
    assert examples.inputs.shape == (1797, 16, 4)
    image = datasets.load_digits().images[5]
    np.testing.assert_allclose(examples.inputs[5, 0], image[:2, :2].ravel() / 8 - 1)


def test_missing_scikit_learn_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    with pytest.raises(UserError, match=r"scikit-learn.*\[vision\]"):
        vision.load_digits(1)


@pytest.mark.parametrize(
    "word", ["", "relu", "linear+", "linear+grf", "linear+grf-0", "linear+exact-3", "+grf-3"]
)
def test_unknown_variants_are_refused(word):
    assert parse_variant(word) is None
    with pytest.raises(UserError, match="--variants"):
        VisionSettings(variants=f"softmax,{word},?")


@pytest.mark.parametrize(
    ("settings", "changes", "flag"),
    [
        (VisionSettings, {"width": 31}, "--width 31"),
        (VisionSettings, {"train_images": 1797}, "--train-images 1797"),
        (VisionSettings, {"patch": 3}, "--patch 3"),
        (VisionSettings, {"positions": "sine"}, "--positions sine"),
        (VideoSettings, {"clips": 80}, "--clips 80"),
        (VideoSettings, {"patch": 5}, "--patch 5"),
        (VideoSettings, {"halting": 1.0}, "--halting 1.0"),
    ],
)
def test_impossible_settings_are_refused(settings, changes, flag):
    with pytest.raises(UserError, match=flag):
        settings(**changes)
