"""Violates each rule of tools/checks/proto_check.py once."""

import pathlib
import tempfile
import unittest

from check_case import CheckCase

NAME = "acme/v1/pet.proto"
CLEAN = """syntax = "proto3";
package acme.v1;
import "google/protobuf/timestamp.proto";

// Pets.
service PetService {
  // Pets, by page.
  rpc ListPets(ListPetsRequest) returns (ListPetsResponse);
}

// Which.
message ListPetsRequest {
  // At most.
  int32 page_size = 1;
  // From where.
  string page_token = 2;
  // Kind.
  Kind kind = 3;
}

// Some.
message ListPetsResponse {
  // Names.
  repeated string names = 1;
  // For the next call.
  string next_page_token = 2;
  // When.
  google.protobuf.Timestamp read_time = 3;
  // How it went.
  oneof result {
    // Well.
    string good = 4;
    // Not well.
    string bad = 5;
  }
}

// A kind.
enum Kind {
  // Not said.
  KIND_UNSPECIFIED = 0;
  // A cat.
  KIND_CAT = 1;
}
"""


class ProtoCheckTest(CheckCase):
    tool = "proto_check.py"

    def publish_then(self, old, new):
        """Publishes `CLEAN`, replaces text in it and checks again."""
        with tempfile.TemporaryDirectory() as root:
            self.write(pathlib.Path(root), {NAME: CLEAN})
            status, output = self.run_in(root, "--write")
            self.assertEqual(status, 0, output)
            self.assertIn(old, CLEAN)
            self.write(pathlib.Path(root), {NAME: CLEAN.replace(old, new)})
            return self.run_in(root)

    def refuses_change(self, old, new, *parts):
        status, output = self.publish_then(old, new)
        self.assertEqual(status, 1, output)
        self.assertTrue(any(all(part in line for part in parts) for line in output.splitlines()),
                        f"no line with {parts} in:\n{output}")

    def test_clean(self):
        status, output = self.publish_then("", "")
        self.assertEqual(status, 0, output)

    def test_rules(self):
        for old, new, *parts in (
                ("// Names.\n", "\n", f"proto/{NAME}:", "field names has no comment"),
                ("// A cat.\n", "\n", "KIND_CAT has no comment"),
                ("// Pets, by page.\n", "\n", "ListPets has no comment"),
                ("package acme.v1;", "package acme.v2;", "is not the directory acme/v1"),
                ("string page_token = 2", "string pageToken = 2", "pageToken does not match"),
                ("int32 page_size", "uint32 page_size", "is uint32"),
                ("read_time", "read_at", "does not end in _time"),
                ("int32 page_size = 1;", "int32 page_size = 1;\n  // T.\n  int32 wait_ms = 9;",
                 "wait_ms is a number"),
                ("int32 page_size = 1;", "int32 page_size = 1;\n  // N.\n  int32 num_x = 9;",
                 "num_x should end in _count"),
                ("KIND_UNSPECIFIED", "KIND_NONE", "is not KIND_UNSPECIFIED"),
                ("KIND_CAT", "CAT", "CAT does not match"),
                ("PetService", "Pets", "does not end in Service"),
                ("returns (ListPetsResponse)", "returns (ListPetsRequest)", "method ListPets uses"),
                ("string page_token = 2;", "string other = 2;", "has no page_token"),
                ("// A kind.", "// " + "k" * 100, "line has 103 columns")):
            with self.subTest(new):
                self.refuses_change(old, new, *parts)

    def test_names_of_another_project_are_not_checked(self):
        """Comments and published elements are still checked."""
        schema = CLEAN.replace("acme.v1", "vllm.grpc.engine").replace("PetService", "Pets")
        schema = schema.replace("int32 page_size", "uint32 num_pets").replace("KIND_", "").replace("ListPets", "Show")
        name = "vllm/grpc/engine/pet.proto"
        with tempfile.TemporaryDirectory() as root:
            self.write(pathlib.Path(root), {name: schema})
            status, output = self.run_in(root, "--write")
            self.assertEqual(status, 0, output)
            for old, new, expected in (("uint32 num_pets = 1", "uint32 num_pets = 7", "changed or gone"),
                                       ("string good = 4", "string well = 4", "changed or gone"),
                                       ("  // Names.\n", "", "has no comment")):
                self.write(pathlib.Path(root), {name: schema.replace(old, new)})
                status, output = self.run_in(root)
                self.assertEqual(status, 1, output)
                self.assertIn(expected, output)

    def test_published_elements_may_not_change(self):
        gone = "published element changed or gone"
        for old, new, element in (
                ("string good = 4", "string good = 6", "good 4"),
                ("string good = 4", "bytes good = 4", "good 4 single string"),
                ("repeated string names", "string names", "names 1 repeated"),
                ("  // A cat.\n  KIND_CAT = 1;\n", "", "KIND_CAT 1"),
                ("returns (List", "returns (stream List", "method acme.v1.PetService.ListPets"),
                ("  // Names.\n  repeated string names = 1;\n", "", "names 1")):
            with self.subTest(new):
                self.refuses_change(old, new, gone, element)

    def test_removed_field_must_reserve_number_and_name(self):
        names = "  // Names.\n  repeated string names = 1;\n"
        status, output = self.publish_then(names, '  reserved 1;\n  reserved "names";\n')
        self.assertNotIn("changed or gone", output)
        self.refuses_change(names, "  reserved 1;\n", "changed or gone", "names 1")

    def test_additions_must_be_published(self):
        self.refuses_change("string page_token = 2;", "string page_token = 2;\n  // X.\n  bool x = 7;",
                            "not in published.txt: field acme.v1.ListPetsRequest.x 7 single bool")

    def test_api_page_names_existing_fields(self):
        schema = CLEAN.replace("acme", "quire")
        for row, expected in (("| `string page_token = 2` | x |", 0),
                              ("| `_CAT = 1` | x |", 0), ("| `_CAT = 2` | x |", 1),
                              ("| `oneof result: string good = 5` | x |", 1)):
            with tempfile.TemporaryDirectory() as root:
                self.write(pathlib.Path(root), {"proto/quire/v1/pet.proto": schema,
                                                "docs/api.md": row + "\n"})
                folder = pathlib.Path(root) / "proto"
                status, output = self.run_in(folder, "--write")
            self.assertEqual(status, expected, output)
            self.assertEqual("no field or enum value of quire.v1 is" in output, bool(expected))


if __name__ == "__main__":
    unittest.main()
