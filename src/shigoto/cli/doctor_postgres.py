"""The doctor's checks of a PostgreSQL server: one pure function for each question, from the facts to a finding."""

from collections.abc import Sequence
from datetime import timedelta

from shigoto.cli.confirm import names
from shigoto.cli.doctor_checks import DoctorFacts, Finding, Level
from shigoto.cli.output import span
from shigoto.model.checkup import ENCODING, NEWEST, OLDEST, HolderFacts, TableFacts
from shigoto.model.time import MAX_HOLD, to_datetime

LITTLE_SKEW, MUCH_SKEW = 1.0, 60.0  # seconds
IDLE_FOR, OPEN_FOR, HOURS = 60.0, 300.0, 6 * 3_600.0  # seconds
MANY_DEAD = 100_000  # rows
FULL, NEARLY_FULL = 0.8, 0.5  # of the room for notifications
CROWDED = 0.9  # of the connections that there are
NAMED = 3  # sessions, tables or indexes in one sentence

UNSAFE = {
    "fsync": "a crash of the machine can lose or corrupt everything",
    "full_page_writes": "a crash of the machine can corrupt tables",
}
REMEDIES = {
    "session": "Mend what left it open; pg_terminate_backend(process) ends it.",
    "prepared": "COMMIT PREPARED or ROLLBACK PREPARED it.",
    "slot": "Let its reader catch up, or pg_drop_replication_slot(name) if it has none any more.",
}


def version(facts: DoctorFacts) -> Finding | None:
    """Whether the server is one that we know."""
    if facts.server is None or facts.checkup is None:
        return None
    major = facts.server.number // 10_000
    text = f"This is PostgreSQL {facts.checkup.version}."
    if major < OLDEST:
        remedy = f"Upgrade it: shigoto needs {OLDEST} or newer."
        return Finding("postgresql", Level.PROBLEM, text, remedy)
    if major > NEWEST:
        remedy = f"See whether there is a newer release of shigoto: this one was tested up to {NEWEST}."
        return Finding("postgresql", Level.NOTE, text, remedy)
    return Finding("postgresql", Level.OK, text)


def encoding(facts: DoctorFacts) -> Finding | None:
    if facts.server is None or "server_encoding" not in facts.server.settings:
        return None
    found = facts.server.settings["server_encoding"]
    text = f"The encoding of the database is {found}"
    if found == ENCODING:
        return Finding("encoding", Level.OK, f"{text}.")
    text = f"{text}: jobs with letters that it does not have cannot be stored."
    remedy = f"CREATE DATABASE … ENCODING '{ENCODING}' TEMPLATE template0, and use that one."
    return Finding("encoding", Level.PROBLEM, text, remedy)


def role(facts: DoctorFacts) -> Finding | None:
    """Whether whoever is connected may do what a worker must, and no more."""
    server = facts.server
    if server is None:
        return None
    if server.rights:
        text = f"{server.role} lacks rights: {names(server.rights, NAMED, '; ')}."
        remedy = "Run what `shigoto sql bootstrap` prints for this role, as whoever may grant them."
        return Finding("role", Level.PROBLEM, text, remedy)
    if server.superuser or server.owner:
        text = (
            f"{server.role} {'is a superuser' if server.superuser else 'owns the schema'}. Workers refuse to begin"
            " so, and no process that only enqueues needs it either."
        )
        remedy = "Use a role that may do no more than work: `shigoto sql bootstrap` makes one."
        return Finding("role", Level.WARNING, text, remedy)
    if server.bypasses:
        text = f"Row security does not apply to {server.role}."
        remedy = "ALTER ROLE … NOBYPASSRLS, unless no table of yours has row security."
        return Finding("role", Level.WARNING, text, remedy)
    return Finding("role", Level.OK, f"{server.role} may work, and no more.")


def standby(facts: DoctorFacts) -> Finding | None:
    if facts.server is None or not facts.server.standby:
        return None
    text = "The server is a standby: nothing can be enqueued or settled there."
    remedy = "Use the address of the primary; with several hosts in it, add target_session_attrs=read-write."
    return Finding("standby", Level.PROBLEM, text, remedy)


def clock(facts: DoctorFacts) -> Finding | None:
    """Whether the clocks agree: that of this machine, the server's, and what the store has seen."""
    server = facts.server
    if server is None:
        return None
    mark = facts.store.clock if facts.store is not None else 0
    lead = to_datetime(mark) - server.now
    if lead > timedelta(milliseconds=MAX_HOLD):
        text = f"The store has seen a time that lies {span(lead)} ahead of the server's clock."
        remedy = "Set the server's clock right, with a time server: all workers go by it."
        return Finding("clock", Level.PROBLEM, text, remedy)
    skew = abs(server.skew) - server.doubt
    text = f"The server's clock is {span(timedelta(seconds=abs(server.skew)))} "
    text += f"{'ahead of' if server.skew > 0 else 'behind'} this machine's."
    if skew < LITTLE_SKEW:
        return Finding("clock", Level.OK, "The server's clock agrees with this machine's.")
    level = Level.WARNING if skew >= MUCH_SKEW else Level.NOTE
    text = f"{text} Jobs go by the server's; times that your code computes do not."
    remedy = "Use a time server on both. For jobs that are to run later, say delay= rather than run_at=."
    return Finding("clock", level, text, remedy)


def durability(facts: DoctorFacts) -> Finding | None:
    if facts.server is None:
        return None
    settings = facts.server.settings
    unsafe = [name for name in UNSAFE if settings.get(name) == "off"]
    if unsafe:
        text = "; ".join(f"{name} is off: {UNSAFE[name]}" for name in unsafe) + "."
        remedy = f"Turn {' and '.join(unsafe)} on, unless the jobs may be lost."
        return Finding("durability", Level.PROBLEM, text, remedy)
    if settings.get("synchronous_commit") == "off":
        text = "synchronous_commit is off: a crash of the server loses the last moments, jobs among them."
        remedy = "ALTER ROLE … SET synchronous_commit = on, unless that is what you want."
        return Finding("durability", Level.WARNING, text, remedy)
    return Finding("durability", Level.OK, "Every commit is on the disk before it counts.")


def autovacuum(facts: DoctorFacts) -> Finding | None:
    if facts.server is None:
        return None
    off = [name for name in ("autovacuum", "track_counts") if facts.server.settings.get(name) == "off"]
    tables = [table.name for table in facts.server.tables if not table.autovacuum]
    if not off and not tables:
        return None
    where = f" for {names(tables, NAMED)}" if not off else ""
    text = (
        f"{' and '.join(off) or 'autovacuum'} is off{where}: tables grow, and claims get slower and slower."
    )
    remedy = "Turn it on." if off else "ALTER TABLE … RESET (autovacuum_enabled)."
    return Finding("autovacuum", Level.PROBLEM, text, remedy)


def holders(facts: DoctorFacts) -> Finding | None:
    """Whether somebody keeps dead rows from being removed."""
    server = facts.server
    if server is None:
        return None
    held = [holder for holder in server.holders if _is_long(holder)]
    if held:
        long = any((holder.seconds or 0.0) > HOURS for holder in held)
        level = Level.PROBLEM if long else Level.WARNING
        text = f"Dead rows cannot be removed because of {names([_told(holder) for holder in held], NAMED, '; ')}."
        remedy = " ".join(dict.fromkeys(REMEDIES[holder.kind] for holder in held))
        return Finding("transactions", level, text, remedy)
    hidden = _hidden(server.unseen, server.hidden)
    if hidden:
        text = f"No long transaction is known; but {server.role} may not see {hidden}."
        remedy = "GRANT pg_read_all_stats to a role that the doctor can use, to see those too."
        return Finding("transactions", Level.NOTE, text, remedy)
    return Finding("transactions", Level.OK, "Nobody keeps a transaction open for long.")


def dead_rows(facts: DoctorFacts) -> Finding | None:
    if facts.server is None or not facts.server.tables:
        return None
    many = [table for table in facts.server.tables if table.dead > MANY_DEAD]
    bloated = [table for table in many if table.busy or table.dead > table.live]
    if not bloated:
        return Finding("dead rows", Level.OK, "Dead rows are removed in time.")
    told = [f"{table.dead} in {table.name} ({_vacuumed(facts, table)})" for table in bloated]
    text = f"Many dead rows are left: {names(told, NAMED)}."
    remedy = (
        "See what `transactions` says above. If nobody holds them, autovacuum does not keep up: give it more"
        " workers (autovacuum_max_workers), or VACUUM these tables."
    )
    return Finding("dead rows", Level.WARNING, text, remedy)


def indexes(facts: DoctorFacts) -> Finding | None:
    server = facts.server
    if server is None or facts.store is None:
        return None
    if server.invalid:
        text = f"Not valid, so that nobody uses them: {names(server.invalid, NAMED)}."
        remedy = "REINDEX INDEX CONCURRENTLY each of them."
        return Finding("indexes", Level.PROBLEM, text, remedy)
    if server.missing:
        text = f"Missing: {names(server.missing, NAMED)}."
        remedy = (
            "Somebody has dropped them. `shigoto migrate --print --all` has the statements that make them."
        )
        return Finding("indexes", Level.PROBLEM, text, remedy)
    return Finding("indexes", Level.OK, "All indexes are there.")


def connections(facts: DoctorFacts) -> Finding | None:
    server = facts.server
    if server is None:
        return None
    places = server.places if server.limit is None else min(server.places, server.limit)
    text = f"{server.used} of {server.places} connections are in use"
    if server.used >= CROWDED * server.places:
        text = f"{text}: soon nobody can connect any more."
        remedy = "Raise max_connections, put a pooler in front, or give each process less with pool= in the address."
        return Finding("connections", Level.WARNING, text, remedy)
    # Nobody knows which workers have a supervisor: at most there is one for the workers of each host.
    hosts = {worker.host for worker in facts.live}
    wanted = server.most * (len(facts.live) + len(hosts))
    if wanted > places:
        text = (
            f"{text}. The {len(facts.live)} live workers, and a supervisor on each of their hosts ({len(hosts)}),"
            f" may open {server.most} each, {wanted} in all, and there are {places}"
            f"{' for this role' if places < server.places else ''}."
        )
        remedy = "Say pool= in the address to give each process less, raise max_connections, or use a pooler."
        return Finding("connections", Level.WARNING, text, remedy)
    return Finding("connections", Level.OK, f"{text}; a process of ours opens at most {server.most}.")


def pooler(facts: DoctorFacts) -> Finding | None:
    server = facts.server
    if server is None or not server.pooled:
        return None
    if server.prepares:
        text = "A pooler is in between, and the address says prepare=on: statements may be gone when they are used."
        remedy = "Leave prepare=on out of the address, or connect to the server itself."
        return Finding("pooler", Level.PROBLEM, text, remedy)
    return Finding("pooler", Level.OK, "A pooler is in between; nothing is prepared there.")


def doorbell(facts: DoctorFacts) -> Finding | None:
    """Whether idle workers hear of new jobs at once."""
    server = facts.server
    if server is None or server.standby:
        return None
    if server.queue > NEARLY_FULL:
        level = Level.PROBLEM if server.queue > FULL else Level.WARNING
        text = (
            f"The queue of notifications is full by {server.queue:.0%}, because a session that listens is in a long"
            " transaction: once it is full, every enqueue fails."
        )
        remedy = "End that session: see pg_stat_activity, and the server's log, which names it."
        return Finding("doorbell", level, text, remedy)
    if server.heard is None:
        text = "The address says listen=off: workers find new jobs by looking, every --poll seconds."
        return Finding("doorbell", Level.NOTE, text)
    if not server.heard:
        through = " through this pooler" if server.pooled else ""
        text = (
            f"Notifications do not arrive{through}: workers find new jobs by looking, every --poll seconds."
        )
        remedy = "Give the address of the server itself in listen=, percent-encoded; or say listen=off."
        return Finding("doorbell", Level.WARNING, text, remedy)
    return Finding("doorbell", Level.OK, "Idle workers hear of new jobs at once.")


def timeouts(facts: DoctorFacts) -> Finding | None:
    if facts.server is None or facts.server.settings.get("idle_in_transaction_session_timeout") != "0":
        return None
    text = f"A session of {facts.server.role} that hangs in a transaction keeps its locks for ever."
    remedy = "ALTER ROLE … SET idle_in_transaction_session_timeout; `shigoto sql bootstrap` does so."
    return Finding("timeouts", Level.NOTE, text, remedy)


def _is_long(holder: HolderFacts) -> bool:
    if holder.seconds is None:
        return holder.idle
    return holder.seconds > (IDLE_FOR if holder.idle else OPEN_FOR)


def _told(holder: HolderFacts) -> str:
    seconds = holder.seconds
    return holder.name if seconds is None else f"{holder.name}, for {span(timedelta(seconds=seconds))}"


def _hidden(unseen: int, others: Sequence[str]) -> str:
    sessions = [] if not unseen else [f"{unseen} session{'' if unseen == 1 else 's'} of others"]
    return ", ".join([*sessions, *others])


def _vacuumed(facts: DoctorFacts, table: TableFacts) -> str:
    if table.vacuumed_at is None:
        return "never vacuumed"
    return f"last vacuumed {span(facts.now - table.vacuumed_at)} ago"
