"""Tables of groups; how CSV and JSONL are read is tested with the layouts that consist of them."""

from mcpmix.data.tables import kind_of_groups, read_rows, unknown_ids, write_csv, write_groups


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
    write_groups(tmp_path / "groups.csv", {"a": "p", "b.png": "p", "c": "q"}, guessed=False)
    assert unknown_ids(tmp_path / "groups.csv", [tmp_path / "a.png", tmp_path / "b.png"]) == ["c"]
