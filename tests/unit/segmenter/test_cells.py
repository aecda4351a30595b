"""All arms with all seeds: what is finished is reused, what is left is made, in the order of the table."""

from functools import partial

from tests.helpers.progress import Recorder

from mcpmix.core.device import setup
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.segmenter.cells import make_cells


def make(key, out, *, runtime, progress):
    progress.say(f"made {out.parent.name} {out.name}")
    with workspace(out, key) as space:
        return space.finish()


def test_what_is_finished_is_reused_and_only_the_rest_is_made(make_config, tmp_path):
    config, runtime = make_config(tmp_path, "runtime.jobs=1"), setup("cpu", "float32", 1, True)
    cells = [("full-sup", 0), ("mcpmix", 0), ("full-sup", 1)]
    keys = {cell: StageKey("toy", {"cell": list(cell)}) for cell in cells}
    work = {cell: (key, partial(make, key)) for cell, key in keys.items()}

    first = Recorder()
    make_cells(config, "evaluation", {cells[0]: work[cells[0]]}, runtime, first)
    assert first.lines == ["made full-sup seed-0"]

    second = Recorder()
    made = make_cells(config, "evaluation", work, runtime, second)
    assert second.lines == ["made mcpmix seed-0", "made full-sup seed-1"]
    assert list(made) == cells
    assert {cell: artifact.digest for cell, artifact in made.items()} == {
        c: k.digest for c, k in keys.items()
    }


def test_one_bar_counts_all_trainings(make_config, tmp_path):
    config, runtime = make_config(tmp_path, "runtime.jobs=1"), setup("cpu", "float32", 1, True)
    work = {("a", seed): (key := StageKey("toy", {"seed": seed}), partial(make, key)) for seed in (0, 1)}
    recorder = Recorder()
    make_cells(config, "segmenter", work, runtime, recorder)
    assert recorder.titles == ["trainings"]
