"""Every search backend against brute force, also where points are missing, equal or not numbers."""

import concurrent.futures
import functools
import importlib.util

import extras
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from hdvpd.basics.errors import UserError
from hdvpd.kernels import kdtree, kdtree_search, neighbors, neighbors_xla
from hdvpd.kernels.neighbors_host import SEARCHES

NUM_QUERIES, NUM_POINTS = 23, 40
# KeOps compiles its formula for seconds per number of neighbours, a search without the point itself
# among them: all tests of the short suite ask it for five.
K, OTHERS = 5, 4


@pytest.fixture(params=["kdtree", "xla", "open3d", "keops"])
def backend(request):
    package = {"open3d": "open3d", "keops": "pykeops"}.get(request.param)
    if package:
        extras.needed(package)
    return request.param


@functools.partial(jax.jit, static_argnums=range(3, 9))
def jitted_knn(
    queries, points, mask, k, max_distance, max_nearest, exclude_self, backend, mask_given
):
    return neighbors.knn(
        queries,
        points,
        k,
        mask=mask if mask_given else None,
        max_distance=max_distance,
        max_nearest=max_nearest,
        exclude_self=exclude_self,
        backend=backend,
    )


def search(
    queries, points, k, *, backend, mask=None, max_distance=np.inf, max_nearest=np.inf,
    exclude_self=False,
):  # fmt: skip
    given = mask is not None
    mask = mask if given else np.ones(len(points), bool)
    return jitted_knn(
        queries, points, mask, k, max_distance, max_nearest, exclude_self, backend, given
    )


def search_tree(queries, points, mask, limits, indices, distances):
    tree = [np.empty(x.shape, x.dtype) for x in kdtree.arrays(len(points))]
    kdtree.build(points, mask, *tree)
    for array in tree:
        array.flags.writeable = False  # as XLA hands them over
    kdtree_search.nearest(*tree, queries, limits, indices, distances)


def assert_same(found, expected):
    """Compare with the reference: distances always, indices where no two candidates are as near."""
    indices, distances = expected
    np.testing.assert_allclose(found.distances, distances, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(found.found, np.isfinite(distances))
    np.testing.assert_array_equal(found.indices, indices)


@pytest.fixture(scope="module")
def clouds():
    rng = np.random.default_rng(0)
    queries, points = rng.normal(size=(NUM_QUERIES, 3)), rng.normal(size=(NUM_POINTS, 3))
    return queries.astype(np.float32), points.astype(np.float32)


def test_equals_brute_force(backend, clouds):
    assert_same(search(*clouds, K, backend=backend), references.nearest(*clouds, K))


def test_an_index_is_asked_for_what_knn_finds(backend, clouds):
    queries, points = clouds
    mask = np.random.default_rng(2).random(NUM_POINTS) < 0.7

    @jax.jit
    def in_turn(queries, points, mask):
        index = neighbors.index_points(points, mask=mask, backend=backend)
        return jax.lax.map(
            lambda part: neighbors.knn(part, index, K, backend=backend), queries.reshape(2, -1, 3)
        )

    found = in_turn(np.concatenate([queries, queries[::-1]]), points, mask)
    expected = search(queries, points, K, backend=backend, mask=mask)
    for part, order in enumerate([slice(None), slice(None, None, -1)]):
        np.testing.assert_array_equal(found.indices[part], expected.indices[order])
        np.testing.assert_array_equal(found.distances[part], expected.distances[order])


def test_an_index_is_refused_with_another_mask_or_for_another_backend(clouds):
    queries, points = clouds
    index = neighbors.index_points(points, backend="kdtree")
    with pytest.raises(ValueError, match="its own mask"):
        neighbors.knn(queries, index, K, mask=np.ones(NUM_POINTS, bool), backend="kdtree")
    index = neighbors.index_points(points, backend="xla")
    with pytest.raises(ValueError, match="another backend"):
        neighbors.knn(queries, index, K, backend="kdtree")


def test_points_that_are_searched_twice_have_one_tree(clouds):
    @jax.jit
    def twice(queries, points):
        one = neighbors.knn(queries, points, 2, backend="kdtree")
        return one, neighbors.knn(points, points, 3, backend="kdtree", max_distance=1.0)

    text = twice.lower(*clouds).compile().as_text()
    names = "kdtree.build", "kdtree_search.nearest"
    assert [text.count(f'"hdvpd.kernels.{name}(') for name in names] == [1, 2]


@pytest.fixture(scope="module", params=["space", "table", "line", "clusters", "grid"])
def many_points(request):
    """Return points of many leaves of the k-d tree, and places to ask from."""
    rng = np.random.default_rng(4)
    points = rng.normal(size=(1000, 3))
    if request.param == "grid":  # all distances are exact, most are shared
        points = rng.permutation(np.stack(np.meshgrid(*[np.arange(10.0)] * 3), -1).reshape(-1, 3))
    if request.param == "clusters":  # 50 points in a place
        points = np.repeat(points[:20], 50, axis=0)
    points *= {"table": [1, 1, 0], "line": [0, 1, 0]}.get(request.param, [1, 1, 1])
    queries = np.concatenate([points[::40], rng.normal(size=(30, 3))])
    return queries.astype(np.float32), points.astype(np.float32)


@pytest.mark.parametrize("k", [1, 7, 70])
@pytest.mark.parametrize("max_distance", [2.0, np.inf])
@pytest.mark.parametrize("backend", ["kdtree", "xla"])
def test_trees_of_many_leaves_find_the_lesser_rows_of_what_is_as_near(
    many_points, k, max_distance, backend
):
    queries, points = many_points
    mask = np.random.default_rng(5).random(len(points)) < 0.9
    found = search(queries, points, k, backend=backend, mask=mask, max_distance=max_distance)
    expected = references.nearest(queries, points, k, mask, max_distance)
    assert np.isfinite(expected[1]).any(1).mean() > 0.7
    assert_same(found, expected)


@pytest.mark.parametrize("scale", [1.0, 1e18])
@pytest.mark.parametrize("max_distance", [0.3, np.inf])
def test_queries_that_follow_each_other_along_rays(scale, max_distance):
    # A search begins with what is known from the query before, over gaps too.
    rng = np.random.default_rng(7)
    points = (rng.normal(size=(500, 3)) * scale).astype(np.float32)
    ends = rng.normal(size=(2, 6, 1, 3))
    queries = ends[0] + np.sort(rng.random((6, 60, 1)), axis=1) * (ends[1] - ends[0])
    queries = (queries.reshape(-1, 3) * scale).astype(np.float32)
    queries[rng.random(len(queries)) < 0.3] = np.nan
    reach = max_distance * scale
    found = search(queries, points, K, backend="kdtree", max_distance=reach)
    distances = np.linalg.norm(np.float64(queries)[:, None] - np.float64(points)[None], axis=-1)
    distances = np.sort(distances, axis=1)[:, :K]
    distances[~(distances <= reach)] = np.inf
    np.testing.assert_allclose(found.distances, distances, rtol=1e-5)


@pytest.mark.parametrize("k", [1, 8, 9, 16, 17, 33])
@pytest.mark.parametrize(("max_distance", "max_nearest"), [(np.inf, np.inf), (1.5, 0.5)])
def test_distances_are_rounded_step_by_step_however_many_are_asked_for(
    many_points, k, max_distance, max_nearest
):
    # A list of the search holds few: for more it begins again beyond the last one.
    queries, points = many_points
    queries = np.where(np.arange(len(queries))[:, None] % 5 == 3, np.float32(np.nan), queries)
    limits = np.float32([max_distance, max_nearest])
    found = np.full((len(queries), k), 7, np.int32), np.full((len(queries), k), 7, np.float32)
    search_tree(queries, points, np.ones(len(points), bool), limits, *found)
    x, y, z = np.moveaxis(points - queries[:, None], -1, 0)
    squared = x * x + y * y + z * z
    indices = np.argsort(squared, axis=1, kind="stable")[:, :k]  # the lesser row first
    distances = np.sqrt(np.take_along_axis(squared, indices, 1))
    kept = (distances <= max_distance) & (distances[:, :1] <= max_nearest)
    assert 0.1 < kept.mean() < 0.9
    np.testing.assert_array_equal(found[0], np.where(kept, indices, 0))
    np.testing.assert_array_equal(found[1], np.where(kept, distances, np.inf))


def test_a_point_is_found_whose_distance_is_less_than_its_square_can_tell():
    # From the first query it is 0, from the second it is not, and neither is the way between them.
    queries = np.array([[2e-23, 0, 0], [4e-23, 0, 0]], np.float32)
    indices, distances = np.empty((2, 1), np.int32), np.empty((2, 1), np.float32)
    limits, point = np.full(2, np.inf, np.float32), np.zeros((1, 3), np.float32)
    search_tree(queries, point, np.ones(1, bool), limits, indices, distances)
    assert np.isfinite(distances).all()


def test_threads_that_ask_at_once_are_answered_each():
    rng = np.random.default_rng(6)
    clouds = rng.normal(size=(40, 200, 3)).astype(np.float32)
    limits = np.full(2, np.inf, np.float32)

    def ask(number):
        points = clouds[number % len(clouds)]
        indices, distances = np.empty((200, 2), np.int32), np.empty((200, 2), np.float32)
        search_tree(points, points, np.ones(200, bool), limits, indices, distances)
        return indices, distances

    expected = [ask(number) for number in range(len(clouds))]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(10 * len(clouds))))
    for number, (indices, distances) in enumerate(answers):
        np.testing.assert_array_equal(indices, expected[number % len(clouds)][0])
        np.testing.assert_array_equal(distances, expected[number % len(clouds)][1])


def test_no_neighbours_are_found_where_none_are_wanted(clouds):
    assert search(*clouds, 0, backend="kdtree").indices.shape == (NUM_QUERIES, 0)


def test_masked_points_are_not_found(backend, clouds):
    mask = np.random.default_rng(1).random(NUM_POINTS) < 0.5
    found = search(*clouds, K, backend=backend, mask=mask)
    assert_same(found, references.nearest(*clouds, K, mask))
    assert mask[np.asarray(found.indices)].all()


def test_far_points_are_not_found(backend, clouds):
    found = search(*clouds, K, backend=backend, max_distance=0.6)
    assert 0 < np.asarray(found.found).mean() < 1
    assert_same(found, references.nearest(*clouds, K, max_distance=0.6))


@pytest.mark.parametrize("max_distance", [0.9, np.inf])
@pytest.mark.parametrize("max_nearest", [0.0, 0.4])
def test_queries_far_from_every_point_find_nothing(backend, clouds, max_nearest, max_distance):
    found = search(*clouds, K, backend=backend, max_distance=max_distance, max_nearest=max_nearest)
    indices, distances = references.nearest(*clouds, K, max_distance=max_distance)
    far = distances[:, :1] > max_nearest
    assert far.all() if max_nearest == 0 else 0 < far.mean() < 1
    assert_same(found, (np.where(far, 0, indices), np.where(far, np.inf, distances)))


def test_no_point_is_its_own_neighbour(backend, clouds):
    _, points = clouds
    found = search(points, points, OTHERS, backend=backend, exclude_self=True)
    assert_same(found, references.nearest(points, points, OTHERS, exclude_self=True))
    assert (np.asarray(found.indices) != np.arange(NUM_POINTS)[:, None]).all()


def test_no_point_is_its_own_neighbour_among_many_coincident_ones(backend):
    points = np.concatenate([np.zeros((9, 3)), np.ones((9, 3)), np.eye(3)]).astype(np.float32)
    found = search(points, points, OTHERS, backend=backend, exclude_self=True)
    _, distances = references.nearest(points, points, OTHERS, exclude_self=True)
    np.testing.assert_allclose(found.distances, distances, atol=1e-7)
    indices = np.asarray(found.indices)
    assert (indices != np.arange(len(points))[:, None]).all()
    apart = np.linalg.norm(points[indices] - points[:, None], axis=-1)
    np.testing.assert_allclose(apart, distances, atol=1e-7)
    assert all(len(set(row)) == OTHERS for row in indices.tolist())


def test_a_choice_of_points_finds_the_others(clouds):
    _, points = clouds
    rows = np.int32([7, 0, 31])
    found = jax.jit(
        lambda points, rows: neighbors.knn(points[rows], points, 4, exclude_self=True, rows=rows)
    )(points, rows)
    indices, distances = references.nearest(points, points, 4, exclude_self=True)
    assert_same(found, (indices[rows], distances[rows]))


def test_masked_queries_find_real_neighbours_only(backend):
    points = np.random.default_rng(2).normal(size=(12, 3)).astype(np.float32)
    mask = np.arange(12) < 7
    found = search(points, points, OTHERS, backend=backend, mask=mask, exclude_self=True)
    assert_same(found, references.nearest(points, points, OTHERS, mask, exclude_self=True))


@pytest.mark.parametrize("num_real", [0, 1, 2])
def test_fewer_points_than_neighbours_leave_empty_places(backend, clouds, num_real, long):
    if backend == "keops" and not long:
        pytest.skip("asks for as many as there are, as open3d does; make longtest")
    queries, points = clouds
    mask = np.arange(NUM_POINTS) < num_real
    found = search(queries, points, K, backend=backend, mask=mask)
    assert_same(found, references.nearest(queries, points, K, mask))
    few = points[:2]
    assert_same(search(queries, few, K, backend=backend), references.nearest(queries, few, K))


def test_points_that_are_not_numbers_are_neither_found_nor_answered(backend, clouds):
    queries, points = (x.copy() for x in clouds)
    points[[3, 5, 8]] = [[np.nan, 0, 0], [0, np.inf, 0], [0, 0, -np.inf]]
    queries[[1, 2]] = [[0, np.nan, 0], [np.inf, 0, 0]]
    found = search(queries, points, K, backend=backend)
    mask = np.isfinite(points).all(1)
    expected = references.nearest(queries, points, K, mask)
    assert_same(found, expected)
    assert not np.asarray(found.found)[1:3].any()


def test_grid_with_many_ties_has_the_right_distances(backend):
    points = np.stack(np.meshgrid(*[np.arange(4.0)] * 3), -1).reshape(-1, 3).astype(np.float32)
    found = search(points, points, OTHERS, backend=backend, exclude_self=True)
    _, distances = references.nearest(points, points, OTHERS, exclude_self=True)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-6)


def test_small_distances_far_from_the_origin_keep_their_digits(backend, clouds):
    # At 64 m float32 resolves 4 micrometres; |q|^2 - 2 q.p + |p|^2 would resolve 2 centimetres.
    queries, points = (np.float32(64) + np.float32(2**-10) * np.round(64 * x) for x in clouds)
    found = search(queries, points, K, backend=backend)
    _, distances = references.nearest(queries, points, K)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-5)


def test_works_under_vmap_and_scan(backend):
    rng = np.random.default_rng(3)
    queries, points = rng.normal(size=(3, 5, 3)), rng.normal(size=(3, 9, 3))
    queries, points = jnp.asarray(queries, jnp.float32), jnp.asarray(points, jnp.float32)

    def one(queries, points):
        return neighbors.knn(queries, points, K, backend=backend)

    mapped = jax.jit(jax.vmap(one))(queries, points)
    _, scanned = jax.jit(lambda x: jax.lax.scan(lambda c, x: (c, one(*x)), None, x))(
        (queries, points)
    )
    for b in range(3):
        indices, distances = references.nearest(queries[b], points[b], K)
        for found in (mapped, scanned):
            np.testing.assert_array_equal(found.indices[b], indices)
            np.testing.assert_allclose(found.distances[b], distances, rtol=1e-5)


def test_no_gradient_flows_through_the_search(backend, clouds):
    def total(queries, points):
        return neighbors.knn(queries, points, K, backend=backend).distances.sum()

    grads = jax.jit(jax.grad(total, argnums=(0, 1)))(*clouds)
    assert all((np.asarray(g) == 0).all() for g in grads)


@pytest.mark.parametrize(("size", "boxes", "entries"), [(4, 3, 1), (4, 2, 1 << 10), (1, 8, 1)])
def test_plain_search_is_the_same_however_its_boxes_are_cut(monkeypatch, size, boxes, entries):
    rng = np.random.default_rng(6)
    queries, points = rng.normal(size=(150, 3)), rng.normal(size=(250, 3)) * [1, 1, 0.1]
    queries, points = queries.astype(np.float32), points.astype(np.float32)
    for name, value in {"_SIZE": size, "_BOXES": boxes, "_PASS_ENTRIES": entries}.items():
        monkeypatch.setattr(neighbors_xla, name, value)
    found = neighbors.knn(queries, points, K, backend="xla", max_distance=0.4, max_nearest=0.2)
    indices, distances = references.nearest(queries, points, K, max_distance=0.4)
    far = distances[:, :1] > 0.2
    assert 0.1 < far.mean() < 0.9
    assert_same(found, (np.where(far, 0, indices), np.where(far, np.inf, distances)))


def test_boxes_are_of_equally_many_points_that_are_near():
    points = np.random.default_rng(7).uniform(size=(5000, 3)).astype(np.float32)
    mask = np.arange(5000) % 5 > 0
    boxes = jax.jit(neighbors_xla.in_boxes)(points, mask)
    rows = np.asarray(boxes.rows)
    assert rows.shape == (256, 20)
    kept = rows != neighbors_xla._NO_ROW
    np.testing.assert_array_equal(np.sort(rows[kept]), np.flatnonzero(mask))
    np.testing.assert_array_equal(boxes.points[kept], points[rows[kept]])
    sides = np.asarray(boxes.high - boxes.low)[kept.any(1)]
    assert sides.mean() < 0.25  # sixteen points in a cube of 4,000 have a side of .16


def test_plain_search_never_holds_all_distances():
    num_points = 32768
    shape = jax.ShapeDtypeStruct((num_points, 3), jnp.float32)
    search = jax.jit(functools.partial(neighbors.knn, k=3, backend="xla"))
    memory = search.lower(shape, shape).compile().memory_analysis()
    # One pass of distances and what chooses among them; all of them would be 4 GiB.
    assert memory.temp_size_in_bytes < 3 * 4 * neighbors_xla._PASS_ENTRIES
    assert memory.temp_size_in_bytes < num_points**2 / 2


@pytest.mark.parametrize(("name", "package"), [("open3d", "open3d"), ("keops", "pykeops")])
def test_missing_backend_says_what_to_install(clouds, name, package):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    everywhere = np.ones(NUM_POINTS, bool), np.full(2, np.inf, np.float32)
    found = np.empty((NUM_QUERIES, 3), np.int32), np.empty((NUM_QUERIES, 3), np.float32)
    with pytest.raises(UserError, match=rf"pip install .* -e '\.\[{name}\]'"):
        SEARCHES[name](*clouds, *everywhere, *found)
    # Inside a traced program jax wraps the error; its text must survive.
    with pytest.raises(Exception, match=rf"pip install .* -e '\.\[{name}\]'"):
        jax.block_until_ready(neighbors.knn(*clouds, 3, backend=name))


def test_the_plain_search_holds_one_pass_for_all_clouds_that_are_mapped(monkeypatch):
    """Six clouds, whose passes at once would be six times as large, forward and backward."""
    monkeypatch.setattr(neighbors_xla, "_PASS_ENTRIES", 1 << 20)
    rng = np.random.default_rng(5)
    queries = rng.normal(size=(6, 600, 3)).astype(np.float32)
    points = rng.normal(size=(6, 9000, 3)).astype(np.float32)

    def spread(queries, points):
        found = neighbors.knn(queries, points, 4, backend="xla")
        squared = jnp.sum((queries[:, None] - points[found.indices]) ** 2, axis=-1)
        return jnp.sum(squared), found

    both = jax.jit(jax.vmap(jax.grad(spread, has_aux=True)))
    held = both.lower(queries, points).compile().memory_analysis().temp_size_in_bytes
    assert held < 3 * 4 * (1 << 20)
    slopes, found = both(queries, points)
    for cloud in range(6):
        slope, alone = jax.grad(spread, has_aux=True)(queries[cloud], points[cloud])
        np.testing.assert_array_equal(found.indices[cloud], alone.indices)
        np.testing.assert_allclose(found.distances[cloud], alone.distances, rtol=1e-6)
        np.testing.assert_allclose(slopes[cloud], slope, rtol=1e-6)
