"""The studio's pages and answers, and the server around them."""

import json
import socket
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.background import BackgroundTask

from mcpmix import __version__
from mcpmix.core.errors import DataError, McpmixError, StorageError
from mcpmix.core.pixels import Pixels
from mcpmix.data.sample import read_mask
from mcpmix.report import page_templates
from mcpmix.studio.guard import LOOPBACK, App, Guard, TooLargeError
from mcpmix.studio.pairs import BankView, BlindTests, Filter, to_csv
from mcpmix.studio.pictures import Thumbnails, read_depth, read_sample, small_sample, to_png
from mcpmix.studio.reading import AbsentError, inside, look_up
from mcpmix.studio.runs import Runs, RunView, flat
from mcpmix.studio.trainings import MOST_BYTES, Predictions, image_scores, new_rows, segmenters_of

_STATIC = Path(__file__).parent / "static"
_MOST_BANKS = 2  # kept in memory
_PORTS = 20  # ports that are tried if the first one is taken

Text = Annotated[str, Query(max_length=500)]


class Studio:
    """All that answers share.

    Args:
        folder: with runs below it.
        read_only: whether nothing may be written: no judgements, no thumbnails.
    """

    def __init__(self, folder: Path, token: str, *, read_only: bool = False) -> None:
        if not folder.is_dir():
            raise StorageError(f"{folder} is not a folder. Expected one with runs below it, such as runs/.")
        self.runs, self.token, self.read_only = Runs(folder), token, read_only
        self.named = str(folder)  # as the user knows it
        self.thumbnails = Thumbnails(None if read_only else self.runs.folder / ".studio" / "thumbnails")
        self.predictions, self.blind = Predictions(self.runs), BlindTests()
        self._kept_bank = lru_cache(_MOST_BANKS)(lambda identity: BankView(self.runs.get(identity)))
        self._pages = page_templates("mcpmix.studio")
        self._pages.filters["time"] = _time
        self._pages.globals["spread"] = _spread

    def page(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """A page; all that it shows is escaped."""
        shared = {"token": self.token, "read_only": self.read_only, "version": __version__}
        text = self._pages.get_template(template).render({**shared, "run": None, **values})
        return HTMLResponse(text, status)

    def bank(self, run: RunView) -> BankView:
        """The bank of a run with all rows that are there by now."""
        bank = self._kept_bank(run.id)
        bank.run = run
        bank.refresh()
        return bank

    def in_grid(self, identity: str) -> dict[str, Any]:
        """What the page of a grid shows: the grid, the runs of its inputs by group, and all warnings."""
        grid = self.runs.grid(identity)
        members = {run.group: run for run in self.runs.members(grid)}
        found = {pair: None for run in members.values() for pair in run.warnings}  # each once
        return {"grid": grid, "runs": members, "found": [*grid.failures.items(), *found]}

    def require_writing(self) -> None:
        """Raise a StorageError if nothing may be written."""
        if self.read_only:
            raise StorageError("The studio was started with --read-only, so nothing can be judged.")

    def prepare(self, run: RunView) -> None:
        """Read the bank of a run, and make its thumbnails in the background."""
        with suppress(McpmixError):  # the page gets the message when it asks
            self.thumbnails.prepare(self.bank(run).thumbnails())


def _png(pixels: Pixels) -> Response:
    return Response(to_png(pixels), media_type="image/png", headers={"cache-control": "private, max-age=600"})


def _made(page: Path | None) -> Response:
    """A page that a run or a grid has made, which brings its own styles; it can run nothing."""
    if page is None or not page.is_file():
        raise AbsentError
    policy = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
    return FileResponse(page, media_type="text/html", headers={"content-security-policy": policy})


def _time(seconds: float | None) -> str:
    """A duration in one unit."""
    if seconds is None:
        return "–"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _spread(spread: Any) -> str:  # noqa: ANN401 (as a table has it)
    """Mean and deviation of a table's cell."""
    from mcpmix.report.tables import spread_text  # its statistics take a second to load

    return spread_text(spread)


# --- pages ----------------------------------------------------------------------------------------------


def pages(studio: Studio) -> APIRouter:
    """Lists, grids, and what belongs to no run."""
    router, runs = APIRouter(), studio.runs

    @router.get("/")
    def index() -> Response:
        return studio.page("runs.html", runs=runs.all(), grids=runs.grids(), folder=studio.named)

    @router.get("/table")
    def table() -> Response:
        return studio.page("runs_table.html", runs=runs.all(), grids=runs.grids())

    @router.get("/compare")
    def compare(run: Annotated[list[str], Query(max_length=20)]) -> Response:
        chosen = [runs.get(identity) for identity in run]
        settings = [dict(flat(each.config)) for each in chosen]
        names = sorted({name for found in settings for name in found} - {"output"})
        rows = [(name, [found.get(name, "–") for found in settings]) for name in names]
        differing = [(name, values) for name, values in rows if any(value != values[0] for value in values)]
        return studio.page("compare.html", chosen=chosen, rows=differing)

    @router.get("/try")
    def try_it() -> Response:
        members = [run for grid in runs.grids() for run in runs.members(grid)]
        found = [segmenter for run in [*runs.all(), *members] for segmenter in segmenters_of(run)]
        return studio.page("try.html", segmenters=found, most_bytes=MOST_BYTES)

    @router.get("/grids/{grid}")
    def of_grid(grid: str) -> Response:
        return studio.page("grid.html", **studio.in_grid(grid))

    @router.get("/grids/{grid}/state")
    def state(grid: str) -> Response:
        return studio.page("grid_state.html", **studio.in_grid(grid))

    @router.get("/grids/{grid}/page")
    def made_by_grid(grid: str) -> Response:
        return _made(runs.grid(grid).page)

    return router


def run_pages(studio: Studio) -> APIRouter:
    """The pages of a run."""
    router, runs = APIRouter(), studio.runs

    @router.get("/runs/{run}")
    def one(run: str) -> Response:
        return studio.page("run.html", run=runs.get(run))

    @router.get("/runs/{run}/flow")
    def flow(run: str) -> Response:
        return studio.page("run_flow.html", run=runs.get(run))

    @router.get("/runs/{run}/pairs")
    def wall(run: str) -> Response:
        found = runs.get(run)
        answer = studio.page("pairs.html", run=found, finished=found.artifact("pairs") is not None)
        # A large ledger takes a while to read: the page is there before, and asks for the rest.
        answer.background = BackgroundTask(studio.prepare, found)
        return answer

    @router.get("/runs/{run}/blind")
    def blind(run: str) -> Response:
        return studio.page("blind.html", run=runs.get(run))

    @router.get("/runs/{run}/training")
    def training(run: str) -> Response:
        found = runs.get(run)
        colours = {arm.name: [arm.label, arm.colour] for arm in found.named_arms}
        return studio.page("training.html", run=found, arms=found.named_arms, colours=colours)

    @router.get("/runs/{run}/results")
    def result(run: str) -> Response:
        found = runs.get(run)
        shown: list[tuple[str, Any]] = []
        report = found.artifact("report")
        if report is not None:
            content = json.loads((report / "table.json").read_text(encoding="utf-8"))
            shown = [("Test images", content)]
            shown += [("New images of known groups", content["known"])] if "known" in content else []
        return studio.page("results.html", run=found, tables=shown, arms=found.named_arms)

    @router.get("/runs/{run}/report")
    def made_by_run(run: str) -> Response:
        report = runs.get(run).artifact("report")
        return _made(None if report is None else inside(report.folder, "report.html"))

    return router


# --- answers to the script ------------------------------------------------------------------------------


def answers(studio: Studio) -> APIRouter:
    """What the script of the pages asks for."""
    router, runs = APIRouter(), studio.runs

    @router.get("/api/runs/{run}/pairs")
    def pairs(
        run: str,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1)] = 100,
        state: Text = "",
        reason: Text = "",
        group: Text = "",
        prompt: Annotated[str, Query(max_length=2000)] = "",
        text: Text = "",
        score: Text = "",
        low: float = float("-inf"),
        high: float = float("inf"),
        choices: bool = False,
    ) -> Response:
        wanted = Filter(state, reason, group, prompt, text, score, low, high)
        bank = studio.bank(runs.get(run))
        more = {"choices": bank.choices()} if choices else {}
        return JSONResponse(bank.page(wanted, offset, limit) | more)

    @router.get("/api/runs/{run}/pairs/{number}")
    def pair(run: str, number: int) -> Response:
        return JSONResponse(studio.bank(runs.get(run)).detail(number))

    @router.post("/api/runs/{run}/pairs/{number}/verdict")
    def judge(
        run: str,
        number: int,
        who: Annotated[str, Body(max_length=100)],
        verdict: Annotated[str, Body(max_length=20)],
        word: Annotated[str, Body(max_length=500)] = "",
    ) -> Response:
        studio.require_writing()
        bank = studio.bank(runs.get(run))
        bank.book.judge(bank.row(number), who, verdict, word)
        return JSONResponse(bank.detail(number))

    @router.get("/runs/{run}/review.csv")
    def export(run: str) -> Response:
        text = to_csv(studio.bank(runs.get(run)).book.rows())
        name = {"content-disposition": 'attachment; filename="review.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=name)

    @router.post("/api/runs/{run}/blind")
    def start(run: str, who: Annotated[str, Body(max_length=100)], count: Annotated[int, Body()]) -> Response:
        studio.require_writing()
        name = studio.blind.start(studio.bank(runs.get(run)), who, count)
        return JSONResponse({"test": name, "count": len(studio.blind.get(name).shown)})

    @router.get("/api/blind/{test}/{place:int}.png")
    def blind_picture(test: str, place: int) -> Response:
        found = studio.blind.get(test)
        if place > len(found.answers):
            raise AbsentError  # not its turn yet
        return _png(found.picture(place))

    @router.post("/api/blind/{test}/{place}")
    def answer(test: str, place: int, real: Annotated[bool, Body(embed=True)]) -> Response:
        studio.require_writing()
        return JSONResponse(studio.blind.get(test).answer(place, real))

    @router.get("/api/runs/{run}/logs")
    def logs(run: str, known: Annotated[str, Query(max_length=20_000)] = "") -> Response:
        marks = dict(part.rsplit("=", 1) for part in known.split(",") if "=" in part)
        found = runs.get(run)
        return JSONResponse({"state": found.state[0], "cells": new_rows(found, marks)})

    @router.get("/api/runs/{run}/scores")
    def scores(run: str, part: Text = "test", metric: Text = "dsc", seed: Text = "") -> Response:
        return JSONResponse(image_scores(runs.get(run), part, metric, seed))

    @router.post("/api/predict")
    async def predict(request: Request, segmenter: Text, name: Text = "") -> Response:
        content = await request.body()
        return JSONResponse(await run_in_threadpool(studio.predictions.predict, segmenter, content, name))

    return router


# --- pictures -------------------------------------------------------------------------------------------


def pictures(studio: Studio) -> APIRouter:
    """Pictures, found by run and id or number; no path is made from a request."""
    router, runs = APIRouter(), studio.runs

    @router.get("/runs/{run}/thumbnail")
    def thumbnail(run: str, number: int = -1, id: Text = "") -> Response:
        bank = studio.bank(runs.get(run))
        key, read = bank.real_thumbnail(id) if id else bank.thumbnail(number)
        headers = {"cache-control": "private, max-age=86400"}
        return Response(studio.thumbnails.get(key, read), media_type="image/jpeg", headers=headers)

    @router.get("/runs/{run}/synthetic")
    def counterpart(run: str, number: int) -> Response:
        return _png(studio.bank(runs.get(run)).picture(number))

    @router.get("/runs/{run}/sample/{what}")
    def sample(run: str, what: str, id: Text) -> Response:
        found = runs.get(run)
        record = look_up(studio.bank(found).records, id)
        if what in ("image", "mask"):  # as training sees it
            return _png(small_sample(record, what, found.size))
        if what in ("original", "truth"):
            return _png(read_sample(record, "image" if what == "original" else "mask"))
        if what == "depth":
            return _png(read_depth(found.folder / "depth", record.id))
        raise AbsentError

    @router.get("/runs/{run}/prediction")
    def prediction(run: str, id: Text, arm: Text, seed: int) -> Response:
        found = runs.get(run)
        record = look_up(studio.bank(found).records, id)
        cell = look_up(found.finished_cells("evaluation"), (arm, seed))
        mask = read_mask(inside(cell / "predictions", f"{record.id}.png"), record.labels)
        return _png((mask > 0) * mask.dtype.type(255))

    return router


# --- the server -----------------------------------------------------------------------------------------


def build_app(folder: Path, token: str, *, read_only: bool = False, host: str = LOOPBACK[0]) -> App:
    """The whole application, guarded."""
    studio = Studio(folder, token, read_only=read_only)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for part in (pages, run_pages, answers, pictures):
        app.include_router(part(studio))
    app.mount("/static", StaticFiles(directory=_STATIC))

    def refuse(request: Request, status: int, text: str) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return studio.page("error.html", status, text=text)
        return JSONResponse({"error": text}, status)

    @app.exception_handler(McpmixError)
    def known(request: Request, error: Exception) -> Response:
        return refuse(request, 409 if isinstance(error, StorageError) else 400, str(error))

    @app.exception_handler(AbsentError)
    def absent(request: Request, error: Exception) -> Response:
        return refuse(request, 404, str(error))

    @app.exception_handler(TooLargeError)
    def too_large(request: Request, _error: Exception) -> Response:
        return refuse(request, 413, f"The file is too large; at most {MOST_BYTES // 1_000_000} MB are taken.")

    return Guard(app, token=token, host=host, largest=MOST_BYTES)


def bind(host: str, port: int) -> socket.socket:
    """A socket at a port, or at one of the next ones if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + _PORTS, 65536)):
        # With the protocol named, asyncio turns off Nagle's algorithm, which would cost 40 ms a request.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)  # who opens the printed address at once waits, and is not refused
        except OSError as error:
            listener.close()
            problem = error
            continue
        return listener
    raise DataError(
        f"Cannot listen at {host}, ports {port} to {port + _PORTS - 1}: {problem}. Name another port."
    )


def address(listener: socket.socket, token: str) -> str:
    """What a browser opens."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}"


def make_server(app: App) -> uvicorn.Server:
    """A server; `run(sockets=[listener])` answers until Ctrl+C."""
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False, access_log=False))
