"""JSON that carries its own digest."""

import json

import pytest

from hdvpd.basics import sealed

VALUE = {"b": 1.5, "a": [1, {"é": None}], "1": "x", "10": True}


def test_what_is_read_is_what_was_written():
    text = sealed.dumps(VALUE)
    assert sealed.loads(text) == VALUE
    assert sealed.dumps(sealed.loads(text)) == text
    assert sealed.dumps(json.loads(text)) == text  # with the old digest among the values
    numbered = {"n": {10: "a", 9: "b"}, "t": (0.1,)}
    assert sealed.loads(sealed.dumps(numbered)) == {"n": {"10": "a", "9": "b"}, "t": [0.1]}


def test_layout_may_change_and_content_may_not():
    text = sealed.dumps(VALUE)
    assert sealed.loads(json.dumps(json.loads(text), sort_keys=True)) == VALUE
    with pytest.raises(ValueError, match='remove its "sha256"'):
        sealed.loads(text.replace("1.5", "1.4"))


@pytest.mark.parametrize("value", [VALUE, [1, 2], "text", 3])
def test_other_json_is_taken_as_it_is(value):
    assert sealed.loads(json.dumps(value)) == value


def test_every_flipped_bit_is_refused_or_changes_nothing():
    content = sealed.dumps(VALUE).encode()
    refused = 0
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            try:
                found = sealed.loads(changed.decode())
            except ValueError:
                refused += 1
                continue
            # Only the name of the digest may have changed, or the space between things.
            assert {name: found.get(name) for name in VALUE} == VALUE
    assert refused > 7 * len(content)
