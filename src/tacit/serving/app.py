"""Recommendations for applications, over HTTP."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field

from tacit.core.workers import cores
from tacit.errors import UserError
from tacit.serving.counts import Counted, Counts
from tacit.serving.guard import Guard, answer_errors, plain
from tacit.serving.source import Ask, Source

Count = Annotated[int, Field(ge=1, le=1000, description="lines of a list")]
Name = Annotated[str, Field(max_length=500)]
Names = Annotated[list[Name], Field(max_length=10_000)]


class Question(BaseModel):
    """For one person: a user of the model, or somebody new by what they have, the oldest first."""

    model_config = ConfigDict(extra="forbid")

    user: Name | None = Field(None, description="id of a user of the model")
    items: Names = Field([], description="for somebody new: ids or titles of what they have, the oldest first")
    k: Count = 10
    exclude: Names = Field([], description="items that must not be on the list")
    only: Names = Field([], description="items that alone may be on the list")
    why: bool = Field(False, description="name the items of the history that brought each line")


class Questions(BaseModel):
    """Several at once."""

    model_config = ConfigDict(extra="forbid")

    requests: Annotated[list[Question], Field(min_length=1, max_length=1000)]


class Reason(BaseModel):
    """An item of the history, and what it adds to the score."""

    item: str
    title: str
    share: float


class Line(BaseModel):
    """One recommendation."""

    item: str
    title: str
    score: float
    why: list[Reason] | None = None


class Answer(BaseModel):
    """A list, the best first."""

    recommendations: list[Line]
    user: str | None = None
    items: list[str] | None = None
    why: str | None = Field(None, description="exact: shares add up to the score; nearest: cosines; none")


class Error(BaseModel):
    """What is wrong, in one sentence."""

    error: str


def application(source: Source, hosts: tuple[str, ...]) -> Guard:
    """The whole service, behind its guard."""
    app = FastAPI(
        title="tacit serve",
        version=version("tacit"),
        description="Recommendations from a trained model.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    answer_errors(app)
    counts = Counts()
    pool = ThreadPoolExecutor(cores(), thread_name_prefix="rank")
    wrong: dict[int | str, dict[str, Any]] = {status: {"model": Error} for status in (400, 404, 410, 413, 421, 422)}
    plainly: dict[str, Any] = {"response_model": Answer, "response_model_exclude_none": True, "responses": wrong}

    async def ranked(call: Callable[[], Any]) -> Any:
        """In a worker: while one product is computed, others are read and answered."""
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    @app.get("/recommend/{user}", summary="A list for a user of the model", **plainly)
    async def by_user(
        user: str,
        k: Annotated[int, Query(ge=1, le=1000)] = 10,
        exclude: Annotated[list[Name] | None, Query()] = None,
        only: Annotated[list[Name] | None, Query()] = None,
        why: bool = False,
    ) -> JSONResponse:
        return JSONResponse(await ranked(lambda: source.answer(Ask(user, (), k, exclude or (), only or (), why))))

    @app.post("/recommend", summary="A list for a user, or from items for somebody new", **plainly)
    async def by_items(question: Question) -> JSONResponse:
        return JSONResponse(await ranked(lambda: source.answer(_ask(question))))

    @app.post("/batch", summary="Several lists; one that cannot be made has an error in its place", responses=wrong)
    async def batch(questions: Questions) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(ranked(partial(_either, source, q)) for q in questions.requests)))

    @app.get("/health", summary="Whether it answers, and what with")
    async def health() -> dict[str, Any]:
        about: dict[str, Any] = await ranked(source.about)
        return {"ok": True} | about

    @app.get("/metrics", summary="Counts and times for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(counts.text(source.reloads), media_type="text/plain; version=0.0.4")

    home, look = Path(str(files("tacit.serving") / "page")), Path(str(files("tacit.figures") / "page"))

    @app.get("/", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(home / "docs.html")

    app.mount("/static/docs", StaticFiles(directory=home))
    app.mount("/static/figures", StaticFiles(directory=look))
    return Guard(Counted(app, counts), hosts)


def _ask(question: Question) -> Ask:
    return Ask(**question.model_dump())


def _either(source: Source, question: Question) -> dict[str, Any]:
    try:
        return source.answer(_ask(question))
    except UserError as error:
        return {"error": plain(str(error))}
