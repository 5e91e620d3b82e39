"""Robust least squares with a prior, in plain Python (Levenberg 1944, Marquardt 1963; weights by Huber 1964).

    minimise  Σ_i w_i · ρ(r_i(x)) + Σ_j ((x_j − m_j) / s_j)²

Deterministic, for some hundred residuals of some twenty unknowns. Residuals beyond the Huber width count
linearly, so no outlier decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Vector = list[float]
Matrix = list[list[float]]
Residuals = Callable[[Vector], Vector]

_STEP = 1e-4
_ROUNDS = 60
_ENOUGH = 1e-5
"""Relative decrease at which the search ends."""
_MOST_DAMPING = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is minimised."""

    residuals: Residuals
    weights: Sequence[float]
    means: Sequence[float]
    """m: what an unknown is before anything is measured; the search begins there."""
    deviations: Sequence[float]
    """s."""
    width: float
    """Of the Huber loss."""


def solve(problem: Problem) -> Vector:
    """The unknowns."""
    x = list(problem.means)
    residuals = problem.residuals(x)
    cost = _cost(problem, x, residuals)
    damping = 1e-2
    for _ in range(_ROUNDS):
        normal, slope = _normal_equations(problem, x, residuals)
        while damping < _MOST_DAMPING:
            step = _solved(_damped(normal, damping), slope)
            tried = [value + change for value, change in zip(x, step, strict=True)]
            tried_residuals = problem.residuals(tried)
            tried_cost = _cost(problem, tried, tried_residuals)
            if tried_cost < cost:
                break
            damping *= 4
        else:
            return x
        enough = cost - tried_cost < _ENOUGH * cost
        x, residuals, cost = tried, tried_residuals, tried_cost
        damping /= 4
        if enough:
            return x
    return x


def _cost(problem: Problem, x: Vector, residuals: Vector) -> float:
    width = problem.width
    total = 0.0
    for weight, value in zip(problem.weights, residuals, strict=True):
        size = abs(value)
        total += weight * (value * value if size <= width else width * (2 * size - width))
    for value, mean, deviation in zip(x, problem.means, problem.deviations, strict=True):
        total += ((value - mean) / deviation) ** 2
    return total


def _normal_equations(problem: Problem, x: Vector, residuals: Vector) -> tuple[Matrix, Vector]:
    """JᵀWJ + prior, and the direction −JᵀWr − prior's slope."""
    size = len(x)
    columns: list[Vector] = []
    for place in range(size):
        moved = [*x]
        moved[place] += _STEP
        changed = problem.residuals(moved)
        columns.append([(after - before) / _STEP for before, after in zip(residuals, changed, strict=True)])
    weights = [
        weight * min(1.0, problem.width / max(abs(value), 1e-300))
        for weight, value in zip(problem.weights, residuals, strict=True)
    ]
    weighted = [[value * weight for value, weight in zip(column, weights, strict=True)] for column in columns]
    normal = [[_dot(weighted[row], columns[column]) for column in range(size)] for row in range(size)]
    slope = [-_dot(weighted[row], residuals) for row in range(size)]
    for place, deviation in enumerate(problem.deviations):
        normal[place][place] += 1 / deviation**2
        slope[place] -= (x[place] - problem.means[place]) / deviation**2
    return normal, slope


def _damped(normal: Matrix, damping: float) -> Matrix:
    return [
        [value * (1 + damping) if row == column else value for column, value in enumerate(values)]
        for row, values in enumerate(normal)
    ]


def _solved(matrix: Matrix, right: Vector) -> Vector:
    """Cholesky: the matrix is symmetric and, thanks to the prior, positive definite."""
    size = len(right)
    lower = [[0.0] * size for _ in range(size)]
    for row in range(size):
        for column in range(row + 1):
            rest = matrix[row][column] - _dot(lower[row][:column], lower[column][:column])
            lower[row][column] = max(rest, 1e-300) ** 0.5 if row == column else rest / lower[column][column]
    forward: Vector = []
    for row in range(size):
        forward.append((right[row] - _dot(lower[row][:row], forward)) / lower[row][row])
    answer = [0.0] * size
    for row in reversed(range(size)):
        below = sum(lower[after][row] * answer[after] for after in range(row + 1, size))
        answer[row] = (forward[row] - below) / lower[row][row]
    return answer


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
