"""Tables with any delimiter, what is not a table, and tables of groups."""

import pytest

from mcpmix.core.errors import DataError
from mcpmix.data.convert import write_groups
from mcpmix.data.tables import kind_of_groups, read_rows, unknown_ids, write_csv


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv_with_any_delimiter_a_byte_order_mark_and_ragged_rows(tmp_path, mark):
    path = tmp_path / "a.csv"
    path.write_text(f"\ufeffID {mark} Group\na{mark} x \n\nb\nc{mark}y{mark}more\n", encoding="utf-8")
    rows = read_rows(path)
    assert [(row.line, dict(row.values)) for row in rows] == [
        (2, {"id": "a", "group": "x"}),
        (4, {"id": "b", "group": ""}),
        (5, {"id": "c", "group": "y"}),
    ]
    assert rows[0].place == f"{path}, line 2"


def test_jsonl_gives_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"ID": 7, "group": null}\n\n{"id": " b"}\n')
    assert [(row.line, dict(row.values)) for row in read_rows(path)] == [
        (1, {"id": "7", "group": ""}),
        (3, {"id": " b"}),
    ]


def test_what_is_written_comes_back(tmp_path):
    rows = [{"id": "a, b", "group": 'say "x"'}, {"id": "é", "group": ""}]
    write_csv(tmp_path / "a.csv", rows)
    assert [dict(row.values) for row in read_rows(tmp_path / "a.csv")] == rows


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("a.csv", None, "does not exist"),
        ("a.csv", b"", "has no rows"),
        ("a.csv", b"id,group\n", "has no rows"),
        ("a.csv", b"id\nM\xfcller\n", "cannot be read"),
        ("a.jsonl", b"{", "line 1: "),
        ("a.jsonl", b"{}\n[1]", "line 2: expected a JSON object, got [1]"),
    ],
)
def test_what_is_not_a_table(tmp_path, name, content, fact):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_rows(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert fact in str(caught.value)


# --- tables of groups ------------------------------------------------------------------------------------


def test_a_table_says_whether_its_groups_were_guessed(tmp_path):
    table = tmp_path / "groups.csv"
    write_groups(table, {"a": "p", "b": "p"}, guessed=True)
    assert kind_of_groups(table) == "guessed group"
    assert [row.values["group"] for row in read_rows(table)] == ["p", "p"]
    write_groups(table, {"a": "p", "b": "p"}, guessed=False)
    assert kind_of_groups(table) == "group"
    assert "guessed" not in table.read_text()
    write_csv(table, [{"id": "a", "group": "p", "guessed": "no"}])
    assert kind_of_groups(table) == "group"
    assert kind_of_groups(None) == ""


def test_ids_that_no_image_has(tmp_path):
    table, images = tmp_path / "groups.csv", [tmp_path / "a.png", tmp_path / "b.png", tmp_path / "007.png"]
    write_groups(table, dict.fromkeys(("a", "b.png", "7", "c"), "p"), guessed=False)
    assert unknown_ids(table, images) == f"1 id in {table} belongs to no image: c"
    assert unknown_ids(table, [*images, tmp_path / "c.png"]) == ""
    write_groups(table, dict.fromkeys("acdefgh", "p"), guessed=False)
    assert unknown_ids(table, images) == f"6 ids in {table} belong to no image: c, d, e, f, g, ..."
