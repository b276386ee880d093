"""The studio's server: plain JSON about runs for a page of static files."""

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from fastapi.responses import FileResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from tacit.errors import UserError, unknown
from tacit.figures import build, inside, tables
from tacit.serving.guard import Guard, answer_errors
from tacit.studio import people
from tacit.studio.shelf import Shelf, view

BEAT = 0.5  # seconds between two looks at a run
PRIVATE = ("/api/people/",)  # what a stranger on this machine must not read


@dataclass
class Studio:
    """What one studio looks at."""

    shelf: Shelf
    experiments: Path
    token: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)  # streams end with the server
    models: people.Models = field(default_factory=people.Models)


class Start(BaseModel):
    """A run to be started."""

    method: str = Field(min_length=1, max_length=200)
    data: str = Field("ml-100k", max_length=200)
    protocol: str = Field("strict", max_length=20)
    rounds: Annotated[int, Field(ge=1)] | None = None
    seed: int = 0
    settings: str = Field("", max_length=2000)  # key=value, parted by spaces
    folder: str = Field("", max_length=200)

    def words(self) -> list[str]:
        """The same as it would be typed."""
        out = [self.method, "--data", self.data, "--protocol", self.protocol, "--seed", str(self.seed)]
        if self.rounds is not None:
            out += ["--rounds", str(self.rounds)]
        if self.method.startswith("-"):
            raise UserError(f"'{self.method}' is not a method; tacit methods lists them")
        return out + [word for pair in self.settings.split() for word in ("--set", pair)]


def application(studio: Studio, hosts: tuple[str, ...]) -> Guard:
    """The whole studio, behind its guard."""
    app = FastAPI(title="tacit studio", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    answer_errors(app)
    _runs(app, studio)
    _people(app, studio)
    _rest(app, studio)
    _pages(app)
    return Guard(app, hosts, studio.token, PRIVATE)


def _pages(app: FastAPI) -> None:
    home = Path(str(files("tacit.studio") / "page"))
    figures = Path(str(files("tacit.figures")))

    @app.get("/")
    def index() -> FileResponse:
        return FileResponse(home / "index.html")

    for name, folder in (("studio", home), ("figures", figures / "page"), ("vendor", figures / "vendor")):
        app.mount(f"/static/{name}", StaticFiles(directory=folder))


def _runs(app: FastAPI, studio: Studio) -> None:
    shelf = studio.shelf

    @app.get("/api/runs")
    def listing() -> dict[str, Any]:
        return {"runs": shelf.listing(), "roots": [str(root) for root in shelf.roots], "nodes": list(shelf.nodes())}

    @app.get("/api/live/runs")
    async def live_listing() -> StreamingResponse:
        return _stream(studio, shelf.listing, 2 * BEAT)

    @app.get("/api/run/{name:path}")
    def run(name: str) -> dict[str, Any]:
        return view(name, shelf.record(name))

    @app.get("/api/live/run/{name:path}")
    async def live(name: str) -> StreamingResponse:
        await run_in_threadpool(shelf.record, name)
        return _stream(studio, lambda: view(name, shelf.record(name)), BEAT)

    @app.post("/api/start")
    def start(asked: Start) -> dict[str, str]:
        return {"id": shelf.start(asked.words(), asked.folder)}

    @app.post("/api/stop/{name:path}")
    def stop(name: str) -> dict[str, str]:
        shelf.stop(name)
        return {"id": name}

    @app.post("/api/resume/{name:path}")
    def resume(name: str) -> dict[str, str]:
        return {"id": shelf.resume(name)}

    @app.get("/api/choices")
    def choices() -> dict[str, list[str]]:
        from tacit.data import sources
        from tacit.data.protocols import PROTOCOLS
        from tacit.methods import known

        return {"methods": sorted(known()), "data": sources.names(), "protocols": list(PROTOCOLS)}

    @app.get("/api/compare")
    def compare(run: Annotated[list[str], Query(max_length=500)]) -> dict[str, Any]:
        records = shelf.chosen(run)
        return {"tables": tables.tables(records), "figures": build.comparison(records)}


def _people(app: FastAPI, studio: Studio) -> None:
    shelf, models = studio.shelf, studio.models

    @app.get("/api/people/{name:path}")
    def users(name: str, find: str = "", user: str | None = None, k: Annotated[int, Query(ge=1, le=100)] = 10) -> Any:
        if (node := shelf.nodes().get(name)) is not None:
            return {"total": None, "users": []} if user is None else people.of_node(node, user, k)
        model = models.of(shelf.record(name).path)
        return people.users(model, find) if user is None else people.person(model, user, k)

    @app.post("/api/forget/{name:path}")
    def forget(name: str, user: str, k: Annotated[int, Query(ge=1, le=100)] = 10) -> Any:
        if (node := shelf.nodes().get(name)) is not None:
            return people.forget_on_node(node, user)
        return people.forget(models, shelf.record(name).path, user, k)

    @app.get("/api/try/{name:path}")
    def items(name: str) -> Any:
        from tacit.studio import tryout

        return tryout.catalogue(models.of(shelf.record(name).path))

    @app.get("/api/model/{name:path}")
    def model(name: str) -> Response:
        from tacit.studio import tryout

        return Response(tryout.small(models.of(shelf.record(name).path)), media_type="application/octet-stream")


def _rest(app: FastAPI, studio: Studio) -> None:
    shelf = studio.shelf

    @app.get("/api/papers")
    def papers() -> list[dict[str, Any]]:
        return [_paper(file, shelf.roots[0] / file.stem) for file in sorted(studio.experiments.glob("*.toml"))]

    @app.get("/api/papers/{name}")
    def paper(name: str) -> dict[str, Any]:
        from tacit.figures.papers import of_file

        known = {file.stem: file for file in sorted(studio.experiments.glob("*.toml"))}
        if name not in known:
            raise unknown("experiment", name, known)
        return of_file(known[name], shelf.roots[0] / name)

    @app.get("/api/privacy")
    def privacy() -> dict[str, Any]:
        records = list(shelf.records().values())
        lines = [line for record in records for line in record.lines(inside.AUDITS)]
        specs = [s for s in build.comparison(records) if s["name"].startswith("budgets")]
        return {"audits": inside.audits(lines), "refused": _refusals(lines), "budgets": specs}

    @app.get("/api/federation")
    def federation() -> list[dict[str, Any]]:
        from tacit.deploy import monitor

        there = {name: r.path for name, r in shelf.records().items() if (r.path / monitor.FILE).is_file()}
        return [{"id": name, **monitor.status(str(path))} for name, path in there.items()]


def _paper(file: Path, runs: Path) -> dict[str, Any]:
    """An experiment in the list, read without checking its methods: that would load them all."""
    try:
        asked = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        asked = {}
    finished = sum(1 for _ in runs.glob("*/summary.json"))
    data = [str(d.get("name")) for d in asked.get("data", [])]
    return {"name": file.stem, "title": asked.get("title", file.stem), "data": data, "finished": finished}


def _refusals(lines: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(f"{x['method']}, {x['protection']}: {x['refused']}" for x in lines if x.get("refused")))


def _stream(studio: Studio, look: Callable[[], Any], beat: float) -> StreamingResponse:
    """What `look` sees, sent whenever it changes, until the tab or the studio closes."""

    async def events() -> AsyncIterator[str]:
        before, quiet = "", 0.0
        while not studio.stop.is_set():
            try:
                text = await run_in_threadpool(partial(json.dumps, await run_in_threadpool(look)))
            except UserError as error:  # its folder is gone
                yield f"event: gone\ndata: {json.dumps(str(error))}\n\n"
                return
            if text != before:
                yield f"data: {text}\n\n"
                before, quiet = text, 0.0
            elif quiet > 15:
                yield ": still here\n\n"
                quiet = 0.0
            try:
                await asyncio.wait_for(studio.stop.wait(), beat)
            except TimeoutError:
                quiet += beat

    return StreamingResponse(events(), media_type="text/event-stream")
