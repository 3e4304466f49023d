"""python -m papers, python -m papers.asrpt ..., and the hidden asrpt-sim reproduce."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import slurm_asrpt_cli.sim
from PIL import Image

import slurm_asrpt
from papers.claims import Claim
from papers.command import main, print_claims, reproduce_all, reproduce_asrpt, reproduce_hare, reproduce_sjf_bco
from papers.seeded import code_version

COMMANDS = {
    "papers": reproduce_all,
    "papers.claims": print_claims,
    "papers.asrpt": reproduce_asrpt,
    "papers.sjf_bco": reproduce_sjf_bco,
    "papers.hare": reproduce_hare,
}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Exit code, standard output and standard error of ``python -m MODULE``."""

    def run(module: str, *words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["__main__.py", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main(module, COMMANDS[module])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests keep the results of simulations that several of them need."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize("module", COMMANDS)
def test_help_names_the_command(call: Call, module: str) -> None:
    code, out, _ = call(module, "--help")
    assert code == 0
    assert out.startswith(f"Usage: python -m {module} ")
    assert f"  python -m {module} " in out.partition("Examples:")[2]


def test_asrpt_writes_the_page(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papers.asrpt.simulations.DIVIDE", 2000)
    page, keep = tmp_path / "page.md", tmp_path / "keep"
    monkeypatch.setattr("papers.asrpt.claims.samples", lambda *_: [])
    code, out, err = call("papers.asrpt", "fig6", "--quick", "-j", 1, "--keep", keep, "-o", page)
    assert (code, out) == (0, f"wrote {page}\n"), err
    assert "python -m papers.asrpt fig6 --seed 0 --seeds 2`" in page.read_text()
    assert "## Fig. 6" in page.read_text()
    assert list(keep.glob(f"{code_version()}/*.json"))
    claims = json.loads(page.with_suffix(".json").read_text())["claims"]
    assert {claim["item"] for claim in claims} == {"Fig. 6"}


@pytest.mark.parametrize(("module", "figure"), [("papers", "bco-fig4"), ("papers.sjf_bco", "fig4")])
def test_sjf_bco_writes_figures_next_to_the_page(
    call: Call, keep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, figure: str
) -> None:
    monkeypatch.setattr("papers.sjf_bco.simulations.QUICK_SEEDS", 1)
    page = tmp_path / "page.md"
    code, _, err = call(module, figure, "--quick", "-j", 1, "--keep", keep, "-o", page)
    assert code == 0, err
    text = page.read_text()
    assert text.startswith("# The simulations of the SJF-BCO paper")
    assert "--seeds 1" in text
    assert "(page-bco-fig4.png)" in text
    with Image.open(tmp_path / "page-bco-fig4.png") as picture:
        assert picture.width > picture.height > 100


def test_hare_prints_the_page(call: Call) -> None:
    code, out, err = call("papers.hare", "fig14", "--divide", 20, "--seeds", 1, "-j", 1)
    assert code == 0, err
    assert "`python -m papers.hare hare-fig14 --seed 0 --seeds 1 --divide 20`" in out


def test_claims_of_all_papers_are_printed(call: Call, keep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as few figures as the papers' parts can have; the test of each part has them all."""
    few = {"asrpt": ["fig4"], "bco": ["bco-fig4"], "hare": ["hare-fig14"]}
    monkeypatch.setattr("papers.command.GROUPS", few)
    words = ("--divide", 200, "--seeds", 2, "-j", 1, "--keep", keep)
    code, out, err = call("papers.claims", "--json", *words)
    assert code == 0, err
    claims = json.loads(out)["claims"]
    assert [claim["paper"] for claim in claims] == ["A-SRPT", "SJF-BCO", "Hare"]
    assert all(set(claim) == set(Claim.__dataclass_fields__) for claim in claims)
    code, out, _ = call("papers.claims", *words)
    assert out.count(", Fig. ") == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("papers", "fig3"), "known: fig4"),
        (("papers", "\x1b[31m\u202e<script>"), "known: fig4"),
        (("papers.sjf_bco", "fig3"), "known: bco-fig4"),
        (("papers", "fig6", "-o", "no/such/page.md"), "directory"),
        (("papers.asrpt", "fig6", "--load", "0"), "above 0"),
        (("papers.asrpt", "fig6", "--retrain", "1y"), "e.g. 1h"),
        (("papers.hare", "fig14", "--keep", __file__), "not a directory"),
    ],
)
def test_bad_input_is_one_line(call: Call, words: tuple[str, ...], says: str) -> None:
    code, _, err = call(*words)
    assert code == 2
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()
    assert err.startswith(f"python -m {words[0]}: ")
    assert says in err


def reproduce(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/asrpt-sim", "reproduce", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        slurm_asrpt_cli.sim.main()
    return ended.value.code


def test_reproduce_is_hidden_and_still_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "reproduce" not in slurm_asrpt_cli.sim.COMMANDS
    assert reproduce(monkeypatch, "--help") == 0
    assert capsys.readouterr().out.startswith("Usage: python -m papers ")


def test_reproduce_needs_a_checkout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(slurm_asrpt, "__file__", str(tmp_path / "slurm_asrpt" / "__init__.py"))
    assert reproduce(monkeypatch, "fig6") == 1
    said = capsys.readouterr().err
    assert "python -m papers in a checkout" in said
    assert said.count("\n") == 1
