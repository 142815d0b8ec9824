"""Breaks each rule of tools/checks/layer_check.py once."""

import unittest

from check_case import CheckCase

PRAGMA = "#pragma once\n"


class LayerCheckTest(CheckCase):
    tool = "layer_check.py"
    clean = {
        "base/status.h": PRAGMA,
        "base/logging.cc": '#include <spdlog/spdlog.h>\n',
        "cache_manager/CMakeLists.txt": "quire_library(\n  NAME quire_kv_view\n  HDRS view.h)\n"
                                        "quire_library(NAME quire_cache HDRS pool.h)\n",
        "cache_manager/view.h": PRAGMA + '#include "base/status.h"\n',
        "cache_manager/pool.h": PRAGMA + '#include "cache_manager/view.h"\n',
        "kernels/linear/linear.h": PRAGMA + '#include "cache_manager/view.h"\n',
        "kernels/linear/linear_simd.cc": '#include "hwy/highway.h"\n#include "kernels/linear/linear.h"\n',
        "runtime/model.h": PRAGMA + '#include "text/tokenizer/tokenizer.h"\n#include "kernels/linear/linear.h"\n',
        "text/tokenizer/tokenizer.h": PRAGMA + '#include "base/status.h"\n',
        "models/families/llama.cc": '#include "runtime/model.h"\n',
        "engine/engine.h": PRAGMA + '#include "runtime/model.h"\n',
        "server/api/translate.h": PRAGMA + '#include "engine/engine.h"\n',
        "server/grpc/service.cc": '#include "server/api/translate.h"\n#include <grpcpp/grpcpp.h>\n'
                                  '#include "quire/v1/generation.pb.h"\n',
        "tests/x_test.cc": '#include "server/api/translate.h"\n#include <gtest/gtest.h>\n',
    }

    def test_clean_tree(self):
        self.accepts({})

    def test_empty_tree(self):
        status, _ = self.run_on({name: None for name in self.clean})
        self.assertEqual(status, 1)

    def test_prints_the_offending_line(self):
        self.refuses({"base/bad.h": PRAGMA + "\n// engine\n#include \"engine/engine.h\"\n"},
                     'base/bad.h:4: #include "engine/engine.h"', "base may not include engine")

    def test_upward_includes(self):
        for name, target in (("cache_manager/a.cc", "kernels/linear/linear.h"),
                             ("kernels/a.cc", "runtime/model.h"),
                             ("models/a.cc", "engine/engine.h"),
                             ("engine/a.cc", "server/api/translate.h")):
            self.refuses({name: f'#include "{target}"\n'}, f"{name}:1", target, "may not include")

    def test_kernels_see_only_the_views(self):
        self.refuses({"kernels/a.cc": '#include "cache_manager/pool.h"\n'}, "quire_kv_view")

    def test_tools_see_only_the_configuration_of_the_server(self):
        self.refuses({"tools/quire/a.cc": '#include "server/api/translate.h"\n'}, "server/config/")

    def test_sibling_subfolders(self):
        self.refuses({"server/api/a.cc": '#include "server/grpc/b.h"\n', "server/grpc/b.h": PRAGMA},
                     "server/api may not include server/grpc")
        self.refuses({"server/http/a.cc": '#include "server/grpc/b.h"\n', "server/grpc/b.h": PRAGMA},
                     "server/http may not include server/grpc")
        self.refuses({"server/grpc/a.cc": '#include "server/vllm/b.h"\n', "server/vllm/b.h": PRAGMA},
                     "server/grpc may not include server/vllm")

    def test_text_stands_alone(self):
        for target in ("runtime/model.h", "kernels/linear/linear.h", "cache_manager/view.h"):
            self.refuses({"models/text/a.cc": f'#include "{target}"\n'}, "models/text", target)

    def test_third_party(self):
        for name, target in (("engine/a.cc", "spdlog/spdlog.h"), ("engine/a.cc", "grpcpp/grpcpp.h"),
                             ("engine/a.cc", "quire/v1/types.pb.h"), ("base/a.cc", "hwy/highway.h"),
                             ("server/grpc/a.cc", "vllm/grpc/engine/vllm_engine.pb.h"),
                             ("kernels/a.cc", "hwy/highway.h"), ("server/a.cc", "yaml-cpp/yaml.h"),
                             ("server/grpc/a.cc", "boost/beast.hpp"), ("engine/a.cc", "prometheus/x.h"),
                             ("models/a.cc", "pcre2.h"), ("engine/a.cc", "nlohmann/json.hpp"),
                             ("models/a.cc", "cuda_runtime.h"), ("kernels/a.cc", "cublasLt.h"),
                             ("server/a.cc", "gtest/gtest.h"), ("server/a.cc", "CLI/CLI.hpp")):
            self.refuses({name: f"#include <{target}>\n"}, name, target, "only in")

    def test_include_cycle(self):
        self.refuses({"base/a.h": PRAGMA + '#include "base/b.h"\n',
                      "base/b.h": PRAGMA + '#include "base/a.h"\n'},
                     "include cycle", "base/a.h -> base/b.h -> base/a.h")

    def test_missing_file(self):
        self.refuses({"base/a.cc": '#include "base/absent.h"\n'}, "no such file")

    def test_commented_includes_do_not_count(self):
        self.accepts({"base/a.cc": '// #include "engine/engine.h"\n'})


if __name__ == "__main__":
    unittest.main()
