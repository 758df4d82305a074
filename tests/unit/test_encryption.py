"""Keys and envelopes: what opens them, what does not, and that no key is ever told."""

import pickle
from base64 import b64encode
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from msgspec import Struct, json
from msgspec.structs import replace

from shigoto import (
    DeclarationError,
    Encryption,
    EncryptionKeyMissing,
    PayloadInvalid,
    PayloadTooLarge,
    Shigoto,
)
from shigoto.encryption import KEY_FILE, KEYS, keys_from_environment, new_key
from shigoto.model.secrets import Envelope, is_encrypted, read_envelope, without_key, write_envelope

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


class Whose(Struct, frozen=True):
    """Something that texts are of."""

    id: UUID
    tenant: str = "acme"
    task: str = "charge"


def test_s0_67_what_was_encrypted_is_opened_by_the_same_key() -> None:
    """S0-67, S23: AES-256-GCM, and whatever text it is."""
    keys, job = Encryption({"2026": KEY}), Whose(uuid4())

    for text in ("", "{}", "Bücher 🐟 \\u0000", "x" * 100_000):
        encrypted = keys.encrypt(text, job, "payload")
        assert is_encrypted(encrypted)
        assert json.decode(encrypted)["k"] == "2026"
        assert text == "" or text not in encrypted
        assert keys.open(encrypted, job, "payload") == text


def test_no_two_envelopes_of_a_text_are_the_same() -> None:
    keys, job = Encryption({"a": KEY}), Whose(uuid4())

    assert len({keys.encrypt("same", job, "result") for _ in range(100)}) == 100


@pytest.mark.parametrize("field", ["payload", "result"])
@pytest.mark.parametrize("other", [{"tenant": "other"}, {"task": "refund"}])
def test_an_envelope_opens_for_its_own_tenant_and_task_alone(field: str, other: dict[str, str]) -> None:
    keys, job = Encryption({"a": KEY}), Whose(uuid4())
    encrypted = keys.encrypt("text", job, field)  # type: ignore[arg-type]

    with pytest.raises(EncryptionKeyMissing, match="cannot be decrypted"):
        keys.open(encrypted, replace(job, **other), field)  # type: ignore[arg-type]


def test_a_result_cannot_be_put_into_the_place_of_another_and_no_field_is_another() -> None:
    keys, job = Encryption({"a": KEY}), Whose(uuid4())
    encrypted = keys.encrypt("text", job, "result")

    with pytest.raises(EncryptionKeyMissing):
        keys.open(encrypted, replace(job, id=uuid4()), "result")
    with pytest.raises(EncryptionKeyMissing):
        keys.open(encrypted, job, "checkpoint")


def test_arguments_go_on_to_another_job_of_the_same_tenant_and_task() -> None:
    """A rerun has them, and the job whose key a new one takes."""
    keys, job = Encryption({"a": KEY}), Whose(uuid4())
    encrypted = keys.encrypt("text", job, "payload")

    assert keys.open(encrypted, replace(job, id=uuid4()), "payload") == "text"


def test_whoever_changes_a_letter_is_noticed() -> None:
    keys, job = Encryption({"a": KEY}), Whose(uuid4())
    encrypted = keys.encrypt("text", job, "payload")
    envelope = read_envelope(encrypted)
    assert envelope is not None

    for changed in (
        write_envelope(replace(envelope, v=envelope.v[:-1] + bytes([envelope.v[-1] ^ 1]))),
        write_envelope(replace(envelope, v=b"\0" + envelope.v[1:])),
        write_envelope(replace(envelope, id=uuid4())),
        write_envelope(replace(envelope, v=b"short")),
        encrypted[:-3],
    ):
        with pytest.raises(EncryptionKeyMissing):
            keys.open(changed, job, "payload")


def test_old_keys_read_and_the_current_one_writes() -> None:
    job = Whose(uuid4())
    old = Encryption({"old": KEY}).encrypt("text", job, "payload")
    keys = Encryption({"old": KEY, "new": OTHER}, current="new")

    assert keys.open(old, job, "payload") == "text"
    renewed = keys.reencrypted(old, replace(job, id=uuid4()), "payload")
    assert json.decode(renewed)["k"] == "new"
    assert json.decode(renewed)["id"] == json.decode(old)["id"]
    assert Encryption({"new": OTHER}).open(renewed, job, "payload") == "text"


def test_a_missing_key_is_named_and_so_are_those_that_are_there() -> None:
    job = Whose(uuid4())
    encrypted = Encryption({"2031": KEY}).encrypt("text", job, "result")

    with pytest.raises(EncryptionKeyMissing, match=r"the key '2031', and only 'a' are known here") as caught:
        Encryption({"a": OTHER}).open(encrypted, job, "result")
    assert caught.value.code == "JOB.KEY_MISSING"


def test_plain_text_is_opened_as_it_is() -> None:
    assert Encryption({"a": KEY}).open('{"n":1}', Whose(uuid4()), "payload") == '{"n":1}'


@pytest.mark.parametrize(
    ("keys", "current"),
    [
        ({}, None),
        ({"a": b"short"}, None),
        ({"a": "not base64!"}, None),
        ({"a": b64encode(b"x" * 31).decode()}, None),
        ({"a b": KEY}, None),
        ({"": KEY}, None),
        ({'a"': KEY}, None),
        ({"a" * 41: KEY}, None),
        ({"a": KEY}, "b"),
    ],
)
def test_what_cannot_be_a_key_is_refused_without_being_told(
    keys: dict[str, bytes | str], current: str | None
) -> None:
    with pytest.raises(DeclarationError) as caught:
        Encryption(keys, current)

    said = str(caught.value)
    assert all(str(value) not in said for value in keys.values())


def test_keys_are_in_no_repr_and_in_no_pickle() -> None:
    keys = Encryption({"2026": KEY, "old": b64encode(OTHER).decode()})

    assert repr(keys) == "<Encryption with key '2026' of 2>"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(keys)


class TestFromOutside:
    """$SHIGOTO_ENCRYPTION_KEYS, or a file that $SHIGOTO_ENCRYPTION_KEY_FILE names; the first key is the current one."""

    def test_there_is_no_default(self) -> None:
        assert keys_from_environment({}) is None
        assert keys_from_environment({KEYS: "", KEY_FILE: ""}) is None

    def test_the_variable(self) -> None:
        keys = keys_from_environment({KEYS: f"{new_key('new')}, {new_key('old')}"})

        assert keys is not None
        assert (keys.current, keys.ids) == ("new", ("new", "old"))

    def test_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text(f"# the newest first\n\n{new_key('new')}\n  {new_key('old')}\n")

        keys = keys_from_environment({KEY_FILE: str(file)})

        assert keys is not None
        assert (keys.current, keys.ids) == ("new", ("new", "old"))

    def test_mistakes_are_told_without_keys(self, tmp_path: Path) -> None:
        secret = new_key("a").partition(":")[2]
        broken = tmp_path / "broken"
        broken.write_text(f"{secret}\n")
        for environment, match in (
            ({KEYS: secret}, "key 1 has no id"),
            ({KEYS: f"a:{secret} a:{secret}"}, "two keys 'a'"),
            ({KEYS: f"a:{secret}x"}, "not 32 bytes"),
            ({KEY_FILE: str(tmp_path / "gone")}, "cannot be read: No such file"),
            ({KEY_FILE: str(broken)}, "key 1 has no id"),
            ({KEYS: f"a:{secret}", KEY_FILE: str(broken)}, "both name keys"),
        ):
            with pytest.raises(DeclarationError, match=match) as caught:
                keys_from_environment(environment)
            assert secret not in str(caught.value)

    def test_an_app_takes_them_unless_it_has_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(KEYS, new_key("outside"))

        found, own = Shigoto("memory:").encryption, Shigoto("memory:", encryption=Encryption({"own": KEY}))

        assert found is not None
        assert found.current == "outside"
        assert own.encryption is not None
        assert own.encryption.current == "own"


class TestWhatIsEncrypted:
    """By the call, the task, its secrets, the app; without a word, all of it."""

    def test_where_it_is_decided(self) -> None:
        from shigoto import Secret

        app = Shigoto("memory:", encryption=Encryption({"a": KEY}), defaults={"encrypt": False})

        @app.task
        def plain(word: str) -> None: ...

        @app.task(encrypt=True)
        def asked(word: str) -> None: ...

        @app.task
        def secret(word: Secret[str]) -> None: ...

        @app.task(encrypt=False)
        def open_secret(word: Secret[str]) -> None: ...

        for task, expected in ((plain, False), (asked, True), (secret, True), (open_secret, False)):
            assert is_encrypted(task.enqueue("x").job().payload) is expected
            assert is_encrypted(task.using(encrypt=not expected).enqueue("x").job().payload) is not expected

    def test_without_a_word_all_of_it_is(self) -> None:
        app = Shigoto("memory:", encryption=Encryption({"a": KEY}))

        @app.task
        def plain(word: str) -> None: ...

        many = app.enqueue_many(plain.call(word) for word in "abc")
        other = app.enqueue_by_name("elsewhere", {"word": "x"}, allow_unknown=True)

        assert all(is_encrypted(each.job().payload) for each in (*many, other, plain.enqueue("d")))

    def test_who_asks_for_it_and_has_no_key_is_refused(self) -> None:
        app = Shigoto("memory:")

        @app.task(encrypt=True)
        def asked(word: str) -> None: ...

        with pytest.raises(EncryptionKeyMissing, match="says encrypt=True, and this process has no key"):
            asked.enqueue("x")
        with pytest.raises(EncryptionKeyMissing):
            app.enqueue_by_name("elsewhere", {}, allow_unknown=True, encrypt=True)
        assert app.count() == 0
        with app.test():
            assert asked.enqueue("x").job().payload == '{"word":"x"}'

    def test_nothing_is_encrypted_in_a_test_and_everything_is_afterwards(self) -> None:
        app = Shigoto("memory:", encryption=Encryption({"a": KEY}))

        @app.task
        def plain(word: str) -> str:
            return word

        with app.test() as jobs:
            handle = plain.enqueue("x")
            jobs.run_all()
            assert handle.job().payload == '{"word":"x"}'
            assert handle.result() == "x"
        assert is_encrypted(plain.enqueue("x").job().payload)

    def test_limits_hold_for_what_is_stored(self) -> None:
        app = Shigoto("memory:", encryption=Encryption({"a": KEY}))

        @app.task
        def plain(word: str) -> None: ...

        plain.enqueue("x" * 780_000)
        with pytest.raises(PayloadTooLarge, match="bytes when encrypted are over the limit of 1,048,576"):
            plain.enqueue("x" * 800_000)

    def test_nobody_can_pass_for_an_envelope(self) -> None:
        app = Shigoto("memory:")
        forged = json.decode(write_envelope(Envelope(k="a", v=b"x")))

        @app.task
        def plain(word: str = "") -> None: ...

        with pytest.raises(PayloadInvalid, match=r"no argument can be called '\$shigoto'"):
            app.enqueue_by_name("elsewhere", forged, allow_unknown=True)
        with pytest.raises(PayloadInvalid):
            app.enqueue_by_name("plain", forged)


def test_an_error_is_shown_by_its_type() -> None:
    job = Whose(uuid4())
    keys = Encryption({"a": KEY})

    assert (
        without_key(keys.encrypt("KeyError: 'x'", job, "error", about="KeyError")) == "KeyError (encrypted)"
    )
    assert without_key(keys.encrypt("x", job, "log")) == "encrypted"
    assert without_key("plain") == "plain"
