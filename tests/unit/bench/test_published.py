"""The paper's figures, and the note that stands below them."""

from mcpmix.bench.published import published, published_table, what_differs
from mcpmix.bench.tables import KINDS
from mcpmix.config_file import resolve_config


def test_the_published_tables_are_complete():
    tables = published()["tables"]
    assert {name: {key: len(rows) for key, rows in found.items()} for name, found in tables.items()} == {
        "mixing": {"kvasir-seg": 10, "piccolo": 10, "cvc-clinicdb": 10, "npc-les": 10, "isic-2017": 10},
        "boundary": {"kvasir-seg": 10, "piccolo": 10, "cvc-clinicdb": 10, "npc-les": 10},
        "generative": {"npc-les": 4},
        "ablation": {"kvasir-seg": 3, "piccolo": 3, "cvc-clinicdb": 3, "npc-les": 3},
        "backbones": {"npc-les": 8},
        "schedules": {"npc-les": 3},
    }
    for kind, found in tables.items():
        columns = 12 if kind == "boundary" else 5
        for rows in found.values():
            assert all(len(row) == columns for row in rows.values())
            assert {name.split("/")[-1] for name in rows} <= set(KINDS[kind].arms)
    # The same experiment has the same figures wherever the paper shows it.
    for name in ("kvasir-seg", "piccolo", "cvc-clinicdb", "npc-les"):
        assert tables["mixing"][name]["mcpmix-rla"] == tables["ablation"][name]["mcpmix-rla"]


def test_a_table_that_the_paper_does_not_have_is_empty():
    assert published_table("mixing", "my-own") == {}
    assert published_table("pairs", "kvasir-seg") == {}


def test_the_note_names_only_what_differs():
    paper = published()
    config = resolve_config({"preset": "paper", "data": {"source": "kvasir-seg", "root": "somewhere"}})
    note = what_differs(config, "44", "kvasir-seg", [paper["seeds"], 2])
    assert f"labelled images: 44, theirs all; seeds: 2 to {paper['seeds']}, theirs {paper['seeds']}" in note
    assert "pixels a side" not in note
    same = what_differs(config, "all", "kvasir-seg", [paper["seeds"]])
    assert "nothing that the paper names" in same
