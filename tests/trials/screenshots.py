"""Draw docs/img (make screenshots): asrpt-status on a terminal of 80x24, and the pages in a real browser.

The jobs come from asrptd's scheduler on the in-memory Slurm of the unit tests; the simulation report is from
``asrpt-sim compare``. The terminal is an in-memory one that gets the command's output.
"""

from __future__ import annotations

import io
import json
import os
import pwd
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.files import replace_file
from slurm_asrpt.forecast.estimate import forecast
from slurm_asrpt.forecast.snapshot import PUBLISHED, from_json
from slurm_asrpt.hook.group import describe, keys_of
from slurm_asrpt.hook.table import FILE_NAME as TABLE
from slurm_asrpt.hook.table import Entry, render_table
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.status.document import write_status
from tests.benches.browser import chromium
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm
from tests.benches.terminal import Terminal

FOLDER = Path(__file__).parents[2] / "docs" / "img"
BIN = Path(sys.executable).parent
COMMAND = str(BIN / "asrpt-status")
SIZE, CELL, MARGIN = 15, (9, 19), 12
BACK, FRONT = "#1e2227", "#d6dae0"
COLOURS = {"green": "#7fc97f", "brown": "#e5c07b", "red": "#e06c75", "default": FRONT}
ME = pwd.getpwuid(os.getuid()).pw_name
MINUTE = 60

RUNNING = [("bert", ME, 8, 90), ("resnet", "bob", 16, 45), ("vit", "carol", 8, 20), ("dlrm", "dora", 4, 200)]
WAITING = [
    ("gpt2", ME, 16, 30), ("t5-base", "bob", 8, 10), ("llama", "carol", 32, 600), ("unet", ME, 8, 120),
    ("wav2vec", "dora", 2, 15), ("gnn", "eve", 4, 40), ("yolo", "eve", 8, 55), ("moe", "bob", 16, 240),
    ("clip", "carol", 8, 70), ("sweep", "dora", 2, 5), ("rl", "eve", 4, 300), ("ner", "bob", 1, 12),
]  # fmt: skip


SCRIPT = "#!/bin/sh\n#SBATCH -n8 --gpus-per-task=1\nsrun python train.py\n"


def teach(hook: Path) -> None:
    """Predict a quarter of an hour for the script's group."""
    job = describe(os.getuid(), b"train.sh", SCRIPT.encode(), [], b"", GroupSettings())
    chain = keys_of(job.group, job.program, os.getuid(), 8, job.features)
    replace_file(hook / TABLE, render_table({dict(chain)["group"]: Entry(900.0, 700.0, 1300.0)}))


def submit(slurm: FakeSlurm, name: str, user: str, gpus: int, minutes: int, **more: object) -> str:
    seconds = minutes * MINUTE
    tag = Tag(f"{len(slurm.records):016x}", seconds, low=seconds * 3 // 4, high=seconds * 3 // 2).format()
    return slurm.submit(gpus, name=name, user=user, admin_comment=tag, **more)


def fill(folder: Path) -> str:
    """Publish a busy cluster of 5 x 8 GPUs in ``folder``; return the job to explain."""
    slurm = FakeSlurm((8,) * 5)
    slurm.now = time.time() - 20 * MINUTE
    bench = Bench(folder, slurm, policy="asrpt-gated", interval_s=5.0, forecast_s=60.0)
    for job in RUNNING:
        submit(slurm, *job)
        bench.cycle(1)
    bench.cycle(1, seconds=20 * MINUTE - 10)
    waiting = [submit(slurm, *job) for job in WAITING]
    submit(slurm, "chosen", ME, 8, 30, required_nodes="n2", leased=False, eligible_time=2e9, reason="BeginTime")
    bench.cycle(3)
    show(bench)
    bench.close()
    return waiting[0]


def show(bench: Bench) -> None:
    """Write status and snapshot with estimates."""
    forecaster = bench.forecaster(AtOnce)
    for _ in range(2):
        forecaster.step(bench.slurm.now)
    write_status(bench.settings.paths.run, bench.status(bench.slurm.now, forecaster))
    assert (bench.settings.paths.run / PUBLISHED).exists()


class AtOnce:
    """A forecast in this process."""

    def __init__(self, snapshot: bytes, budget_s: float) -> None:
        found = forecast(from_json(snapshot), 0)
        times = {
            job: [t if t < float("inf") else None for t in (s.earliest, s.median, s.latest)] for job, s in found.items()
        }
        self._answer = json.dumps({"cpu_s": 0.0, "starts": times}).encode()

    def answer(self) -> bytes:
        return self._answer

    def stop(self) -> None:
        pass


def draw(terminal: Terminal, path: Path) -> None:
    """The screen as a picture."""
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    plain, bold = (ImageFont.truetype(str(fonts / f"DejaVuSansMono{kind}.ttf"), SIZE) for kind in ("", "-Bold"))
    screen = terminal.screen
    size = (screen.columns * CELL[0] + 2 * MARGIN, screen.lines * CELL[1] + 2 * MARGIN)
    image = Image.new("RGB", size, BACK)
    pen = ImageDraw.Draw(image)
    for row in range(screen.lines):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            place = (MARGIN + column * CELL[0], MARGIN + row * CELL[1])
            pen.text(place, cell.data, font=bold if cell.bold else plain, fill=COLOURS.get(cell.fg, FRONT))
    image.quantize(128).save(path, optimize=True)


def shoot(name: str, words: list[str], environment: dict[str, str], keys: str = "") -> None:
    with Terminal([COMMAND, *words], environment) as terminal:
        if keys:
            terminal.until(lambda text: "q quit" in text)
            terminal.press(keys[:-1])
            terminal.until(lambda text: "sort: gpus" in text)
            draw(terminal, FOLDER / f"{name}.png")
            terminal.press(keys[-1])
        assert terminal.ended() == 0, terminal.text
        if not keys:
            draw(terminal, FOLDER / f"{name}.png")


def busy_day(folder: Path) -> None:
    """The audit trail of 160 jobs on 6 x 8 GPUs, close to full load."""
    slurm, rng = FakeSlurm((8,) * 6), random.Random(1)
    slurm.now = time.time() - 8 * 60 * MINUTE
    bench, ends = Bench(folder, slurm, policy="asrpt-gated", interval_s=5.0, forecast_s=0.0), dict[str, float]()
    kinds = [(name, user, gpus, minutes) for name, user, gpus, minutes in (*RUNNING, *WAITING) if gpus <= 16]
    lengths = dict[str, float]()
    for cycle in range(8 * 60):
        if cycle < 7 * 60 and rng.random() < 160 / (7 * 60):
            name, user, gpus, minutes = rng.choice(kinds)
            job_id = submit(slurm, name, user, gpus, minutes)
            lengths[job_id] = minutes * MINUTE * rng.lognormvariate(0.0, 0.4)
        bench.cycle(1, seconds=MINUTE)
        for job_id, record in slurm.records.items():
            if record.state == "RUNNING":
                ends.setdefault(job_id, record.start_time + lengths[job_id])
        for job_id in [job_id for job_id, end in ends.items() if end <= slurm.now]:
            slurm.end(job_id)
            del ends[job_id]
    bench.close()


def picture(browser: Any, page: Path, name: str, height: int, click: str = "") -> None:
    """A screenshot of a page in a browser 1200 pixels wide, after a click."""
    browser.set_window_size(1200, height)
    browser.get(page.as_uri())
    if click:
        browser.find_elements("css selector", click)[0].click()
        time.sleep(0.5)  # the effect of a click is drawn in the next frame
    with Image.open(io.BytesIO(browser.get_screenshot_as_png())) as image:
        image.convert("RGB").save(FOLDER / f"{name}.png", optimize=True)


def shoot_pages(folder: Path, environment: dict[str, str]) -> None:
    """The audit page with a job selected, and a simulation report."""
    audit, report = folder / "audit.html", folder / "report.html"
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 86400))
    run([BIN / "asrpt-admin", "audit", "--since", since, "--html", str(audit)], environment)
    policies = "asrpt,asrpt-gated,wcs-duration,easy-backfill"
    compared = ["pai-like:4000", "--servers", "20", "--load", "1.1", "-p", policies]
    run([BIN / "asrpt-sim", "compare", *compared, "-o", str(folder / "out")], environment)
    run([BIN / "asrpt-sim", "report", str(folder / "out"), "-o", str(report)], environment)
    with chromium() as browser:
        picture(browser, audit, "asrpt-admin-audit", 1100, click='#gpus rect[data-run="70"]')
        picture(browser, report, "asrpt-sim-report", 1300)


def run(command: Sequence[str | Path], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = fill(folder)
        paths = "".join(f'{key} = "{folder / key}"\n' for key in ("state", "run", "hook", "spool"))
        (folder / "asrpt.toml").write_text(f"[paths]\n{paths}")
        (folder / "train.sh").write_text(SCRIPT)
        teach(folder / "hook")
        os.chdir(folder)
        environment = {**os.environ, "ASRPT_CONFIG": str(folder / "asrpt.toml")}
        shoot("asrpt-status", [], environment)
        shoot("asrpt-status-explain", ["--explain", job], environment)
        shoot("asrpt-status-what-if", ["--what-if", "train.sh", "--", "--time=2:00:00"], environment)
        shoot("asrpt-status-watch", ["--watch"], environment, keys="srq")
        settings = (folder / "asrpt.toml").read_text()
        day = folder / "day"
        day.mkdir()
        busy_day(day)
        (day / "asrpt.toml").write_text(settings.replace(f'"{folder}/', f'"{day}/'))
        shoot_pages(day, {**environment, "ASRPT_CONFIG": str(day / "asrpt.toml")})


if __name__ == "__main__":
    main()
