"""What the page is made from: artefacts, read."""

from collections.abc import Mapping
from dataclasses import dataclass

from mcpmix.config import Config
from mcpmix.core.jsonl import JsonLines
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.index import DatasetIndex
from mcpmix.report.charts import LogRow
from mcpmix.report.scores import Groups, by_group, read_scores
from mcpmix.report.tables import Run, Table, boundary_columns, build_table, read_summary, region_columns

HEADLINE = "dsc"
"""The metric that sentences, groups and cases are about."""


@dataclass(frozen=True)
class Source:
    """All that the page is made from."""

    config: Config
    index: DatasetIndex
    pairs: Artifact | None
    segmenters: Mapping[Run, Artifact]
    evaluations: Mapping[Run, Artifact]
    leaks: str = ""  # why figures on the test part are too good

    @property
    def arms(self) -> list[str]:
        """Names of the arms in their order."""
        return list(dict.fromkeys(arm for arm, _ in self.evaluations))

    @property
    def group_word(self) -> str:
        """What a group is, in the plural."""
        return "patients" if self.config.data.source == "phantom" else "groups"

    @property
    def test_groups(self) -> int:
        """Number of test groups."""
        return len({record.group for record in self.index.part("test")})

    @property
    def tail_from(self) -> int | None:
        """Last epoch of the schedules, if epochs follow it."""
        return self.config.train.epochs if self.config.train.tail_epochs else None

    def table(self) -> Table:
        """All metrics: region, then boundary."""
        summaries = {run: read_summary(item / "summary.json") for run, item in self.evaluations.items()}
        return build_table(
            summaries, (*region_columns(), *boundary_columns(self.config.evaluation.tolerances))
        )

    def scores(self) -> dict[Run, dict[str, float]]:
        """DSC of each test image."""
        ids = [record.id for record in self.index.part("test")]
        return {
            run: read_scores(item / "scores.csv", HEADLINE, ids) for run, item in self.evaluations.items()
        }

    def groups(self) -> Groups:
        """DSC by arm, test group and seed."""
        return by_group(self.scores(), {record.id: record.group for record in self.index.part("test")})

    def logs(self) -> dict[Run, list[LogRow]]:
        """Rows of the training logs."""
        return {run: list(JsonLines(item / "log.jsonl").rows()) for run, item in self.segmenters.items()}
