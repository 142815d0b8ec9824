"""Violates each rule of tools/checks/style_check.py once."""

import unittest

from check_case import CheckCase


def function(lines, head="void F(int a = 1) {"):
    """Returns a function whose braces span `lines` lines."""
    return head + "\n" + "  G();\n" * (lines - 2) + "}\n"


OPENING = "# Title\n\nFor those who test. After it they know.\n"


class StyleCheckTest(CheckCase):
    tool = "style_check.py"
    clean = {
        "base/CMakeLists.txt": "quire_component(NAME base HDRS a.h SRCS a.cc sub/b.cc)\n",
        "base/a.h": "#pragma once\n",
        "base/a.cc": '#include "base/a.h"\n' + function(60) +
                     "struct S {\n  S& operator=(const S&) { return *this; }\n};\n",
        "base/sub/b.cc": "namespace n {\n" + function(60) + "}  // TODO(#12): fine\n",
        "kernels/CMakeLists.txt": "quire_component(NAME k SRCS x_simd.cc)\n",
        "kernels/x_simd.cc": function(120),
        "tests/CMakeLists.txt": "quire_test(NAME t SRCS a_test.cc)\n",
        "tests/a_test.cc": '#include "tests/util.h"\nTEST(A, B) { EXPECT_EQ(1, 1); }\n',
        "tests/util.h": "#pragma once\n",
        "tools/x.py": "def f():\n    pass\n",
    }

    def in_source(self, text):
        return {"base/a.cc": text}

    def test_clean_tree(self):
        self.accepts({})

    def test_empty_tree(self):
        status, _ = self.run_on({name: None for name in self.clean})
        self.assertEqual(status, 1)

    def test_duplicate_type_names(self):
        def in_two(first, second=None):
            return {"base/a.cc": '#include "base/a.h"\n' + first, "tests/util.h": "#pragma once\n" + (second or first)}

        for kind in ("struct A", "class A final : public B<int>", "enum class A : int", "struct alignas(8) A",
                     "template <typename T>\nclass A"):
            text = f"namespace n::m {{\n{kind} {{\n}};\n}}\n"
            self.refuses(in_two(text), "tests/util.h:", "base/a.cc defines a n::m::A, too")
        text = "namespace n {\nstruct A {\n};\n}\n"
        self.refuses(in_two(text, "namespace n {\nstruct B {\n  int a;\n};\nvoid F(struct A a);\n" + text[14:]),
                     "tests/util.h:7: base/a.cc defines a n::A, too")
        self.accepts(in_two(text, text.replace("namespace n", "namespace m")))
        self.accepts(in_two(text, text.replace("};", "  int a;\n};").replace("struct A {", "struct B { struct A {};")))
        self.accepts(in_two(text, "namespace n {\nstruct A;\nvoid F() {\n  struct A {};\n}\n}\n"))
        self.accepts(in_two(text, "namespace n {\n" + text.replace("namespace n", "namespace") + "}\n"))
        twin = {"base/a.cc": in_two(text)["base/a.cc"], "tests/cuda_emulator/include/base/a.h": "#pragma once\n" + text,
                "tests/a_test.cc": self.clean["tests/a_test.cc"] + '#include "tests/cuda_emulator/include/base/a.h"\n'}
        self.accepts(twin)

    def test_file_length(self):
        self.accepts(self.in_source("int a;\n" * 900))
        self.refuses(self.in_source("int a;\n" * 901), "base/a.cc:1", "901 lines")

    def test_function_length(self):
        for head in ("void F(int a = 1) {", "S& S::operator=(S&& other) noexcept {",
                     "template <typename T>\nrequires(A<T>)\nauto F(T t) -> decltype(t) {",
                     "TEST_F(A, B) {", "struct S f() {", "S::S(int a) : a_(a), b_{2} {",
                     "bool operator==(const S& a, const S& b) {"):
            self.refuses(self.in_source("namespace {\n" + function(61, head) + "}\n"),
                         "base/a.cc", "61 lines")

    def test_methods_count_and_classes_do_not(self):
        self.accepts(self.in_source("class A {\n" + function(40) * 3 + "};\n"))
        self.refuses(self.in_source("class A {\n" + function(40) + function(61) + "};\n"),
                     "61 lines")
        self.accepts(self.in_source("const int kTable[] = {\n" + "  1,\n" * 80 + "};\n"))
        self.accepts(self.in_source("enum class E : int {\n" + "  kA,\n" * 80 + "};\n"))

    def test_braces_in_text_do_not_count(self):
        odd = 'const char* k = "{";  // {\nconst char c = \'{\';\nauto r = R"x({{{)x";\n'
        self.accepts(self.in_source(odd + function(60)))
        self.refuses(self.in_source(odd + function(61)), "61 lines")

    def test_kernel_length(self):
        self.refuses({"kernels/x_simd.cc": function(121)}, "kernels/x_simd.cc", "121 lines")

    def test_python_function_length(self):
        self.refuses({"tools/x.py": "def f():\n" + "    g()\n" * 60}, "tools/x.py:1", "61 lines")

    def test_unfinished_work(self):
        for word in ("TODO", "FIXME", "XXX"):
            self.refuses(self.in_source(f"// {word}: later\n"), "base/a.cc:1", "issue number")

    def test_disabled(self):
        self.refuses({"tests/a_test.cc": "TEST(A, DISABLED_B) {}\n"}, "tests/a_test.cc:1")
        self.refuses(self.in_source("#if 0\nint a;\n#endif\n"), "base/a.cc:1", "disabled")

    def test_columns(self):
        line = "// " + "\u00e9" * 97 + "\n"  # columns, not bytes
        self.accepts(self.in_source(line))
        self.refuses(self.in_source("int a;\n" + line.replace("//", "///")), "base/a.cc:2",
                     "101 columns")

    def test_pragma_once(self):
        self.refuses({"base/a.h": "int a;\n"}, "base/a.h", "#pragma once")

    def test_banned_words(self):
        for code in ("void F() { throw 1; }", "using namespace std;", "auto s = std::format(1);",
                     "absl::Mutex mutex;", "struct A { [[no_unique_address]] B b; };"):
            self.refuses(self.in_source(code + "\n"), "base/a.cc:1")
        self.accepts(self.in_source('const char* k = "throw";  // throw, using namespace\n'))

    def test_own_header_first(self):
        self.refuses(self.in_source('#include <vector>\n#include "base/a.h"\n'), "base/a.cc:1",
                     "its own header, base/a.h")

    def test_wall_clock(self):
        for code in ("auto t = absl::Now();", "auto t = std::chrono::system_clock::now();",
                     "clock_gettime(CLOCK_REALTIME, &t);", "auto t = absl::GetCurrentTimeNanos();"):
            self.refuses(self.in_source(code + "\n"), "base/a.cc:1", "wall time")
        self.accepts({"tests/util.h": "#pragma once\ninline auto t = absl::Now();\n"})

    def test_files_outside_the_build(self):
        self.refuses({"base/stray.cc": "int a;\n"}, "base/stray.cc", "not in the build")
        self.refuses({"base/stray.h": "#pragma once\n"}, "base/stray.h", "not in the build")
        self.refuses({"tests/stray_test.cc": "int a;\n"}, "tests/stray_test.cc")
        self.refuses({"base/CMakeLists.txt": "# a.h a.cc sub/b.cc\n"}, "base/a.cc")

    def test_links(self):
        page = OPENING + "\n# What `b_c` is, [and](x.md) 2\n```\n# no heading\n```\n"
        links = "[a](docs/a.md#what-b_c-is-and-2) [b](https://example.org/x#y) [c](#d)\n## D\n"
        self.accepts({"README.md": links, "docs/a.md": page, "docs/x.md": OPENING})
        self.refuses({"docs/a.md": OPENING + "[a](b.md)"}, "docs/a.md:4", "dead link b.md")
        self.refuses({"kernels/norm/README.md": "[a](b.md)"}, "README.md:1", "dead link b.md")
        self.refuses({"docs/a.md": '<img src="a.svg">'}, "docs/a.md:1", "dead link a.svg")
        self.refuses({"docs/a.md": '<source srcset="a.svg">'}, "docs/a.md:1", "dead link a.svg")
        self.refuses({"README.md": "[a](docs/a.md#no-heading)", "docs/a.md": page},
                     "README.md:1", "no heading #no-heading in docs/a.md")
        self.refuses({"docs/a.md": "[a](#b)"}, "docs/a.md:1", "no heading #b in a.md")

    def test_paths(self):
        self.accepts({"README.md": "`base/a.{h,cc}`, `base/`, `base/s*/b.cc`, `other/x`\n"})
        for path in ("base/c.cc", "base/c.{h,cc}", "base/t*/b.cc", "tools/y"):
            self.refuses({"README.md": f"# Q\n`{path}`\n"}, "README.md:2", f"no file {path}")

    def test_openings(self):
        self.accepts({"docs/a.md": "<!-- Written by x. -->\n" + OPENING, "docs/b/c.md": OPENING})
        self.refuses({"kernels/norm/README.md": "# Norm\n"}, "kernels/norm/README.md:3", "its readers")
        for text in ("# Title\n\nThis page is about pages.\n", "# Title\n\nFor those who read.\n", "# Title\n"):
            self.refuses({"docs/b/c.md": text}, "docs/b/c.md:3", "opens with its readers")

    def test_functions_of_the_architecture(self):
        def page(text):
            return {"docs/architecture.md": OPENING + text, "base/a.cc": "void S::Run(int a) {}\n"}

        self.accepts(page("`S::Run`\n(base/a.cc), `Other` (of no file), `Run` (base/a.cc)\n"))
        for text in ("`S::Walk` (base/a.cc)", "`T::Run` (base/a.cc)", "`S::Run` (base/b.cc)"):
            self.refuses(page(f"\n{text}\n"), "docs/architecture.md:5", "no ")
        self.accepts(page("| 1 | `S::Run` | base/a.cc | engine |\n"))
        for row in ("`S::Walk` | base/a.cc", "`T::Run` | base/a.cc", "`S::Run` | base/b.cc"):
            self.refuses(page(f"\n| 1 | {row} | engine |\n"), "docs/architecture.md:5", "no ")

    def test_virtual_functions(self):
        for name in ("base/a.cc", "base/a.h"):
            self.refuses({name: "#pragma once\nstruct S {\n  virtual ~S();\n};\n"}, f"{name}:3", "a virtual function")
        self.accepts({"base/CMakeLists.txt": "quire_component(NAME base HDRS a.h clock.h SRCS a.cc sub/b.cc)\n",
                      "base/clock.h": "#pragma once\nstruct S {\n  virtual ~S();\n};\n",
                      "tests/util.h": "#pragma once\nstruct T {\n  virtual ~T();\n};\n",
                      "base/a.cc": "// virtual lanes\n"})

    def test_sleeps(self):
        waiting = {"tests/testing/waiting.h": "#pragma once\ninline void Pace() { absl::SleepFor(d); }\n",
                   "tests/testing/waiting.py": "time.sleep(1)\n",
                   "tests/a_test.cc": '#include "tests/testing/waiting.h"\n#include "tests/util.h"\n'}
        self.accepts(waiting)
        for call in ("absl::SleepFor(d);", "std::this_thread::sleep_for(d);", "sleep_until(t);", "usleep(1);",
                     "nanosleep(&t, nullptr);", "sleep (1);"):
            self.refuses({**waiting, "tests/a_test.cc": waiting["tests/a_test.cc"] + f"void F() {{\n  {call}\n}}\n"},
                         "tests/a_test.cc:4", "does not sleep")
        for call in ("time.sleep(1)", "await asyncio.sleep(0.1)", "sleep(1)"):
            self.refuses({"tests/x.py": f"a = 1\n{call}\n"}, "tests/x.py:2", "does not sleep")
        for line in ("sleep 1", "true; sleep 0.5", "while ! f; do sleep 1; done"):
            self.refuses({"tests/x.sh": f"true\n{line}\n"}, "tests/x.sh:2", "does not sleep")

    def test_sleeps_elsewhere(self):
        self.accepts({"tools/x.py": "time.sleep(1)\n", "base/a.cc": "void F() { absl::SleepFor(d); }\n",
                      "tests/x.py": "a = 'sleep(1)'  # sleep(1)\nsleepers()\n",
                      "tests/x.sh": "echo asleep 1  # sleep 1\n",
                      "tests/a_test.cc": '#include "tests/util.h"\nconst char* k = "usleep";  // SleepFor\n'})

    def test_reasons(self):
        enum = {"base/error_reason.h": "#pragma once\nenum class Reason : std::uint8_t {\n  kA,\n  // B.\n  kB,\n};\n",
                "base/CMakeLists.txt": "quire_component(NAME base HDRS a.h error_reason.h SRCS a.cc sub/b.cc)\n"}
        self.accepts({**enum, "base/a.cc": "auto a = Reason::kA;\nauto b = Reason::kB;\n"})
        self.refuses({**enum, "base/a.cc": "auto a = Reason::kA;  // Reason::kB\n",
                      "tests/util.h": "#pragma once\nauto b = Reason::kB;\n"}, "base/error_reason.h:1", "no source returns kB")
        for comparison in ("if (HasReason(f(status), Reason::kB)) return;", "case Reason::kB:", "a == Reason::kB;",
                           "a != quire::Reason::kB;", "Reason::kB == a;", "Reason::kB\n    != a;"):
            self.refuses({**enum, "base/a.cc": f"auto a = Reason::kA;\nvoid F() {{ {comparison} }}\n"},
                         "base/error_reason.h:1", "no source returns kB")

    def test_mutual_folders(self):
        changes = {"server/CMakeLists.txt": "quire_component(NAME s SRCS a/x.cc b/y.cc)\n",
                   "server/a/x.cc": '#include "server/b/y.h"\n',
                   "server/b/y.cc": '#include "server/c/z.h"\n'}
        self.accepts(changes)
        self.refuses({**changes, "server/b/y.cc": '\n#include "server/a/x.h"\n'},
                     "server/a and server/b include each other", "server/b/y.cc:2")


if __name__ == "__main__":
    unittest.main()
