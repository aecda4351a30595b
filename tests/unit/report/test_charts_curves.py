"""Curves from log rows."""

import math

from mcpmix.report.charts import Curve, curve, curves_of, mean_curve


def test_missing_and_undefined_epochs_are_left_out():
    rows = [
        {"epoch": 1, "s": 0.35, "discrepancy": math.nan},
        {"epoch": 2, "discrepancy": 0.5, "validation": {"dsc": 60.0}},
        {"epoch": 3, "s": 0.3, "discrepancy": math.inf, "validation": None},
    ]
    assert curve(rows, "s") == Curve((1, 3), (0.35, 0.3))
    assert curve(rows, "discrepancy") == Curve((2,), (0.5,))
    assert curve(rows, "validation.dsc") == Curve((2,), (60.0,))
    assert not curve(rows, "validation.miou")


def test_curves_of_an_arm_in_the_order_of_seeds():
    logs = {
        ("mcpmix-rla", 2): [{"epoch": 1, "s": 0.2}],
        ("mcpmix-rla", 1): [{"epoch": 1, "s": 0.1}],
        ("full-sup", 0): [{"epoch": 1, "loss": 1.0}],
        ("mcpmix-rla", 10): [],
    }
    assert [found.values for found in curves_of(logs, "mcpmix-rla", "s")] == [(0.1,), (0.2,)]
    assert curves_of(logs, "full-sup", "s") == []


def test_the_mean_is_over_epochs_that_all_have():
    curves = [Curve((1, 2, 3), (1.0, 2.0, 3.0)), Curve((2, 3, 4), (4.0, 7.0, 9.0))]
    assert mean_curve(curves) == Curve((2, 3), (3.0, 5.0))
    assert mean_curve([]) == Curve((), ())
