"""Patients: plain parameters that depend on seed and number only."""

import dataclasses

from mcpmix.phantom import patient_style


def test_patient_style_is_plain_and_repeatable():
    style = patient_style(3, 5)
    assert style == patient_style(3, 5)
    assert style != patient_style(3, 6)
    for value in dataclasses.asdict(style).values():
        for part in value if isinstance(value, tuple) else (value,):
            assert type(part) in (float, int, str)
