import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.light_makers import Broken, Failing, Killed, Light, cannot_be_built, making, picture

from mcpmix.core.errors import TrainingError
from mcpmix.generator.workers import Request, WorkerPool


def pool_of(make_maker, workers=1):
    return WorkerPool(partial(making, make_maker), workers=workers)


def ask_and_wait(pool):
    return pool.submit([Request(0, 0)]).result()


@pytest.mark.parametrize("workers", [1, 3])
def test_every_batch_comes_back_with_its_own_images(workers):
    pool = pool_of(Light, workers)
    try:
        batches = [[Request(i, i + 1), Request(i, i + 2)] for i in range(3)] + [[Request(9, 9)]]
        made = [pool.submit(batch) for batch in batches]
        for batch, future in zip(batches, made, strict=True):
            for request, image in zip(batch, future.result(), strict=True):
                assert np.array_equal(image[:2], picture(request.index, request.replica)[:2])
    finally:
        pool.close()
    assert not active_children()


@pytest.mark.parametrize(
    ("make_maker", "message"),
    [
        (Failing, "Counterparts cannot be made: the ControlNet has no weights for this"),
        (Broken, "Counterparts cannot be made: ZeroDivisionError: division by zero"),
        (cannot_be_built, "Counterparts cannot be made: no such base"),
        (Killed, r"ended unexpectedly \(exit code -9\)"),
    ],
)
def test_what_happens_in_a_worker_reaches_the_parent_as_one_message(make_maker, message):
    pool = pool_of(make_maker)
    try:
        with pytest.raises(TrainingError, match=message):
            ask_and_wait(pool)
    finally:
        pool.close()
    assert not active_children()


def test_a_batch_for_a_worker_that_has_ended_says_why():
    pool = pool_of(cannot_be_built)
    try:
        pool.processes[0].join()
        with pytest.raises(TrainingError, match="no such base"):
            ask_and_wait(pool)
    finally:
        pool.close()


def test_closing_does_not_wait_for_a_long_batch():
    pool = pool_of(partial(Light, 60.0))
    pool.submit([Request(0, 0)])
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 30
    assert not active_children()


PARENT = """
    import signal
    from functools import partial
    from tests.helpers.light_makers import Light
    from mcpmix.generator.workers import Request
    from tests.unit.generator.test_workers import pool_of

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
        pool = pool_of(partial(Light, 60.0), workers=2)
        try:
            asked = pool.submit([Request(0, 0)])
            print(*(process.pid for process in pool.processes), flush=True)
            asked.result()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        finally:
            pool.close()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_no_worker_outlives_its_parent(tmp_path, number):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)  # as a terminal does: to parent and workers alike
        else:
            parent.kill()
        out, errors = parent.communicate(timeout=60)
    finally:
        parent.kill()
        parent.wait()
    if number == signal.SIGINT:
        assert (parent.returncode, out, errors) == (0, "interrupted\n", "")
    deadline = time.monotonic() + 60
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")  # a zombie whose new parent does not reap is no process any more
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")
