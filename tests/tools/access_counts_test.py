"""The comparison of access costs detects every kernel whose figures or presence changed."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "checks"))
import access_counts  # noqa: E402

SUMS = {"shared_passes": 200, "shared_conflicts": 30, "device_sectors": 8, "device_bytes": 128}
SHARES = {"shared_conflicts": 0.15, "sector_bytes_per_byte": 2.0}


class AccessCountsTest(unittest.TestCase):
    def test_shares_of_sums(self):
        nothing = dict.fromkeys(SUMS, 0)
        self.assertEqual(access_counts.shares({"a": SUMS, "b": nothing}),
                         {"a": SHARES, "b": {"shared_conflicts": 0.0, "sector_bytes_per_byte": 0.0}})

    def test_differences(self):
        def differ(found, held):
            return list(access_counts.differences(found, held))

        self.assertEqual(differ({"a": SHARES}, {"a": SHARES}), [])
        self.assertEqual(differ({"a": SHARES}, {"a": {**SHARES, "shared_conflicts": 0.11}}), [])
        self.assertIn("a: measured {'shared_conflicts': 0.15", differ({"a": SHARES}, {"a": {**SHARES, "shared_conflicts": 0.05}})[0])
        self.assertIn("a: not in the table", differ({"a": SHARES}, {})[0])
        self.assertIn("a: in the table, but no benchmark runs it", differ({}, {"a": SHARES})[0])


if __name__ == "__main__":
    unittest.main()
