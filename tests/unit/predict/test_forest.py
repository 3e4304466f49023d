"""The forest, compared with scikit-learn's on the plain rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from slurm_asrpt.core.units import Seconds
from slurm_asrpt.hook.group import keys_of
from slurm_asrpt.predict.predictors import Chain, Example, fit, make_predictor
from slurm_asrpt.predict.predictors.forest import bag_counts, forest_mean
from slurm_asrpt.sim.predictors import JobKeys, chains_of, predictions, trained

Rows = list[tuple[str, int, float]]
"""Group, user and iterations."""


def name(i: int) -> str:
    return f"{i:016x}"


def in_product(rows: Rows, trees: int = 100, seed: int = 0, predictor: str = "forest") -> dict[tuple[str, int], float]:
    """The figure of each cell in the hook's table, whose keys belong to a user."""
    chains = {(group, user): keys_of(group, "", user, 1, {}) for group, user, _ in rows}
    entries = fit(predictor, [Example(chains[group, user], Seconds(n)) for group, user, n in rows], trees, seed)
    return {cell: entries[dict(chain)["group"]].iterations for cell, chain in chains.items()}


def in_simulation(rows: Rows, predictor: str = "forest") -> dict[tuple[str, int], float]:
    def keys(group: str, user: int) -> JobKeys:
        return JobKeys(chains_of([group], [str(user)], [1])[0])

    known = trained(predictor, [keys(group, user).example(n) for group, user, n in rows])
    cells = list({(group, user): None for group, user, _ in rows})
    return dict(zip(cells, predictions(known, [keys(*cell) for cell in cells]).tolist(), strict=True))


def of_scikit_learn(rows: Rows, seeds: int, trees: int = 100) -> dict[tuple[str, int], np.ndarray]:
    """The figures of each cell by scikit-learn's forest on (group, user), one for each seed."""
    groups = sorted({group for group, _, _ in rows})
    features = np.array([(groups.index(group), user) for group, user, _ in rows], dtype=float)
    figures = [n for _, _, n in rows]
    cells = list({(group, user): None for group, user, _ in rows})
    asked = np.array([(groups.index(group), user) for group, user in cells], dtype=float)
    found = [
        RandomForestRegressor(trees, random_state=seed).fit(features, figures).predict(asked) for seed in range(seeds)
    ]
    return dict(zip(cells, np.array(found).T, strict=True))


def background(seed: int, groups: int = 200) -> Rows:
    """Log-normal groups, users with several groups each, between one and eight runs a group."""
    dice = random.Random(seed)
    rows: Rows = []
    for i in range(groups):
        mean = dice.lognormvariate(9, 2)
        rows += [(name(i), i % 17, 1 + int(mean * dice.uniform(0.9, 1.1))) for _ in range(dice.randint(1, 8))]
    return rows


def test_both_features_count_in_the_product_and_in_a_simulation() -> None:
    """Group G, of user 1 with 10 iterations, and of user 2 with 1,000; both have another group, too."""
    rows = [(name(7), 1, 10.0), (name(7), 2, 1000.0), (name(8), 1, 400.0), (name(9), 2, 70.0)] * 20
    theirs = of_scikit_learn(rows, seeds=3)
    for ours in (in_product(rows), in_simulation(rows)):
        assert ours == {cell: pytest.approx(figures.mean(), abs=0.5) for cell, figures in theirs.items()}
        assert (ours[name(7), 1], ours[name(7), 2]) == (10, 1000)


@pytest.mark.parametrize("way", [in_product, in_simulation])
def test_cells_of_shared_groups_equal_scikit_learns_within_the_noise_of_its_seeds(way) -> None:
    """Ours is one more draw from the distribution of scikit-learn's figures over its seeds."""
    dice, rows = np.random.default_rng(3), list[tuple[str, int, float]]()
    for group in range(6):
        for user in range(4):
            mean, runs = dice.lognormal(7, 1), dice.integers(12, 40)
            rows += [(name(group), user, float(np.rint(mean * each)) + 1) for each in dice.lognormal(0, 0.8, runs)]
    ours, theirs = way(rows), of_scikit_learn(rows, seeds=25)
    deviations = [(ours[cell] - found.mean()) / found.std(ddof=1) for cell, found in theirs.items()]
    assert max(map(abs, deviations)) < 5
    assert 0.5 < np.std(deviations) < 2, "the noise of our bags is that of theirs"


def test_the_simulations_figures_are_the_products() -> None:
    """One implementation: they differ by the names of the keys, which seed the bags of a cell, and by rounding."""
    rows = background(4, 60)
    product, simulated = in_product(rows), in_simulation(rows)
    once = {cell for cell in product if sum(row[:2] == cell for row in rows) == 1}
    assert once
    assert {cell: round(product[cell]) for cell in once} == {cell: simulated[cell] for cell in once}
    assert simulated == {cell: pytest.approx(figure, rel=0.05, abs=1) for cell, figure in product.items()}


def test_a_prediction_is_not_the_mean_of_the_runs_but_near_it() -> None:
    values = [float(v) for v in (1, 10, 100, 1000, 10_000) * 4]
    ours = in_product([(name(1), 1, v) for v in values])[name(1), 1]
    assert ours != np.mean(values)
    assert ours == pytest.approx(np.mean(values), abs=6 * np.std(values) / np.sqrt(100 * len(values)))


@pytest.mark.parametrize("iterations", [1, 1000, 33_333, 10**9])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_three_equal_runs_suffice(iterations: int, seed: int) -> None:
    mine = [(name(9999), 3, iterations)] * 3
    assert in_product(background(seed) + mine, 100, seed)[name(9999), 3] == pytest.approx(iterations)


def test_every_group_is_predicted_and_at_least_one() -> None:
    rows = [*background(5), (name(777), 1, 1)]
    predicted = in_product(rows, 10, 0)
    assert set(predicted) == {row[:2] for row in rows}
    assert min(predicted.values()) >= 1
    assert predicted[name(777), 1] == 1


def test_same_seed_same_table() -> None:
    assert in_product(background(5), 10, 0) == in_product(background(5), 10, 0)
    assert in_product(background(5), 10, 0) != in_product(background(5), 10, 1)


def test_no_history_no_table() -> None:
    assert fit("forest", [], 100, 0) == fit("forest-sklearn", [], 100, 0) == {}


@settings_(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 400), st.integers(1, 60), st.integers(1, 6))
def test_the_shortcut_equals_scikit_learns_trees(seed: int, count: int, groups: int, users: int) -> None:
    """For each bag, the mean of a cell's runs in the bag is the answer of a tree that scikit-learn grows on the bag."""
    dice = np.random.default_rng(seed)
    features = np.column_stack([dice.integers(0, groups, count), dice.integers(0, users, count)])
    target = np.rint(dice.lognormal(8, 2, count)) + 1
    cells, cell = np.unique(features, axis=0, return_inverse=True)
    rows = [np.flatnonzero(cell == number) for number in range(len(cells))]
    counts = np.zeros((count, 8), dtype=np.uint8)
    for number, mine in enumerate(rows):
        counts[mine] = bag_counts(str(number), len(mine), 8, seed)
    trees = [DecisionTreeRegressor(random_state=0) for _ in range(8)]
    bags = [np.repeat(np.arange(count), counts[:, t]) for t in range(8)]
    answers = np.array(
        [
            tree.fit(features[bag], target[bag]).predict(cells) if len(bag) else np.zeros(len(cells))
            for tree, bag in zip(trees, bags, strict=True)
        ]
    )
    for number, mine in enumerate(rows):
        seen = counts[mine].sum(axis=0) > 0
        expected = answers[seen, number].mean() if seen.any() else target[mine].mean()
        assert forest_mean(target[mine].tolist(), counts[mine]) == pytest.approx(expected, rel=1e-9)


def test_how_often_runs_are_in_a_bag_is_poisson_and_differs_by_cell_and_tree() -> None:
    drawn = bag_counts("a", 5000, 20, 0)
    assert drawn.mean() == pytest.approx(1, abs=0.02)
    assert drawn.var() == pytest.approx(1, abs=0.03)
    assert np.abs(np.corrcoef(drawn.T)[np.triu_indices(20, 1)]).max() < 0.1
    assert (bag_counts("b", 5000, 20, 0) != drawn).mean() > 0.5


def test_a_cell_in_no_bag_gets_the_mean_of_its_rows() -> None:
    assert forest_mean([10.0, 30.0], np.array([[0], [0]], dtype=np.uint8)) == 20.0
    assert forest_mean([10.0, 30.0], np.array([[0, 0], [0, 1]], dtype=np.uint8)) == 30.0


def test_scikit_learns_forest_learns_in_a_simulation_and_answers_for_cells_that_a_tree_has_not_seen() -> None:
    """One run of each cell: a third of the trees has not seen it, and answers with another one's figure."""
    rows = [(name(i), i % 5, 100.0 * (i + 1)) for i in range(20)]
    ours, theirs = in_simulation(rows), in_simulation(rows, "forest-sklearn")
    assert ours == {(group, user): n for group, user, n in rows}
    assert theirs == {cell: round(figure) for cell, figure in in_product(rows, predictor="forest-sklearn").items()}
    differing = [cell for cell in ours if abs(theirs[cell] / ours[cell] - 1) > 0.01]
    assert len(differing) > 10


def test_scikit_learns_forest_keeps_seconds_and_iterations_apart() -> None:
    def chain(key: str, *wider: tuple[str, str]) -> Chain:
        return (("exact", f"e{key}"), ("group", key), *wider)

    grown = make_predictor("forest-sklearn")
    for i in range(10):
        grown.learn(chain(f"p{i}"), 1e6, {})
        grown.learn(chain(f"g{i}", ("user", "u")), 10.0, {})
    assert {entry.iterations for key, entry in grown.entries().items() if key[0] == "g"} == {10.0}
    assert {entry.iterations for key, entry in grown.entries().items() if key[0] == "p"} == {1e6}
