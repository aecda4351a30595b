"""Compiled loops over pixels: counts, boundaries, exact squared distances and boundary bands.

Everything works on `uint8` masks with values 0 and 1 and on the frame of a pair: the smallest rectangle that
holds both foregrounds, widened by the radius of the band. All boundary pixels lie in the frame, so distances
found in it are those of the whole image. A squared distance is an integer, so it is exact.

The kernels release the interpreter lock and touch only the arrays they are given. They are small, and index
by unsigned numbers (which need no check for counting from the end), so that the first call compiles in about
a second and loops become vector instructions.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[Any]  # masks of uint8, gaps of uint16 or uint32, the rest int64
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Index = np.uintp

# The searches may look at this many times the pixels of the frame before the rows are solved in linear time.
# Lesions stay far below; scattered pixels far from the other mask do not.
_SEARCH_BUDGET = 8


def compiled(function: _Function) -> _Function:
    """Compile at the first call; keep the machine code on disk where a cache folder can be written."""
    try:
        kernel = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # read-only installation and no user cache: compile once per process
        kernel = numba.njit(nogil=True, error_model="numpy")(function)
    return cast(_Function, kernel)


@compiled
def survey(
    truth: Integers, prediction: Integers, columns: Integers
) -> tuple[int, int, int, int, int, int, int]:
    """Count the ones of two (H, W) masks and find the smallest rectangle that holds them all.

    `columns` is a (W,) workspace.

    Returns:
        (ones of truth, ones of prediction, ones of both, first row, row after the last, first column, column
        after the last). The rectangle is empty when both masks are.
    """
    height, width = truth.shape
    truth_ones = prediction_ones = common_ones = 0
    top, bottom = height, 0
    for j in range(width):
        columns[j] = 0
    for i in range(height):
        first = truth[i]
        second = prediction[i]
        a = b = c = 0
        for j in range(width):
            a += first[j]
            b += second[j]
            c += first[j] & second[j]
        if a or b:
            for j in range(width):
                columns[j] |= first[j] | second[j]
            top = min(top, i)
            bottom = i + 1
            truth_ones += a
            prediction_ones += b
            common_ones += c
    left, right = 0, width
    while left < width and columns[left] == 0:
        left += 1
    while right > left and columns[right - 1] == 0:
        right -= 1
    return truth_ones, prediction_ones, common_ones, top, bottom, left, right


@compiled
def outline(mask: Integers, top: int, left: int, padded: Integers, border: Integers) -> None:
    """Mark the boundary of an (H, W) mask: its ones with at least one of four neighbours outside.

    The (h, w) frame from `top` and `left` on, `border`, receives 1 at boundary pixels, 0 elsewhere; `padded`
    is an (h + 2, w + 2) workspace.
    """
    height, width = _Index(border.shape[0]), _Index(border.shape[1])
    row, column = _Index(top), _Index(left)
    zero, one, two = _Index(0), _Index(1), _Index(2)
    for j in range(width + two):
        padded[zero, j] = 0
        padded[height + one, j] = 0
    for i in range(height):
        padded[i + one, zero] = 0
        for j in range(width):
            padded[i + one, j + one] = mask[row + i, column + j]
        padded[i + one, width + one] = 0
    for i in range(height):
        for j in range(width):
            above_below = padded[i, j + one] & padded[i + two, j + one]
            beside = padded[i + one, j] & padded[i + one, j + two]
            border[i, j] = padded[i + one, j + one] & ((above_below & beside) ^ np.uint8(1))


@compiled
def measure_columns(border: Integers, far: int, gaps: Integers) -> None:
    """Measure, column by column, how far the boundary is above or below each pixel; all arrays are (h, w).

    `far` is larger than any distance in the frame, and stands for "no boundary in this column".
    """
    height, width = gaps.shape
    number = gaps.dtype.type  # 16-bit sums stay 16 bits wide, so that one instruction does many
    for j in range(width):
        gaps[0, j] = far if border[0, j] == 0 else 0
    for i in range(1, height):
        edge = border[i]
        above = gaps[i - 1]
        here = gaps[i]
        for j in range(width):
            here[j] = number(above[j] + 1) if edge[j] == 0 else number(0)
    for i in range(height - 2, -1, -1):
        below = gaps[i + 1]
        here = gaps[i]
        for j in range(width):
            nearer = number(below[j] + 1)
            here[j] = nearer if nearer < here[j] else here[j]


@compiled
def measure(pixels: Integers, gaps: Integers, squared: Integers) -> float:
    """Measure the distance from every boundary pixel of one mask to the boundary of the other.

    Each pixel looks left and right in its own row until nothing nearer can come. That is a few steps for
    masks that resemble each other, and too many for scattered pixels far away: then the kernel gives up and
    `measure_rows` does the work.

    Args:
        pixels: (n,) flat positions of the boundary pixels of the one mask in the frame, in rising order.
        gaps: (h, w) column distances of the other.
        squared: (n,) receives the squared distances.

    Returns:
        Sum of the distances; -1 if the kernel gave up.
    """
    width = gaps.shape[1]
    budget = _SEARCH_BUDGET * gaps.size
    total = 0.0
    i, row_start = 0, 0
    for n in range(pixels.size):
        while pixels[n] - row_start >= width:  # a division per pixel would take longer
            i += 1
            row_start += width
        row = gaps[i]
        column = pixels[n] - row_start
        gap = np.int64(row[column])
        best = gap * gap
        step = 1
        while step * step < best and (step <= column or column + step < width):
            if step <= column:
                gap = np.int64(row[column - step])
                best = min(best, gap * gap + step * step)
            if column + step < width:
                gap = np.int64(row[column + step])
                best = min(best, gap * gap + step * step)
            step += 1
        squared[n] = best
        total += math.sqrt(best)
        budget -= step
        if budget < 0:
            return -1.0
    return total


@compiled
def _solve_row(gaps: Integers, solved: Integers, starts: Integers, columns: Integers) -> None:
    """Squared distances of all pixels of one row: the lower envelope of one parabola per column."""
    width = gaps.size
    top = -1
    for u in range(width):
        gap = np.int64(gaps[u])
        # A parabola that is below its predecessor already where that one starts makes it useless.
        while top >= 0:
            c, start = columns[top], starts[top]
            rival = np.int64(gaps[c])
            if (start - c) * (start - c) + rival * rival <= (start - u) * (start - u) + gap * gap:
                break
            top -= 1
        begin = 0
        if top >= 0:
            c = columns[top]
            rival = np.int64(gaps[c])
            begin = (gap * gap + u * u - rival * rival - c * c) // (2 * (u - c)) + 1
        if begin < width:
            top += 1
            columns[top] = u
            starts[top] = begin
    for j in range(width - 1, -1, -1):
        c = columns[top]
        gap = np.int64(gaps[c])
        solved[j] = (j - c) * (j - c) + gap * gap
        if j == starts[top]:
            top -= 1


@compiled
def measure_rows(pixels: Integers, gaps: Integers, squared: Integers, work: Integers) -> float:
    """Measure the same as `measure`, in time proportional to the frame whatever the masks are.

    `work` is a (3, w) workspace. Returns the sum of the distances.
    """
    width = gaps.shape[1]
    solved = -1
    total = 0.0
    for n in range(pixels.size):
        row = pixels[n] // width
        if row != solved:
            _solve_row(gaps[row], work[0], work[1], work[2])
            solved = row
        best = work[0, pixels[n] % width]
        squared[n] = best
        total += math.sqrt(best)
    return total


@compiled
def mark_band(gaps: Integers, reach: Integers, band: Integers) -> None:
    """Mark the pixels within a radius of a boundary: the (h, w) `band` receives 1 there, 0 elsewhere.

    Args:
        gaps: (h, w) column distances of the boundary.
        reach: (R + 1,) how far a disc of the radius goes up and down at the horizontal offsets 0 to R.
    """
    height, width = _Index(gaps.shape[0]), _Index(gaps.shape[1])
    for i in range(height):
        limit = reach[0]
        for j in range(width):
            band[i, j] = gaps[i, j] <= limit
        for offset in range(_Index(1), min(_Index(reach.size), width)):
            limit = reach[offset]
            for j in range(width - offset):
                band[i, j] |= gaps[i, j + offset] <= limit
            for j in range(width - offset):
                band[i, j + offset] |= gaps[i, j] <= limit
