"""Progress for tests."""

from contextlib import contextmanager


class Recorder:
    """Progress that remembers the titles of tasks, the tasks with their counts, all steps and all lines."""

    def __init__(self):
        self.titles, self.tasks, self.steps, self.lines = [], [], [], []

    @contextmanager
    def track(self, title, total, done=0):
        self.titles.append(title)
        self.tasks.append((title, total, done))
        yield lambda steps=1, note="": self.steps.append((steps, note))

    def say(self, message):
        self.lines.append(message)


class Kill(Recorder):
    """Stops a task at its second step."""

    def __init__(self, title):
        super().__init__()
        self.title = title

    @contextmanager
    def track(self, title, total, done=0):
        steps = []

        def advance(count=1, note=""):
            steps.append(count)
            if title == self.title and len(steps) == 2:
                raise KeyboardInterrupt

        yield advance
