"""A Progress for tests."""

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
