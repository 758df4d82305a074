"""Reads from the evidence whether the promises were kept.

The ledger is what producers, handlers and whoever disturbs them wrote down (`records.py`, `runs.py`); the audit is what
triggers of the store wrote down (`audit.py`, `moves.py`). Either is believed only where the other agrees. They have two
clocks: what can be told from tokens and from the order of the audit is told from these, and the rest from one offset.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from msgspec import Struct, field

from faults.evidence.audit import Announced, Change
from faults.evidence.ends import Ends, moments, moments_of_force, succeeded
from faults.evidence.holders import Holders
from faults.evidence.licences import ASKING, SLACK, Licences
from faults.evidence.moves import NEVER, Claim, End, Story, stories
from faults.evidence.records import Record
from faults.evidence.runs import Faults, Run, runs
from faults.experiment import ZEROS, Outcome

TERMINAL = ("completed", "failed", "cancelled")
PLACES = {
    "ready": "pending",
    "scheduled": "pending",
    "running": "processing",
}  # states of jobs, by their table
NEED_AN_AUDIT = ("unlicensed", "after_final", "bad_settles")
EARLY = 0.002  # seconds: stores count in whole milliseconds, and round down
TOLD = 5  # reasons of each kind that are shown


def offset_of_clocks() -> float:
    """How far the wall clock of this host is ahead of its monotonic one."""
    return time.time() - time.monotonic()


class Evidence(Struct, kw_only=True):
    """What is known of a run that has come to rest.

    `states` are the jobs in the store, by id; `effects` how many effects each transactional job has had;
    `pruned` are ids that the store may have forgotten. `grace` is for how many seconds a stopped process may go on
    writing after it was told to. `workers` are those that were announced, by id.

    `refusable` are jobs that may end without a run, for what they ask for cannot be done; `unruly` are those whose
    handlers may end in another way than they know: with a result that cannot be stored, or beyond their time. `keyed`
    are those with a key, which another may replace while they wait, and begin anew.

    `offset` is by how much the audit's clock is ahead of the ledger's; None if that is not known, because somebody has
    turned the clock. Without any record of a producer, whatever is or was in the store counts as acknowledged.
    """

    records: Sequence[Record]
    changes: Sequence[Change] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    effects: Mapping[str, int] | None = None
    pruned: frozenset[str] = frozenset()
    grace: float = 0.0
    workers: Mapping[str, Announced] = field(default_factory=dict)
    refusable: frozenset[str] = frozenset()
    unruly: frozenset[str] = frozenset()
    keyed: frozenset[str] = frozenset()
    offset: float | None = field(default_factory=offset_of_clocks)


class Findings(Struct, kw_only=True):
    """The ids of jobs for which a promise was broken, with the reason; and what was measured.

    `measured` are the counts that there is evidence for, and `at_risk` of how many each of them can have been, where
    that is another number than that of all jobs.
    """

    lost: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    unlicensed: list[str] = field(default_factory=list)
    after_final: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    bad_settles: list[str] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    too_early: list[str] = field(default_factory=list)
    inversions: int = 0
    reruns: dict[str, int] = field(default_factory=dict)  # by what licensed them
    ambiguous: tuple[int, int] = (0, 0)  # in the store, and not
    latency: list[float] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)
    freed: list[float] = field(default_factory=list)  # the part of it until the job could be had by anybody
    measured: tuple[str, ...] = ZEROS
    at_risk: dict[str, int] = field(default_factory=dict)

    def outcome(self, n: int) -> Outcome:
        """The same as the answer of an experiment; the reasons of what is wrong stand in its figures."""
        found = {name: getattr(self, name) for name in LISTS}
        reasons = {name: reasons[:TOLD] for name, reasons in found.items() if reasons}
        wrong = [f"{len(self.too_early)} jobs started before they were due"] if self.too_early else []
        wrong += [f"{self.inversions} jobs ended out of order"] if self.inversions else []
        wrong += ["There is no evidence of anything."] if n and not self.measured else []
        figures: dict[str, object] = {"reruns": dict(self.reruns)}
        if self.latency:
            figures["latency"] = quantiles(self.latency)
        if self.freed:
            figures["seconds from a fault until its jobs were free"] = quantiles(self.freed)
        if any(self.ambiguous):
            figures["ambiguous"] = {"stored": self.ambiguous[0], "not stored": self.ambiguous[1]}
        if reasons:
            figures["reasons"] = reasons
        outcome = Outcome(
            n=n,
            measured=self.measured,
            at_risk=dict(self.at_risk),
            wrong=wrong,
            recovery=list(self.recovery),
            figures=figures,
        )
        for name in ZEROS:
            setattr(outcome, name, len(found[name]))
        return outcome


LISTS = (*ZEROS, "too_early")


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """The usual three, of values that need not be in order."""
    ordered = sorted(values)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[min(int(len(ordered) * q), len(ordered) - 1)], 4) for name, q in at.items()}


def check(evidence: Evidence) -> Findings:
    """Compare the ledger with what the store says of itself."""
    return _Check(evidence).findings


class _Check:
    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.findings = Findings()
        self.runs = runs(evidence.records)
        self.stories = stories(evidence.changes)
        self.faults = Faults(evidence.records)
        self.tried = {r.job: r for r in reversed(evidence.records) if r.what == "try"}
        self.acked = {r.job: r for r in reversed(evidence.records) if r.what == "ok"}
        self.effective = {r.job for r in evidence.records if r.what == "start" and r.effect}
        self.cancels = moments(evidence.records, "cancel")
        self.retries = moments(evidence.records, "retry")
        self.forced = moments_of_force(evidence.records)
        self._producers()
        self._runs()
        self._workers()
        self._effects()
        self._order()
        self._scope()

    def _producers(self) -> None:
        """Lost, vanished, phantom and ambiguous; latency."""
        findings, states, pruned = self.findings, self.evidence.states, self.evidence.pruned
        asked = [r for r in self.evidence.records if r.what in ("try", "ok", "err")]
        audited = {job for job in self.stories if not job.startswith("number ")}
        acked = set(self.acked) if asked else set(states) | audited
        denied = {r.job for r in asked if r.what == "err" and not r.ambiguous} - acked
        known = {record.job for record in asked} - denied if asked else set(states) | audited | pruned
        # Told nothing certain, or dead before it was told anything.
        doubtful = {r.job for r in asked} - acked - denied
        self.stored = acked | (known & (set(states) | audited))
        findings.vanished = sorted(self.stored - set(states) - pruned)
        findings.lost = [
            *(job for job in sorted(self.stored - set(self.runs)) if not self._ended_unrun(job)),
            *_still(states, sorted((self.stored & set(self.runs)) - pruned)),
        ]
        findings.phantom = sorted((set(self.runs) | set(states)) - known - pruned)
        stored = doubtful & (set(states) | pruned)
        findings.ambiguous = (len(stored), len(doubtful - stored))
        for job, ack in self.acked.items():
            if job in self.runs:
                findings.latency.append(max(0.0, self.runs[job][0].began - ack.at))
        findings.latency.sort()

    def _ended_unrun(self, job: str) -> bool:
        """Whether it has ended without a run, as an operator has asked for or as had to be."""
        state = self.evidence.states.get(job)
        if state == "cancelled" and job in self.cancels:
            return True
        return state in ("cancelled", "failed") and job in self.evidence.refusable

    def _runs(self) -> None:
        """Unlicensed reruns, overlaps, starts after the end, and settles that must not be; recovery."""
        evidence, findings = self.evidence, self.findings
        offset, unruly, retries = evidence.offset, evidence.unruly, self.retries
        licences = Licences(
            faults=self.faults, workers=evidence.workers, offset=offset, retries=retries, unruly=unruly
        )
        ends = Ends(
            offset=offset,
            cancels=self.cancels,
            forced=self.forced,
            retries=retries,
            unruly=unruly,
            refusable=evidence.refusable,
            keyed=evidence.keyed,
            licences=licences,
        )
        holders = Holders(faults=self.faults, workers=evidence.workers, offset=offset, grace=evidence.grace)
        for job in sorted({*self.runs, *self.stories}):
            own = self.runs.get(job, [])
            story = self.stories.get(job)
            findings.unlicensed += _told(job, licences.judge(own, story))
            findings.overlaps += _told(job, self._overlaps(own, story))
            findings.too_early += _told(job, self._too_early(job, own))
            late = self._after_final(own, story)
            findings.after_final += [f"{job}: {reason}" for reason in late.values()]
            wrong = self._bad_tokens(own, story)
            if story is not None:
                # What began after the end, or whose tokens are of no use, is told of once.
                in_time = [] if wrong else [run for run in own if run.began not in late]
                wrong += story.bad or self._disagrees(story)
                wrong += ends.judge(own, story, transactional=self._is_transactional(job))
                wrong += holders.judge(in_time, story) + self._acknowledged_early(story)
            findings.bad_settles += _told(job, wrong)
        findings.reruns = licences.reruns
        findings.recovery, findings.freed = sorted(licences.recovery), sorted(licences.freed)

    def _overlaps(self, own: Sequence[Run], story: Story | None) -> list[str]:
        return [
            f"the run with token {after.token} began during that with token {before.token}"
            for before, after in combinations(own, 2)
            if after.began < self._until(before, story) and not self._fenced(before, story)
        ]

    def _until(self, run: Run, story: Story | None) -> float:
        """When a run was over. One that has written no end goes on, unless somebody may have ended its process."""
        killed = self.faults.end_of(run.pid, run.began)
        if run.ended is not None and (killed is None or run.ended <= killed):
            return run.ended
        if killed is not None:
            return killed
        claim = None if story is None else story.claims.get(run.token)
        cancelled = claim is not None and claim.end is not None and claim.end.how == "cancel"
        if cancelled or run.job in self.evidence.unruly or self.faults.asked(run.pid, run.began, NEVER):
            return self.faults.last_word(run.pid, run.began)
        return NEVER

    def _too_early(self, job: str, own: Sequence[Run]) -> list[str]:
        asked = self.tried.get(job)
        if asked is None or asked.due is None:
            return []
        return [
            f"started {asked.due - run.began:.3f} s early" for run in own if run.began < asked.due - EARLY
        ]

    def _after_final(self, own: Sequence[Run], story: Story | None) -> dict[float, str]:
        """Final is the end of the run that succeeded, or the row that says so, whichever is known and first."""
        if story is None or story.completed is None:
            return {}
        token, offset = story.completed.token, self.evidence.offset
        ends = [run.ended for run in own if run.token == token and run.ended is not None and succeeded(run)]
        written = NEVER if offset is None else story.completed.at - offset + SLACK
        final = min(max(ends, default=NEVER), written)
        return {
            run.began: f"started with token {run.token} after it was completed with token {token}"
            for run in own
            if run.began > final and not self.faults.continued(run.pid, run.began, self.evidence.grace)
        }

    def _bad_tokens(self, own: Sequence[Run], story: Story | None) -> list[str]:
        """Tokens rise from run to run, and each was given out."""
        wrong = [
            f"ran with token {after.token} after {before.token}"
            for before, after in pairwise(own)
            if after.token < before.token and not self._fenced(after, story)
        ]
        if story is not None:
            forged = (run.token for run in own if run.token not in story.claims)
            wrong += [f"ran with token {token}, which was given to nobody" for token in forged]
        return wrong

    def _fenced(self, run: Run, story: Story | None) -> bool:
        """Whether its claim was taken from a worker that may not know yet: it was fenced, or an operator used force."""
        claim = story.claims.get(run.token) if story is not None else None
        if claim is None or claim.end is None or not claim.end.taken:
            return False
        worker = self.evidence.workers.get(claim.worker)
        fenced = worker is not None and worker.fenced is not None and worker.fenced < claim.end.sequence
        return fenced or (claim.end.how == "cancel" and self._is_forced(claim, claim.end, run.job))

    def _is_forced(self, claim: Claim, end: End, job: str) -> bool:
        """Whether an operator used force while the claim was held, which is written down before it is tried."""
        offset = self.evidence.offset
        return any(
            offset is None or claim.at - offset - ASKING <= at <= end.at - offset + SLACK
            for at in self.forced.get(job, ())
        )

    def _disagrees(self, story: Story) -> list[str]:
        """What the tables say and what the audit says of them, where both say something, is the same."""
        state = self.evidence.states.get(story.job)
        if state is None or story.last is None:
            return []
        said = (
            "deleted" if story.deleted else story.last.state or PLACES.get(story.last.table, story.last.table)
        )
        return [] if said == state else [f"is {state}, and the audit has it {said}"]

    def _acknowledged_early(self, story: Story) -> list[str]:
        ack, offset = self.acked.get(story.job), self.evidence.offset
        if ack is None or offset is None or story.born is None or story.born.at - offset <= ack.at + SLACK:
            return []
        return [f"was acknowledged {story.born.at - offset - ack.at:.3f} s before it was stored"]

    def _workers(self) -> None:
        lifted = sorted(id for id, worker in self.evidence.workers.items() if worker.lifted)
        self.findings.bad_settles += [f"the worker {id} was fenced, and came back" for id in lifted]

    def _is_transactional(self, job: str) -> bool:
        return job in self.effective or bool((self.evidence.effects or {}).get(job))

    def _effects(self) -> None:
        """One for each completed job that promises one (its start says so) or has one; none for any other."""
        if self.evidence.effects is None:
            return
        for job in sorted({*self.effective, *self.evidence.effects}):
            story = self.stories.get(job)
            completed = self.evidence.states.get(job) == "completed" or (
                story is not None and story.completed is not None
            )
            count, wanted = self.evidence.effects.get(job, 0), 1 if completed else 0
            if count != wanted:
                self.findings.effects.append(f"{job}: {count} effects instead of {wanted}")

    def _scope(self) -> None:
        """Which counts there is evidence for, and of how many each of them is."""
        evidence, findings = self.evidence, self.findings
        without: set[str] = set() if self.effective and evidence.effects is not None else {"effects"}
        if not evidence.changes:
            without |= {*NEED_AN_AUDIT}
        if not self.stored:
            without |= {"lost", "vanished"}
        if not self.runs:
            without |= {"overlaps", "after_final"}
        if not self.runs and not evidence.states:
            without.add("phantom")
        findings.measured = tuple(name for name in ZEROS if name not in without)
        risks = {
            "lost": len(self.stored),
            "vanished": len(self.stored),
            "unlicensed": sum(findings.reruns.values()),
            "effects": len(self.effective),
        }
        findings.at_risk = {name: risk for name, risk in risks.items() if name in findings.measured}

    def _order(self) -> None:
        """How many jobs of one ordering key succeeded for the first time before one that was asked for earlier."""
        keys: dict[str, list[tuple[float, int]]] = {}
        for job, asked in self.tried.items():
            done = [run.ended for run in self.runs.get(job, ()) if run.outcome == "done" and run.ended]
            if asked.order and done:
                keys.setdefault(asked.order, []).append((min(done), asked.sequence))
        for line in keys.values():
            sequences = [sequence for _, sequence in sorted(line)]
            self.findings.inversions += sum(after < before for before, after in pairwise(sequences))


def _still(states: Mapping[str, str], jobs: Iterable[str]) -> Iterator[str]:
    """Those that have begun and have come to no end, although nothing moves any more."""
    for job in jobs:
        if (state := states.get(job, TERMINAL[0])) not in TERMINAL:
            yield f"{job}: is {state} for ever"


def _told(job: str, reasons: Iterable[str]) -> list[str]:
    return [f"{job}: {reason}" for reason in reasons]
