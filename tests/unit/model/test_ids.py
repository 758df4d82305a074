"""Ids, one by one and in batches."""

from shigoto.model.ids import COUNT, uuid7, uuids7


def test_an_id_is_a_uuid_of_version_7_of_its_millisecond() -> None:
    made = uuid7(0x0123_4567_89AB, bytes(range(10)))

    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made.int >> 80 == 0x0123_4567_89AB


def test_ids_of_a_batch_are_like_single_ones() -> None:
    made = uuids7(100, 0x0123_4567_89AB)

    assert {(each.version, each.variant) for each in made} == {(7, "specified in RFC 4122")}
    assert {each.int >> 80 for each in made} == {0x0123_4567_89AB}


def test_a_batch_ascends_however_large_it_is() -> None:
    for count in (0, 1, 2, COUNT, COUNT + 1, 3 * COUNT + 5):
        made = uuids7(count)

        assert len(set(made)) == count
        assert made == sorted(made)


def test_batches_of_one_millisecond_have_no_id_in_common() -> None:
    assert not set(uuids7(1000, 1)) & set(uuids7(1000, 1))
