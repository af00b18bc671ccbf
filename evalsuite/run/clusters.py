"""Executors on clusters: Dask and SLURM start the processes, in each of which a worker carries out one order.

They only start what works in the run's folder (see `share`): the killable child, not the scheduler, holds the limits
of a job, and what a task says is in its worker's journal, so that no pickled result is ever read.
"""

from __future__ import annotations

import math
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.recipe import Recipe
from evalsuite.results import Status
from evalsuite.run.child import Assignment, Found
from evalsuite.run.executor import ServerLost, failed
from evalsuite.run.share import Shared
from evalsuite.run.worker import work_one

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster
    from submitit import AutoExecutor, Job

_LAG = 5.0  # seconds in which what another machine wrote is here
_ATTEMPTS = 3  # of a task that ends without a word
_ANSWER = 30.0  # seconds that a scheduler may take to answer
_SPARE = 600.0  # seconds more than a job's limit, for its worker to begin
_WAITS = 2  # times its limit that a job may wait, for others to end and to take their times; its own clock stands
_ENDS = {"OUT_OF_MEMORY": Status.OOM, "TIMEOUT": Status.TIMEOUT}  # of SLURM's states; of others one knows no more


class _Cluster(Shared):
    """Orders with a task for each; a task that ended and left its order undone is started again."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        super().__init__(recipe, folder)
        self._over: dict[str, float] = {}  # when a task was first seen to have ended whose order is posted still
        self._attempts: Counter[str] = Counter()

    def _submit(self, assignment: Assignment) -> None:
        raise NotImplementedError

    def _ended(self, key: str) -> str | None:
        """How the order's task ended, in a word; None while it is queued or runs."""
        raise NotImplementedError

    def start(self, assignment: Assignment) -> None:
        super().start(assignment)
        self._attempts[assignment.key] = 1
        self._submit(assignment)

    def _listen(self) -> None:
        """The cluster has its own means to tell whether it has workers."""

    def _told(self) -> list[tuple[Assignment, Found]]:
        told = super()._told()
        for key, assignment in tuple(self._posted.items()):
            how = self._ended(key)
            if how is None or time.monotonic() - self._over.setdefault(key, time.monotonic()) < _LAG:
                continue
            del self._over[key]
            if self._attempts[key] < _ATTEMPTS and how not in _ENDS:
                self._attempts[key] += 1
                self._submit(assignment)
                continue
            del self._posted[key]
            self.share.remove(key)
            reason = f"its task on the cluster ended {self._attempts[key]} times without an outcome: {how}"
            told.append((assignment, failed(assignment, _ENDS.get(how, Status.CRASHED), reason, 0.0)))
        return told


class Dask(_Cluster):
    """Orders as tasks of Dask: of a scheduler that runs, or of worker processes of this machine.

    Args:
        recipe: what is run.
        folder: the run's.
        workers: how many processes, where no scheduler is given.
        scheduler: its address, as tcp://host:8786.
    """

    def __init__(self, recipe: Recipe, folder: Path, workers: int, scheduler: str = "") -> None:
        import distributed  # noqa: F401  # said at once where it is missing

        super().__init__(recipe, folder)
        self._workers, self._scheduler = workers, scheduler
        self._cluster: LocalCluster | None = None
        self._client: Client | None = None
        self._futures: dict[str, Future] = {}

    def _connected(self) -> Client:
        """The client, made for the first job.

        Raises:
            ServerLost: the scheduler does not answer, or one of this machine's workers is killed as it begins.
        """
        import dask
        from distributed import Client, LocalCluster

        if self._client is None:
            # A daemon may not start the process that holds a job's limits.
            dask.config.set({"distributed.worker.daemon": False})
            if not self._scheduler:
                try:
                    self._cluster = LocalCluster(
                        n_workers=self._workers, threads_per_worker=1, dashboard_address=None, memory_limit=0,
                        silence_logs=50,
                    )  # fmt: skip
                except (OSError, RuntimeError) as error:
                    cause = error.__cause__ or error
                    raise ServerLost(f"Dask's worker processes ended as they began: {cause}") from error
            try:
                self._client = Client(self._scheduler or self._cluster, timeout=_ANSWER)
            except (OSError, ValueError) as error:
                raise ServerLost(f"Dask's scheduler {self._scheduler} does not answer: {error}") from error
        return self._client

    @cached_property
    def _hosts(self) -> Mapping[str, list[str]]:
        """The workers' addresses by the machines' names."""
        found: dict[str, list[str]] = defaultdict(list)
        for address, host in self._connected().run(platform.node).items():
            found[host].append(address)
        return found

    def _submit(self, assignment: Assignment) -> None:
        places = None if self._cluster is not None or not assignment.host else self._hosts.get(assignment.host)
        self._futures[assignment.key] = self._connected().submit(
            work_one, str(self.share.folder), assignment.key, pure=False, workers=places
        )

    def _ended(self, key: str) -> str | None:
        future = self._futures[key]
        if not future.done():
            return None
        return str(future.status) if future.status == "finished" else f"{future.status}: {future.exception()!r}"

    def stop(self) -> None:
        """See `Shared.stop`; processes of our own end, and their jobs with them."""
        super().stop()
        self._futures.clear()
        for each in (self._client, self._cluster):
            if each is not None:
                with suppress(Exception):  # Dask may tell of its own end in any way.
                    each.close(timeout=_LAG)
        self._client = self._cluster = None


class Slurm(_Cluster):
    """Orders as arrays of SLURM's jobs, by submitit; where there is no `srun`, as processes of this machine.

    Args:
        recipe: what is run.
        folder: the run's; submitit's files are in its folder `slurm`.
        workers: how many tasks run at a time.
        options: of sbatch, as partition and account.
        cluster: submitit's name of an executor; by default, SLURM where it is.
    """

    def __init__(
        self, recipe: Recipe, folder: Path, workers: int, options: Mapping[str, str], cluster: str | None = None
    ) -> None:
        import submitit

        super().__init__(recipe, folder)
        self._workers, self._options = workers, dict(options)
        self._executor: AutoExecutor = submitit.AutoExecutor(folder / "slurm", cluster=cluster)
        self._batch: list[Assignment] = []
        self._tasks: dict[str, Job[Any]] = {}

    @property
    def free(self) -> int:
        """See `Executor`; without SLURM's queue, no more than run at a time."""
        most = super().free
        return most if self._executor.cluster == "slurm" else min(most, self._workers - len(self._posted))

    def _submit(self, assignment: Assignment) -> None:
        self._tasks.pop(assignment.key, None)
        self._batch.append(assignment)

    def _told(self) -> list[tuple[Assignment, Found]]:
        """Send first what has gathered since: one array for each machine that is asked for.

        Raises:
            ServerLost: SLURM refuses.
        """
        import submitit

        by_host: dict[str, list[Assignment]] = defaultdict(list)
        for each in self._batch:
            by_host[each.host].append(each)
        self._batch.clear()
        for host, batch in by_host.items():
            self._executor.update_parameters(**self._parameters(batch, host))
            keys = [each.key for each in batch]
            try:
                tasks = self._executor.map_array(
                    work_one, [str(self.share.folder)] * len(keys), keys, [True] * len(keys)
                )
            except submitit.core.utils.FailedJobError as error:
                raise ServerLost(f"sbatch takes no jobs: {' '.join(str(error).split())}") from error
            self._tasks |= dict(zip(keys, tasks, strict=True))
        return super()._told()

    def _parameters(self, batch: list[Assignment], host: str) -> dict[str, Any]:
        more = {**self._options, **({"nodelist": host} if host else {})}
        longest = (1 + _WAITS) * max(each.job.time_limit for each in batch) + _SPARE
        limit = max(each.job.memory_limit for each in batch)
        return {
            "timeout_min": math.ceil(longest / 60), "cpus_per_task": 1,
            "slurm_array_parallelism": self._workers, "slurm_additional_parameters": more,
            **({"mem_gb": math.ceil(limit + 1)} if limit else {}),
        }  # fmt: skip

    def _ended(self, key: str) -> str | None:
        task = self._tasks.get(key)
        return task.state if task is not None and task.done() else None

    def stop(self) -> None:
        """See `Shared.stop`; a task that begins later finds its order withdrawn."""
        super().stop()
        self._batch.clear()
        self._tasks.clear()
