"""The documentation does what it says: every snippet is run, every link leads somewhere, nothing is out of date."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

import dev
import shigoto
from devtools import reference
from shigoto import Shigoto, State
from shigoto.cli import COMMANDS
from shigoto.options import CallOptions, TaskOptions
from tests.journeys.pages import Block, Reader, blocks_of, matches, without_comments

ROOT = dev.ROOT
DOCS = ROOT / "docs"
README, IN_JAPANESE = ROOT / "README.md", ROOT / "README.ja.md"
PAGES = [IN_JAPANESE, *sorted(DOCS.rglob("*.md"))]
LINKED = [README, *PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
NAMED = pytest.mark.parametrize
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
PATIENCE = 30.0


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@NAMED("page", PAGES, ids=name_of)
def test_a_reader_can_do_all_that_a_page_says(page: Path, tmp_path: Path) -> None:
    """S0-64, S0-77: declare with a decorator, enqueue in one terminal, work in another, as the tutorial has it."""
    with Reader(tmp_path) as reader:
        for block in blocks_of(page):
            reader.follow(block)


@NAMED(
    ("guide", "sentence"),
    [
        ("twice.md", "Shigoto runs a job **at least once**."),
        ("twice.md", "handlers must be idempotent because of crashes, never because of a race"),
        ("secrets.md", "**keep the secret elsewhere, and pass an id**"),
    ],
)
def test_what_users_must_know_is_said(guide: str, sentence: str) -> None:
    """S0-67, S0-69, S1-15: the guides, whose snippets are run above, say it in so many words."""
    assert sentence in (DOCS / "guides" / guide).read_text()


def test_a_reader_of_the_readme_sees_every_job_done(tmp_path: Path) -> None:
    """S0-64, S0-77, S1-3: declare with one decorator, enqueue in one process, work in another, ask for the state."""
    with Reader(tmp_path) as reader:
        for block in blocks_of(README):
            reader.follow(block)

        app = Shigoto(reader.folder / "jobs.db")
        [later] = app.find(key="invite:7")
        for job in app.find(limit=100):
            if job.id != later.id:
                app.job(job.id).result(timeout=PATIENCE)
        assert app.job(later.id).status() is State.PENDING
        with app.connect() as connection:
            assert connection.execute("SELECT invoice FROM payment").fetchall() == [(42,)]
            assert connection.execute("SELECT name FROM customer").fetchall() == [("Ada",)]
        connection.close()
        tasks = sorted(job.task for job in app.find(limit=100))
        assert tasks == ["analyse"] * 2 + ["charge", "render"] + ["send_invitation"] * 4, (
            "one was enqueued by charge"
        )
        app.close()


def test_the_example_of_the_readme_fits_on_a_page() -> None:
    [first, *_] = [block.text for block in blocks_of(README) if block.info == "python"]
    code = [line for line in first.splitlines() if line.strip() and not line.startswith("#")]

    assert len(code) <= 15


def test_the_readme_in_japanese_has_the_same_code() -> None:
    english, japanese = list(blocks_of(README)), list(blocks_of(IN_JAPANESE))

    assert [(block.info, without_comments(block)) for block in japanese] == [
        (block.info, without_comments(block)) for block in english
    ]


def test_the_readme_in_japanese_has_the_same_sections() -> None:
    def shape(page: Path) -> list[str]:
        return re.findall(r"^(#+|-|```\w*)", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert shape(IN_JAPANESE) == shape(README)


def test_a_block_of_an_unknown_kind_is_an_error(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader, pytest.raises(AssertionError, match="nobody knows what to do"):
        reader.follow(Block("page.md:1", "pytohn", "print(1)\n"))


@NAMED(
    ("kind", "text", "complaint"),
    [
        ("python", "1 / 0\n", "ZeroDivisionError"),
        ("console", "$ echo one\ntwo\n", "the page shows"),
        ("console", "$ false\n", "exit code 1"),
        ("sh", "exit 3\n", "exit code 3"),
        ("output", "one\n", "no python block"),
        ("sh", "python3 dev.py dmeo\n", "dev.py has no command"),
    ],
)
def test_a_snippet_that_is_wrong_is_an_error(tmp_path: Path, kind: str, text: str, complaint: str) -> None:
    with Reader(tmp_path) as reader, pytest.raises(AssertionError, match=complaint):
        reader.follow(Block("page.md:1", kind, text))


@NAMED("fence", ["  ```python\n  1\n  ```\n", "```python\n1\n"])
def test_a_block_that_might_be_missed_is_an_error(tmp_path: Path, fence: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"- a list\n\n{fence}")

    with pytest.raises(AssertionError):
        list(blocks_of(page))


def test_dots_stand_for_what_varies_and_for_nothing_else() -> None:
    assert matches("one ... three\n...\nend\n", "one two three\na\nb\nend\n")
    assert matches("...\n", "")
    assert not matches("one ...\n", "one two\nthree\n")
    assert not matches("a.c\n", "abc\n")


# Links


@NAMED("page", LINKED, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [link for link in links_of(page) if not leads_somewhere(page, link)]

    assert broken == []


@NAMED("page", [page for page in PAGES if DOCS in page.parents], ids=name_of)
def test_a_page_of_the_site_links_to_pages_of_the_site(page: Path) -> None:
    outside = [
        link
        for link in links_of(page)
        if not (page.parent / link.split("#")[0]).resolve().is_relative_to(DOCS)
    ]

    assert outside == []


def links_of(page: Path) -> Iterator[str]:
    """What the page links to in this repository."""
    text = re.sub(r"^(```+).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from (link for link in LINK.findall(text) if "://" not in link)


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors_of(target))


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def test_the_navigation_has_every_page_and_nothing_else() -> None:
    """Decisions are many: their list is one page of the navigation, and has them all."""
    listed = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}

    assert sorted(listed) == sorted(page for page in pages if not page.startswith("decisions/0"))


def test_the_list_of_decisions_has_every_decision() -> None:
    folder = DOCS / "decisions"
    listed = links_of(folder / "README.md")

    assert sorted(listed) == sorted(page.name for page in folder.glob("0*.md"))


# What is made from the code


@NAMED("page", reference.pages(), ids=lambda page: page.name)
def test_what_is_made_from_the_code_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == reference.pages()[page], "run: python3 dev.py docs reference"


def test_the_unit_in_the_guide_to_deployment_is_part_of_the_one_that_is_shipped() -> None:
    [shown] = [block.text for block in blocks_of(DOCS / "guides" / "deployment.md") if block.info == "ini"]
    shipped = (ROOT / "deploy" / "shigoto.service").read_text().splitlines()

    assert [line for line in shown.splitlines() if line not in shipped] == []


def test_every_command_is_in_the_guide_to_the_command_line() -> None:
    page = (DOCS / "guides" / "cli.md").read_text()

    assert [name for name in COMMANDS if not re.search(rf"`{name}\b", page)] == []


def test_every_option_is_documented() -> None:
    page = (DOCS / "reference" / "options.md").read_text()
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE))))

    assert {*get_type_hints(TaskOptions), *get_type_hints(CallOptions)} <= described


def test_every_public_name_has_its_place_in_the_reference() -> None:
    """Errors are in a table of their own, with their codes."""
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    shown = {
        *re.findall(r"^::: [\w.]+\.(\w+)$", pages, re.MULTILINE),
        *re.findall(r"^\| [· ]*`(\w+)`", pages, re.MULTILINE),
    }

    assert set(shigoto.__all__) - shown == set()
