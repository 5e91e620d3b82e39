"""How far a rank is, as its push lane sees it: with and without streams."""

from splash_core.engine.progress import StepProgress
from splash_core.ids import StepId

LAYERS = 4


class Event:
    """A fence that the test lets pass."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


def test_layers_of_the_present_step_and_all_of_those_before() -> None:
    progress = StepProgress(LAYERS)
    assert [progress.layers_done(StepId(step)) for step in (0, 1)] == [LAYERS, 0]
    progress.begin(StepId(5))
    assert progress.layers_done(StepId(5)) == 0
    progress.reached(3)
    assert [progress.layers_done(StepId(step)) for step in (4, 5, 6)] == [LAYERS, 3, 0]
    progress.end()
    assert [progress.layers_done(StepId(step)) for step in (5, 6)] == [LAYERS, 0]
    progress.begin(StepId(6))
    assert [progress.layers_done(StepId(step)) for step in (5, 6)] == [LAYERS, 0]


def test_what_is_only_enqueued_is_not_done() -> None:
    progress, events = StepProgress(LAYERS), [Event() for _ in range(4)]
    made = iter(events)
    progress.begin(StepId(1))
    progress.reached(2, lambda: next(made))
    progress.end(lambda: next(made))
    progress.begin(StepId(2))
    progress.reached(1, lambda: next(made))
    assert progress.layers_done(StepId(1)) == 0
    events[0].passed = True
    assert progress.layers_done(StepId(1)) == 2
    events[2].passed = True  # a stream runs in order: what is enqueued later cannot have passed before
    assert [progress.layers_done(StepId(step)) for step in (1, 2)] == [2, 0]
    events[1].passed = True
    assert [progress.layers_done(StepId(step)) for step in (1, 2)] == [LAYERS, 1]


def test_fences_that_nobody_asks_about_are_dropped() -> None:
    progress, event = StepProgress(LAYERS), Event()
    event.passed = True
    for step in range(1, 100):
        progress.begin(StepId(step))
        progress.end(lambda: event)
        progress.poll()
    assert len(progress._marks) == 0
