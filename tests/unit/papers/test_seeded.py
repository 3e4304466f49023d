"""Simulations over several seeds: ordered by cell and seed, and not repeated if stored in a directory."""

from dataclasses import dataclass

from papers.seeded import Kept, Seeds, code_version

RAN = []


@dataclass(frozen=True)
class Cell:
    name: str

    @property
    def label(self):
        return f"cell {self.name}"

    def measure(self, seed):
        RAN.append((self.name, seed))
        return 10.0 * seed, [self.name]


def test_each_cell_runs_once_with_each_seed():
    calls = []
    found = Seeds(3, 2, on_progress=lambda *words: calls.append(words)).run([Cell("a"), Cell("b"), Cell("a")])
    assert {cell.name: [tuple(row) for row in rows] for cell, rows in found.items()} == {
        "a": [(30.0, ["a"]), (40.0, ["a"])],
        "b": [(30.0, ["b"]), (40.0, ["b"])],
    }
    assert [words[:2] for words in calls] == [(n, 4) for n in range(1, 5)]
    assert calls[-1][2] == "cell b"


def test_stored_results_are_not_run_again(tmp_path):
    kept, calls = Kept(tmp_path / "made" / "by it"), []
    first = Seeds(0, 2, kept=kept).run([Cell("a")])
    RAN.clear()
    more = Seeds(1, 2, kept=kept, on_progress=lambda *words: calls.append(words)).run([Cell("a"), Cell("b")])
    assert RAN == [("b", 1), ("a", 2), ("b", 2)]  # seed by seed
    assert calls[0][:2] == (2, 4)
    assert [tuple(row) for row in more[Cell("a")]] == [tuple(first[Cell("a")][1]), (20.0, ["a"])]


def test_a_truncated_result_is_run_again(tmp_path):
    kept = Kept(tmp_path)
    Seeds(0, 1, kept=kept).run([Cell("a")])
    next(tmp_path.glob("*.json")).write_text("[10.0,")
    RAN.clear()
    assert tuple(Seeds(0, 1, kept=kept).run([Cell("a")])[Cell("a")][0]) == (0.0, ["a"])
    assert RAN == [("a", 0)]


def test_results_of_other_code_are_kept_apart(tmp_path, monkeypatch):
    package, core = tmp_path / "papers", tmp_path / "slurm_asrpt" / "core"
    core.mkdir(parents=True)
    package.mkdir()
    monkeypatch.setattr("papers.seeded.__file__", str(package / "seeded.py"))

    def version(folder, name, text):
        (folder / name).write_text(text)
        code_version.cache_clear()
        return code_version()

    first = version(core, "job.py", "1")
    assert version(core, "job.py", "2") != first
    assert version(core, "job.py", "1") == first
    assert version(package, "page.py", "how it looks") == first
    assert version(package, "workload.py", "what it simulates") != first
    code_version.cache_clear()
