"""The builds that are broken on purpose: what is broken in each, and who must notice."""

from faults.breaking import Duel, Mutant, Patch, Run, Test, Worlds

CLAIMED = "    if leases:\n        moved = (json.encode(lanes).decode(), *_position(leases[-1]), now)\n"
WITHOUT_LOCK = """    if leases:
        import time
        yield SqlText("COMMIT")
        time.sleep(0.003)
        while True:
            try:
                yield SqlText("BEGIN IMMEDIATE")
                break
            except Exception:
                time.sleep(0.001)
        moved = (json.encode(lanes).decode(), *_position(leases[-1]), now)
"""
RESCUED = (
    "        ends.append((row, ended, row.settled_token))\n    moves = yield from move(submit, now, ends)\n"
)
WITHOUT_STATE = """        ends.append((row, ended, row.settled_token))
    if ends:
        import time
        from shigoto.engine.sql.commands import SqlText
        yield SqlText("COMMIT")
        time.sleep(1.2)
        while True:
            try:
                yield SqlText("BEGIN IMMEDIATE")
                break
            except Exception:
                time.sleep(0.001)
    moves = yield from move(submit, now, ends)
"""
COMMITTED = """            value = drive(op.start(), lambda command: execute(self._connection, command))
            self._plainly("COMMIT")
"""
WITHOUT_TRANSACTION = """            self._plainly("COMMIT")
            self._plainly("BEGIN IMMEDIATE")
            value = drive(op.start(), lambda command: execute(self._connection, command))
            self._plainly("COMMIT")
"""
DIRECTLY = "                    value = self._write_directly(connection, direct)\n"
ACKNOWLEDGED_EARLY = f"""                    if connection.in_transaction:
                        connection.execute("COMMIT")
                    connection.execute("BEGIN IMMEDIATE")
{DIRECTLY}"""
TICKED = """    last = yield from _fire(dialect, now, news)
    yield from _write(news, last)
"""
TICKED_TWICE = """    yield from _write(news, {})
    if any(change.firings for change in news):
        import time
        from shigoto.engine.sql.commands import SqlText
        yield SqlText("COMMIT")
        time.sleep(0.4)
        while True:
            try:
                yield SqlText("BEGIN IMMEDIATE")
                break
            except Exception:
                time.sleep(0.001)
    last = yield from _fire(dialect, now, news)
"""
TICKING = "engine/sql/ticking.py"
ANY_REVISION = Patch(TICKING, "heard.append(known.get(name) == change.sight)", "heard.append(name in known)")
CONFORMANCE = "tests/engines/test_sqlite.py"
ALIVE = "\n  AND EXISTS (SELECT 1 FROM shigoto_worker WHERE id = ?2 AND fenced_at IS NULL)"
HOLDER = f"r.worker = ?2{ALIVE}\n\n-- The same for runs"
PATH_SQL = "engine/sqlite/statements/path.sql"

# One test stands for the other: a token is given to one worker only, and a worker has each job once.
HALF = "the other half of the test still refuses whatever comes from others"
BEATS = Run("E10", ("taken from workers that lived", "unlicensed"))

MUTANTS = (
    Mutant(
        name="a completion is accepted with any token",
        patches=(
            Patch(PATH_SQL, f"WHERE r.token = e.value ->> 1 AND {HOLDER}", f"WHERE {HOLDER}"),
            Patch(PATH_SQL, "WHERE r.token = ?4 AND r.worker = ?2", "WHERE ?4 = ?4 AND r.worker = ?2"),
        ),
        guard=Test(CONFORMANCE, "test_an_older_lease_of_a_job_that_the_same_worker_runs_again_ends_nothing"),
        alone=HALF,
    ),
    Mutant(
        name="a completion is accepted from any worker",
        patches=(
            Patch(
                PATH_SQL,
                f"WHERE r.token = e.value ->> 1 AND {HOLDER}",
                f"WHERE r.token = e.value ->> 1 OR {HOLDER}",
            ),
            Patch(PATH_SQL, "WHERE r.token = ?4 AND r.worker = ?2", "WHERE r.token = ?4 AND ?2 = ?2"),
        ),
        guard=Test(CONFORMANCE, "test_another_workers_lease_is_refused"),
        alone=HALF,
    ),
    Mutant(
        name="a completion is accepted with any token and from any worker",
        patches=(
            Patch(
                PATH_SQL,
                f"WHERE r.token = e.value ->> 1 AND {HOLDER}",
                "WHERE ?2 = ?2\n\n-- The same for runs",
            ),
            Patch(PATH_SQL, f"WHERE r.token = ?4 AND r.worker = ?2{ALIVE}", "WHERE ?4 = ?4 AND ?2 = ?2"),
        ),
        guard=Test(CONFORMANCE, "test_another_workers_lease_is_refused"),
        run=Run("E03", ("bad_settles", "after_final"), tries=3),
    ),
    Mutant(
        name="a claim reads and takes in two transactions",
        patches=(Patch("engine/sqlite/claiming.py", CLAIMED, WITHOUT_LOCK),),
        guard=Test(CONFORMANCE, "test_no_job_is_given_out_twice"),
        run=Run("E29", ("bad_settles", "unlicensed", "overlaps"), tries=3),
    ),
    Mutant(
        name="an enqueue is acknowledged before its commit",
        patches=(
            Patch("engine/sqlite/driver.py", DIRECTLY, ACKNOWLEDGED_EARLY),
            Patch(
                "engine/sqlite/driver.py",
                '        self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))\n',
                "        if connection.in_transaction:\n"
                '            connection.execute("COMMIT")\n'
                '        self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))\n',
            ),
        ),
        guard=Duel("kill after the last word"),
        run=Run("E02", ("acknowledged and is not there",), tries=3),
    ),
    Mutant(
        name="beats come from the event loop, and nobody vouches",
        patches=(
            Patch("worker/keeper.py", '            if self._beats == "loop":\n', "            if True:\n"),
            Patch(
                "worker/supervisor/store.py",
                "        await asyncio.sleep(pause)\n        pause = _until_next",
                "        await asyncio.sleep(86_400 + pause)\n        pause = _until_next",
            ),
        ),
        guard=BEATS,
        run=BEATS,
    ),
    Mutant(
        name="a worker is fenced at the first look",
        # Who was asleep itself waits for the others, and that alone would be enough: so that is broken, too.
        patches=(
            Patch("worker/maintenance.py", "ripe = now - self.apart", "ripe = now"),
            Patch("worker/maintenance.py", "if asleep or not self._in_touch:", "if not self._in_touch:"),
        ),
        guard=Worlds("memory", 0, 300),
        run=Run("E04", ("A sleep cost",), tries=3),
    ),
    Mutant(
        name="a worker is fenced at once after an outage",
        patches=(
            Patch(
                "worker/maintenance.py",
                "self._no_fence_before = now + self._amnesty",
                "self._no_fence_before = now",
            ),
        ),
        guard=Worlds("memory", 0, 300),
    ),
    Mutant(
        name="a sweep puts jobs back that have been settled meanwhile",
        # A worker that is fenced is not heard any more, and that alone would be enough: so that is broken, too.
        patches=(
            Patch("engine/sql/repairing.py", RESCUED, WITHOUT_STATE),
            Patch(PATH_SQL, HOLDER, HOLDER.replace(ALIVE, "")),
            Patch(
                PATH_SQL,
                f"WHERE r.token = ?4 AND r.worker = ?2{ALIVE}",
                "WHERE r.token = ?4 AND r.worker = ?2",
            ),
        ),
        guard=Duel("sweep against settle"),
        run=Run("E03", ("bad_settles", "after_final"), tries=3),
    ),
    Mutant(
        name="a rescue counts as settled by the worker that lost the job",
        patches=(
            Patch(
                "engine/sql/repairing.py",
                "ends.append((row, ended, row.settled_token))",
                "ends.append((row, ended, row.token))",
            ),
        ),
        guard=Worlds("sqlite", 0, 60),
    ),
    Mutant(
        name="a settlement that is repeated is refused",
        patches=(
            Patch(
                "engine/sql/settling.py",
                "{s.number: Verdict.REPEATED for s in repeated}",
                "{s.number: Verdict.LOST for s in repeated}",
            ),
        ),
        guard=Worlds("sqlite", 0, 60),
    ),
    Mutant(
        name="unique keys are unique across tenants",
        patches=(Patch(PATH_SQL, "ON k.tenant = e.value ->> 0 AND k.key", "ON k.key"),),
        guard=Test(CONFORMANCE, "test_tenants_do_not_meet"),
        alone="no experiment has tenants yet",
    ),
    Mutant(
        name="a handler's statements are committed before its completion",
        patches=(Patch("engine/sqlite/transaction.py", COMMITTED, WITHOUT_TRANSACTION),),
        guard=Test(CONFORMANCE, "test_a_block_whose_last_operation_raises_is_rolled_back"),
        run=Run("E02", ("effects",), tries=8),
    ),
    Mutant(
        name="a release counts as a failure",
        patches=(
            Patch(
                "model/states.py",
                "replace(was, releases=was.releases + 1)",
                "replace(was, releases=was.releases + 1, failures=was.failures + 1)",
            ),
        ),
        guard=Worlds("memory", 0, 300),
    ),
    Mutant(
        name="only the doorbell wakes a worker",
        patches=(
            Patch(
                "worker/claimer.py",
                "                self._look()\n                if rang:\n",
                "                if rang:\n                    self._look()\n",
            ),
        ),
        guard=Worlds("memory", 0, 300),
    ),
    Mutant(
        name="jobs are made ready before they are due",
        patches=(
            Patch(
                "engine/sqlite/dialect.py",
                "    if due is None or due > now:\n",
                "    now += 3_000\n    if due is None or due > now:\n",
            ),
        ),
        guard=Worlds("sqlite", 0, 60),
    ),
    Mutant(
        name="a lease is started however old it is",
        patches=(Patch("worker/loop_pool.py", "if ended >= state.may_start_until:", "if ended < 0:"),),
        guard=Worlds("memory", 0, 300),
    ),
    Mutant(
        name="a beat disowns a claim whose answer is on its way",
        patches=(
            Patch(
                "engine/sql/repairing.py",
                "(number, token) not in known and now - claimed_at > CLAIM_DEADLINE:",
                "(number, token) not in known:",
            ),
        ),
        guard=Worlds("sqlite", 0, 60),
    ),
    Mutant(
        name="exclusive runs outlast their lease",
        patches=(Patch("worker/keeper.py", "EXCLUSIVE_PART = 0.9 ", "EXCLUSIVE_PART = 90.0 "),),
        guard=Worlds("memory", 1405, 1),
    ),
    Mutant(
        name="a tick does not compare the revision of its schedule",
        patches=(ANY_REVISION,),
        guard=Test(CONFORMANCE, "test_whoever_comes_second_stores_nothing"),
        alone="the history and the id of the job still keep a tick from firing twice",
    ),
    Mutant(
        name="nothing keeps a tick from firing twice",
        patches=(
            ANY_REVISION,
            Patch(TICKING, "    return fired\n", "    return {}\n"),
            Patch(
                "schedule/fire.py",
                "    id = schedule.job_id(at)\n",
                "    from shigoto.model.ids import uuid7\n    id = uuid7()\n",
            ),
        ),
        guard=Test(CONFORMANCE, "test_whoever_comes_second_stores_nothing"),
        run=Run("E41", ("have two jobs",), tries=2),
    ),
    Mutant(
        name="a tick is not written into the history",
        patches=(
            Patch(
                TICKING,
                '    if entries:\n        yield sql_each("put',
                '    if not entries:\n        yield sql_each("put',
            ),
        ),
        guard=Test(CONFORMANCE, "test_a_tick_and_its_job_are_stored_together"),
        run=Run("E43", ("the history has",)),
    ),
    Mutant(
        name="a tick and its job are stored in two transactions",
        patches=(Patch(TICKING, TICKED, TICKED_TWICE),),
        guard=Duel("kill in the midst of a tick"),
        run=Run("E41", ("did not fire",), tries=4),
    ),
    Mutant(
        name="what is due is counted from now, and not from what was decided",
        patches=(
            Patch(
                "schedule/decide.py",
                "overdue(definition, schedule.decided_to, end)\n    if not recent",
                "overdue(definition, max(schedule.decided_to, now - 1_500), end)\n    if not recent",
            ),
        ),
        guard=Test("tests/unit/schedule/test_decide.py", "test_all_fires_every_one_of_them"),
        run=Run("E43", ("the history has",)),
    ),
    Mutant(
        name="a clock that goes back silences schedules",
        patches=(
            Patch(
                "schedule/decide.py", "return schedule.decided_to > now + CLOCK_JUMPED_BACK", "return now < 0"
            ),
        ),
        guard=Test(
            "tests/unit/schedule/test_decide.py", "test_a_clock_that_was_far_ahead_does_not_silence_it"
        ),
        run=Run("E28", ("not every schedule went on",)),
    ),
    Mutant(
        name="a time that the clocks leap over is left out",
        patches=(
            Patch("schedule/recurrence.py", 'if self.gap == "after" and', 'if self.gap == "never" and'),
        ),
        guard=Test("tests/unit/schedule/test_recurrence.py", "test_it_is_due_when_people_would_expect_it"),
        run=Run("E42", ("is due",)),
    ),
    Mutant(
        name="a time that the clocks show twice is due twice",
        patches=(Patch("schedule/recurrence.py", "low = max(low, shown)", "pass"),),
        guard=Test("tests/unit/schedule/test_recurrence.py", "test_it_is_due_when_people_would_expect_it"),
        run=Run("E42", ("is due",)),
    ),
)
