"""The end of a checkpoint's logs: which batches are whole, and from which one a query can go on."""

from __future__ import annotations

from sparkkafka.checkpoints.logs import COMMITS, OFFSETS, Checkpoint, Commit, Plan
from sparkkafka.errors import CheckpointError


class LastBatches:
    """The last batches, each file read or known as damaged."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        numbers = sorted({*checkpoint.planned, *checkpoint.committed})
        if not numbers:
            raise CheckpointError(
                f"{checkpoint.location}: no batch was planned yet, so there is nothing to reset: "
                "start the query with startingOffsets"
            )
        self.last = numbers[-1]
        self.plans: dict[int, Plan | None] = {}
        self.commits: dict[int, Commit | None] = {}
        self.damage: dict[str, str] = {}
        # Down to the first batch that is whole: what comes before is not needed.
        for number in reversed(numbers):
            self._read(number)
            if self.is_sound(number):
                if number - 1 in checkpoint.planned:
                    self._read(number - 1)
                break

    def _read(self, number: int) -> None:
        for folder, there, read, found in (
            (OFFSETS, self.checkpoint.planned, self.checkpoint.plan, self.plans),
            (COMMITS, self.checkpoint.committed, self.checkpoint.commit, self.commits),
        ):
            if number in found or number not in there:
                continue
            try:
                found[number] = read(number)  # type: ignore[assignment]
            except CheckpointError as error:
                found[number] = None
                self.damage[f"{folder}/{number}"] = str(error)

    def is_sound(self, number: int) -> bool:
        return self.plans.get(number) is not None and self.commits.get(number) is not None

    def state_of(self, number: int) -> str:
        """What is wrong with a batch that is not sound."""
        wrong = [
            self.damage[name]
            for name in (f"{OFFSETS}/{number}", f"{COMMITS}/{number}")
            if name in self.damage
        ]
        if wrong:
            return f"cannot be read: {'; '.join(wrong)}"
        if number in self.commits:
            return "is finished, and its plan is missing"
        return "is planned and not finished"

    def last_sound(self, before: int) -> int:
        found = [number for number in self.plans if number < before and self.is_sound(number)]
        if not found:
            raise CheckpointError(
                f"{self.checkpoint.location}: without batch {before} there is no finished batch "
                "to go on from. Start the query with a new checkpoint and startingOffsets"
            )
        return max(found)

    def names_after(self, number: int) -> list[str]:
        """The files of later batches, the latest first. A batch loses its commit first: without
        its plan it would be one that Spark cannot start from."""
        there = {
            *((batch, 0, f"{COMMITS}/{batch}") for batch in self.checkpoint.committed),
            *((batch, 1, f"{OFFSETS}/{batch}") for batch in self.checkpoint.planned),
        }
        ordered = sorted(there, key=lambda row: (-row[0], row[1]))
        return [name for batch, _, name in ordered if batch > number]

    def base(self, number: int) -> tuple[Plan, list[str]]:
        """The plan that the new one is made from, and what to know of it."""
        plan = self.plans.get(number)
        if plan is not None:
            return plan, []
        earlier = [one for one, found in self.plans.items() if found is not None and one < number]
        if not earlier:
            raise CheckpointError(
                f"{self.checkpoint.location}: no plan of a batch can be read, so nobody knows "
                "what the query reads. Start it with a new checkpoint and startingOffsets"
            )
        found = self.plans[max(earlier)]
        if found is None:  # never: it was looked for
            raise CheckpointError(f"{self.checkpoint.location}: no plan can be read")
        return found, [
            f"the new plan of batch {number} is made from that of batch {found.batch_id}: offsets "
            "that are not set go back to that, for all sources"
        ]

    def commit_text(self, number: int) -> str:
        """commits/`number`, as Spark would have written it."""
        before = [one for one in self.commits.values() if one is not None and one.batch_id < number]
        if before:
            return max(before, key=lambda one: one.batch_id).text
        plan = self.plans.get(number)
        watermark_ms = plan.watermark_ms if plan is not None else None
        return f'v1\n{{"nextBatchWatermarkMs":{watermark_ms or 0}}}'
