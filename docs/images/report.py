"""Take the pictures of the report page in the docs, with Chromium.

Run as `python docs/images/report.py FOLDER`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.simulate import Trace, simulate

sys.path.append(str(Path(__file__).parents[2] / "examples/notebooks"))
from sample_log import write_access_log

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# The width and height of each picture, and whether it is dark.
PICTURES = {"report-desk.png": (1280, 900, False), "report-phone.png": (390, 900, True)}


def take(folder: Path) -> list[Path]:
    """Write the report of a synthetic log, and a picture of it at two widths."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise SystemExit("a browser must be there: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        log = write_access_log(Path(scratch) / "access.log", events=20_000, seed=7, hours=4.0)
        trace = Trace.from_log(log)
        trace.name = "access.log"
        page = simulate({"Pages": "10 per minute, burst 20"}, trace).report(f"{scratch}/out.html")
        for name, (width, height, is_dark) in PICTURES.items():
            arguments = [
                "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--blink-settings=preferredColorScheme={0 if is_dark else 1}",
                f"--user-data-dir={scratch}/profile", f"--window-size={width},{height}",
                f"--screenshot={(folder / name).absolute()}", page.absolute().as_uri(),
            ]  # fmt: skip
            subprocess.run(  # noqa: S603  the program was found above
                [program, *arguments], check=True, capture_output=True, timeout=120
            )
    return [folder / name for name in PICTURES]


if __name__ == "__main__":
    take(Path(sys.argv[1]))
