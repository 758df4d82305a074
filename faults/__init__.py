"""Experiments that disturb a running system, and the evidence by which they are judged.

    evidence/      what is written down outside the system under test, and what the checker reads from it
    tools/         what disturbs: the monkey, disks that are full or fail, a proxy for cut lines, clocks that are wrong
    apps/          the apps whose jobs are disturbed
    experiments/   one file for each experiment
    simulation/    the runtime on virtual time, in worlds made by chance
    breaking.py    how a build is broken on purpose, and how it is asked who notices
    mutants.py     the broken builds, and who must notice
    duels.py       two on one file at the same moment
    stage.py       producers and workers as processes of their own
    stores/        where their jobs live: a file, or a database on a server that can be stopped and killed
    producer.py    a program that enqueues; stream.py, one that enqueues the mix of the soak
    experiment.py  what an experiment is given, and what it answers
    report.py      the table and the JSON of a run

`python3 dev.py faults` runs them in their full form, the tests in `faults/tests` in a short one.
"""
