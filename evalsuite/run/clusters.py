"""Executors on clusters: Dask and SLURM start the processes, in each of which a worker carries out
one order.

They only start what works in the run's folder (see `orders`): the killable child, not the
scheduler, holds the limits of a job, and what a task says is a line of text there, so that no
pickled result is ever read.
"""

from __future__ import annotations

import math
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.recipe import Recipe
from evalsuite.results import Status
from evalsuite.run.child import Assignment, Found
from evalsuite.run.executor import Executor, ServerLost, failed
from evalsuite.run.orders import Orders, order_of
from evalsuite.run.worker import work_one

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster, Worker
    from distributed.security import Security
    from submitit import AutoExecutor, Job

_LOOK = 0.2  # seconds between two looks at the answers
_POSTED = 1000  # orders at a time
_LAG = 5.0  # seconds in which what another machine wrote is here
_ATTEMPTS = 3  # of a task that ends without a word
_ANSWER = 30.0  # seconds that a scheduler may take to answer
_SPARE = 600.0  # seconds more than a job's limit, for its worker to begin
# times its limit that a job may wait, for others to end and to take their times; its own clock
# stands
_WAITS = 2
# of SLURM's states; of others one knows no more
_ENDS = {"OUT_OF_MEMORY": Status.OOM, "TIMEOUT": Status.TIMEOUT}


class _Cluster(Executor):
    """Posts orders in the run's folder, with a task for each; a task that leaves none answered is
    started again.

    Their work is not paused with the driver.
    """

    remote = True

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe, self._folder, self.orders = recipe, folder, Orders(folder)
        self._posted: dict[str, Assignment] = {}
        # when a task was first seen to have ended whose order is posted still
        self._over: dict[str, float] = {}
        self._attempts: Counter[str] = Counter()

    @property
    def free(self) -> int:
        return _POSTED - len(self._posted)

    def _submit(self, assignment: Assignment) -> None:
        raise NotImplementedError

    def _ended(self, key: str) -> str | None:
        """How the order's task ended, in a word; None while it is queued or runs."""
        raise NotImplementedError

    def start(self, assignment: Assignment) -> None:
        self._posted[assignment.key] = assignment
        self.orders.post(order_of(assignment, self._recipe, self._folder))
        self._attempts[assignment.key] = 1
        self._submit(assignment)

    def wait(self, seconds: float) -> list[tuple[Assignment, Found]]:
        until = time.monotonic() + seconds
        while not (ended := self._answers()) and time.monotonic() < until:
            time.sleep(_LOOK)
        return ended

    def _answers(self) -> list[tuple[Assignment, Found]]:
        # 1. Answers that lie in the run's folder, whichever task wrote them.
        ended = []
        for key in self.orders.answered():
            if key in self._posted and (entry := self.orders.take_answer(key)) is not None:
                outcome = Found(
                    **{field.name: getattr(entry, field.name) for field in fields(Found)}
                )
                ended.append((self._posted.pop(key), outcome))
        # 2. Tasks that have ended without an answer: after a while, since a network disk may show
        # a file later than its scheduler tells the end.
        for key in tuple(self._posted):
            how = self._ended(key)
            if (
                how is None
                or time.monotonic() - self._over.setdefault(key, time.monotonic()) < _LAG
            ):
                continue
            del self._over[key]
            # Once more, unless it is an end that would only repeat itself.
            if self._attempts[key] < _ATTEMPTS and how not in _ENDS:
                self._attempts[key] += 1
                self._submit(self._posted[key])
                continue
            # Given up: the job gets a row that says how its task ended.
            assignment = self._posted.pop(key)
            self.orders.remove(key)
            reason = (
                f"its task on the cluster ended {self._attempts[key]} times without an outcome:"
                f" {how}"
            )
            ended.append(
                (assignment, failed(assignment, _ENDS.get(how, Status.CRASHED), reason, 0.0))
            )
        return ended

    def stop(self) -> None:
        """Let each task finish what it has begun, whose results the cache keeps, and withdraw the
        rest.
        """
        for key in self._posted:
            self.orders.remove(key)
        self._posted.clear()
        self.orders.close()


def _security(scheduler: str, *, insecure: bool) -> Security:
    """Who may connect: with the certificate of this run, or those of Dask's configuration.

    Raises:
        ValueError: the scheduler would run the code of whoever reaches it, and nobody has said that
            this is meant.
        ImportError: the library that makes certificates is not installed.
    """
    from distributed.security import Security

    # 1. Without encryption, whoever reaches the scheduler runs code as its user: only where that
    # is meant.
    encrypted = scheduler.startswith("tls://")
    if insecure:
        if encrypted or not scheduler:
            raise ValueError(
                "--insecure is for a --scheduler without TLS, as tcp://HOST:8786; leave it out"
            )
        return Security(require_encryption=False)
    # 2. Own workers: certificates made for this run.
    if not scheduler:
        import cryptography  # noqa: F401  # which Dask does not ask for

        return Security.temporary()
    if not encrypted:
        raise ValueError(
            f"--scheduler {scheduler} is not encrypted: whoever reaches it runs code as you, on all"
            " its workers. Start it with certificates and name it tls://HOST:8786, or add"
            " --insecure where only you can reach it"
        )
    # 3. A scheduler that is there already: the certificates of Dask's own configuration.
    security = Security(require_encryption=True)
    try:
        if security.get_connection_args("client")["ssl_context"] is not None:
            return security
        reason = "it names none"
    except OSError as error:  # a file is missing, or is no certificate
        reason = str(error)
    raise ValueError(
        f"--scheduler {scheduler} takes certificates of Dask's configuration ({reason}): set"
        " distributed.comm.tls.ca-file, client.cert and client.key there, or"
        " DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on"
    )


class Dask(_Cluster):
    """Orders as tasks of Dask: of a scheduler that runs, or of worker processes of this machine.

    Whoever can talk to a scheduler runs code on its workers. Those of this machine take only what
    shows the run's own certificate, which never leaves its processes.

    Args:
        recipe: what is run.
        folder: the run's.
        workers: how many processes, where no scheduler is given.
        scheduler: its address, as tls://host:8786.
        insecure: take a scheduler without TLS.

    Raises:
        ValueError, ImportError: see `_security`.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        workers: int,
        scheduler: str = "",
        *,
        insecure: bool = False,
    ) -> None:
        import distributed  # noqa: F401  # said at once where it is missing

        super().__init__(recipe, folder)
        self._workers, self._scheduler = workers, scheduler
        self._security = _security(scheduler, insecure=insecure)
        self._cluster: LocalCluster | None = None
        self._client: Client | None = None
        self._futures: dict[str, Future] = {}

    def _connected(self) -> Client:
        """The client, made for the first job.

        Raises:
            ServerLost: the scheduler does not answer, or one of this machine's workers is killed as
                it begins.
        """
        import dask
        from distributed import Client

        if self._client is None:
            # A daemon may not start the process that holds a job's limits.
            dask.config.set({"distributed.worker.daemon": False})
            if not self._scheduler:
                self._cluster = self._started()
            try:
                self._client = Client(
                    self._scheduler or self._cluster, timeout=_ANSWER, security=self._security
                )
            except (OSError, ValueError) as error:
                raise ServerLost(
                    f"Dask's scheduler {self._scheduler} does not answer: {error}"
                ) from error
            if self._cluster is not None:
                self._client.run(_hang_up)
        return self._client

    def _started(self) -> LocalCluster:
        """A scheduler and workers of this machine, which only this machine reaches, and without
        pages.

        Raises:
            ServerLost: one of the workers is killed as it begins.
        """
        import dask
        from distributed import LocalCluster

        # No pages of the scheduler or of the workers: they would answer any user of the machine.
        dask.config.set(
            {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
        )
        try:
            cluster = LocalCluster(
                n_workers=self._workers,
                threads_per_worker=1,
                memory_limit=0,
                silence_logs=50,
                host="127.0.0.1",
                protocol="tls://",
                security=self._security,
                dashboard_address=None,
                # None would open 8787, dashboard or not
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            )
        except (OSError, RuntimeError) as error:
            cause = error.__cause__ or error
            raise ServerLost(f"Dask's worker processes ended as they began: {cause}") from error
        cluster.scheduler.http_server.stop()
        return cluster

    @cached_property
    def _hosts(self) -> Mapping[str, list[str]]:
        """The workers' addresses by the machines' names."""
        hosts: dict[str, list[str]] = defaultdict(list)
        for address, host in self._connected().run(platform.node).items():
            hosts[host].append(address)
        return hosts

    def _submit(self, assignment: Assignment) -> None:
        places = (
            None
            if self._cluster is not None or not assignment.host
            else self._hosts.get(assignment.host)
        )
        self._futures[assignment.key] = self._connected().submit(
            work_one, str(self._folder), assignment.key, pure=False, workers=places
        )

    def _ended(self, key: str) -> str | None:
        future = self._futures[key]
        if not future.done():
            return None
        return (
            str(future.status)
            if future.status == "finished"
            else f"{future.status}: {future.exception()!r}"
        )

    def stop(self) -> None:
        """Processes of our own end, and their jobs with them; else what a task has begun it
        finishes.
        """
        super().stop()
        self._futures.clear()
        for part in (self._client, self._cluster):
            if part is not None:
                with suppress(Exception):  # Dask may tell of its own end in any way.
                    part.close(timeout=_LAG)
        self._client = self._cluster = None


def _hang_up(dask_worker: Worker) -> None:
    """Close the port on which a worker tells of itself, encrypted or not."""
    dask_worker.http_server.stop()


class Slurm(_Cluster):
    """Orders as arrays of SLURM's jobs, by submitit; where there is no `srun`, as processes of this
    machine.

    Args:
        recipe: what is run.
        folder: the run's; submitit's files are in its folder `slurm`.
        workers: how many tasks run at a time.
        options: of sbatch, as partition and account.
        cluster: submitit's name of an executor; by default, SLURM where it is.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        workers: int,
        options: Mapping[str, str],
        cluster: str | None = None,
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
        return (
            most
            if self._executor.cluster == "slurm"
            else min(most, self._workers - len(self._posted))
        )

    def _submit(self, assignment: Assignment) -> None:
        self._tasks.pop(assignment.key, None)
        self._batch.append(assignment)

    def _answers(self) -> list[tuple[Assignment, Found]]:
        """Send first what has gathered since: one array for each machine that is asked for.

        Raises:
            ServerLost: SLURM refuses.
        """
        import submitit

        # Jobs are gathered, since a scheduler takes one array faster than many jobs.
        by_host: dict[str, list[Assignment]] = defaultdict(list)
        for task in self._batch:
            by_host[task.host].append(task)
        self._batch.clear()
        for host, batch in by_host.items():
            self._executor.update_parameters(**self._parameters(batch, host))
            keys = [task.key for task in batch]
            try:
                tasks = self._executor.map_array(
                    work_one, [str(self._folder)] * len(keys), keys, [True] * len(keys)
                )
            except submitit.core.utils.FailedJobError as error:
                raise ServerLost(f"sbatch takes no jobs: {' '.join(str(error).split())}") from error
            self._tasks |= dict(zip(keys, tasks, strict=True))
        return super()._answers()

    def _parameters(self, batch: list[Assignment], host: str) -> dict[str, Any]:
        more = {**self._options, **({"nodelist": host} if host else {})}
        longest = (1 + _WAITS) * max(assignment.job.time_limit for assignment in batch) + _SPARE
        limit = max(assignment.job.memory_limit for assignment in batch)
        return {
            "timeout_min": math.ceil(longest / 60),
            "cpus_per_task": 1,
            "slurm_array_parallelism": self._workers,
            "slurm_additional_parameters": more,
            **({"mem_gb": math.ceil(limit + 1)} if limit else {}),
        }

    def _ended(self, key: str) -> str | None:
        task = self._tasks.get(key)
        return task.state if task is not None and task.done() else None

    def stop(self) -> None:
        """A task that begins later finds its order withdrawn."""
        super().stop()
        self._batch.clear()
        self._tasks.clear()
