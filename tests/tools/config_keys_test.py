"""Every key of configs/default.yaml is read into the options or rejected by the validator (server/config), so no key is
unused."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Keys that LayeredConfig itself reads.
ELSEWHERE = {"profile", "schema_version"}


def unread(yaml, source):
    keys = set(re.findall(r"^ *([a-z_]+):", yaml, re.MULTILINE)) - ELSEWHERE
    assert keys, "no keys at all"
    return sorted(key for key in keys if not re.search(rf"\b(has_)?{key}\(", source))


class ConfigKeysTest(unittest.TestCase):
    def test_every_key_is_read(self):
        yaml = (ROOT / "configs" / "default.yaml").read_text()
        config = ROOT / "server" / "config"
        source = (config / "options.cc").read_text() + (config / "validator.cc").read_text()
        self.assertEqual(unread(yaml, source), [])

    def test_unread_key_is_found(self):
        self.assertEqual(unread("a:\n  b: 1\n  c: 2\n", "x.a().b();"), ["c"])


if __name__ == "__main__":
    unittest.main()
