from mcpmix.bench.sheets import Item, Sheet, to_latex, to_markdown

SHEET = Sheet(
    "Title & more",
    ["method", "DSC ↑", "p"],
    [
        [Item("set_1: 3 images", "head")],
        [Item("a|b"), Item("70.0 ± 1.0", "best"), Item("−1")],
        [Item("c"), Item("60.0 ± 1.0", "second"), Item("50 %", "theirs")],
        [Item("set_2", "head")],
        [Item("d"), Item(""), Item("–")],
    ],
    ["A note, 95 %."],
)


def test_markdown():
    lines = to_markdown(SHEET).splitlines()
    assert lines[0] == "### Title & more"
    table = [line for line in lines if line.startswith("|")]
    assert table[1] == "| --- | ---: | ---: |"
    assert table[2] == "| **set_1: 3 images** |  |  |"
    assert table[3] == r"| a\|b | **70.0 ± 1.0** | −1 |"
    assert table[4] == "| c | <u>60.0 ± 1.0</u> | *50 %* |"
    assert lines[-1] == "A note, 95 %."


def test_latex_for_booktabs():
    text = to_latex(SHEET, "mixing")
    assert r"\caption{Title \& more}" in text
    assert r"\label{tab:mixing}" in text
    assert r"\begin{tabular}{lrr}" in text
    assert r"method & DSC $\uparrow$ & p \\" in text
    assert r"\multicolumn{3}{l}{\textbf{set\_1: 3 images}} \\" in text
    assert r"a|b & \textbf{70.0 $\pm$ 1.0} & $-$1 \\" in text
    assert r"c & \underline{60.0 $\pm$ 1.0} & \textit{50 \%} \\" in text
    for rule, count in ((r"\toprule", 1), (r"\bottomrule", 1), (r"\midrule", 4)):
        assert text.count(rule) == count
    assert text.count("{") == text.count("}")
