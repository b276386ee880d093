"""The figures of a published table or figure as files, as the report draws them.

python tools/pictures.py hetefedrec-table2 docs/results/data/hetefedrec-table2.json docs/images/papers

takes a folder of runs or a file of `tacit results --save`, needs the browser that `make browser` brings, and writes one
SVG a figure, named after the experiment. A number behind it stands for the rounds that were run in place of the file's.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tacit.figures import papers, report
from tacit.runs import archive

BROWSER = "/usr/bin/chromium-headless-shell"


def pictures(name: str, runs: Path, out: Path, rounds: int | None = None) -> list[Path]:
    """Draw what is finished of an experiment in `runs`."""
    with archive.opened(runs) as folder:
        found = papers.of_file(Path(name), folder, rounds)
    made = []
    with tempfile.TemporaryDirectory() as place, sync_playwright() as play:
        page = Path(place) / "page.html"
        report.write(report.empty(found["title"], found["source"]) | {"figures": found["figures"]}, page)
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        view = browser.new_page()
        view.goto(page.as_uri())
        for button in view.get_by_label("Save figure as SVG").all():
            with view.expect_download() as saving:
                button.click()
            made.append(out / saving.value.suggested_filename)
            saving.value.save_as(made[-1])
        browser.close()
    return made


if __name__ == "__main__":
    name, runs, out, *rounds = sys.argv[1:]
    for path in pictures(name, Path(runs), Path(out), int(rounds[0]) if rounds else None):
        print(path)
