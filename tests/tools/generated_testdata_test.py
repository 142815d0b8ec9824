"""Output of tests/testdata/generate.py --check for folders that differ from the generated ones."""

import hashlib
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testdata"))
from generate import differences


class GeneratedTestdataTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        self.sums = ""
        for name in ("models/a/model.safetensors", "gguf/b/model.gguf"):
            (self.out / name).parent.mkdir(parents=True)
            (self.out / name).write_bytes(name.encode())
            self.sums += f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n"

    def found(self):
        return "\n".join(differences(self.out, self.sums))

    def test_equal_files(self):
        (self.out / "models/a/config.json").symlink_to(__file__)  # links are not generated
        self.assertEqual(self.found(), "")

    def test_one_changed_bit(self):
        (self.out / "gguf/b/model.gguf").write_bytes(b"ggug/b/model.gguf")
        self.assertIn("gguf/b/model.gguf: SHA-256 ", self.found())

    def test_missing_file(self):
        (self.out / "models/a/model.safetensors").unlink()
        self.assertEqual(self.found(), "models/a/model.safetensors: not generated")

    def test_link_instead_of_a_generated_file(self):
        path = self.out / "models/a/model.safetensors"
        path.rename(self.out / "kept")
        path.symlink_to(self.out / "kept")
        self.assertIn("models/a/model.safetensors: not generated", self.found())

    def test_file_without_checksum(self):
        (self.out / "models/a/more.safetensors").write_bytes(b"")
        self.assertIn("more.safetensors: generated and not in generated.sha256", self.found())


if __name__ == "__main__":
    unittest.main()
