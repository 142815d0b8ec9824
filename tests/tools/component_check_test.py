"""Violates each rule of tools/checks/component_check.py once."""

import unittest

from check_case import CheckCase

PRAGMA = "#pragma once\n"
BASE = "quire_component(\n  NAME base\n  HDRS status.h\n  SRCS logging.cc)\n"
TEXT = "quire_component(NAME text_chat HDRS chat.h DEPS base LIBS absl::strings)\n"
ENGINE = "quire_component(\n  NAME engine\n  HDRS engine.h\n  SRCS engine.cc\n  DEPS base text_chat)\n"


class ComponentCheckTest(CheckCase):
    tool = "component_check.py"
    clean = {
        "base/CMakeLists.txt": BASE,
        "base/status.h": PRAGMA,
        "base/logging.cc": '#include <spdlog/spdlog.h>\n#include "base/status.h"\n',
        "text/chat/CMakeLists.txt": TEXT,
        "text/chat/chat.h": PRAGMA + '#include "base/status.h"\n',
        "engine/CMakeLists.txt": ENGINE,
        "engine/engine.h": PRAGMA,
        "engine/engine.cc": '#include "engine/engine.h"\n#include "text/chat/chat.h"\n',
        "server/grpc/CMakeLists.txt":
            "quire_component(NAME server_grpc SRCS service.cc DEPS proto LIBS gRPC::grpc++)\n",
        "server/grpc/service.cc": '#include <grpcpp/grpcpp.h>\n#include "quire/v1/text.pb.h"\n',
        "tools/quire/CMakeLists.txt": "quire_binary(NAME quire SRCS main.cc DEPS base engine)\n",
        "tools/quire/main.cc": '#include "engine/engine.h"\n#include "base/status.h"\n',
    }

    def test_clean_tree(self):
        self.accepts({})

    def test_empty_tree(self):
        status, _ = self.run_on({name: None for name in self.clean})
        self.assertEqual(status, 1)

    def test_unused_dep(self):
        self.refuses({"text/chat/chat.h": PRAGMA},
                     "text/chat/CMakeLists.txt:1", "text_chat lists base")
        self.refuses({"server/grpc/service.cc": "#include <grpcpp/grpcpp.h>\n"},
                     "server_grpc lists proto")
        self.refuses({"tools/quire/main.cc": '#include "base/status.h"\n'},
                     "binary quire lists engine")

    def test_dep_used_by_a_header_is_needed(self):
        self.accepts({"engine/engine.cc": '#include "text/chat/chat.h"\n'})

    def test_missing_dep(self):
        self.refuses({"text/chat/chat.h": PRAGMA + '#include "engine/engine.h"\n'},
                     "text_chat includes a header of engine, directly or through other headers, but does not list it in DEPS")

    def test_cycle(self):
        self.refuses({"base/CMakeLists.txt": BASE.replace(")", "\n  DEPS engine)"),
                      "base/logging.cc": '#include "engine/engine.h"\n'},
                     "components form a cycle: base -> engine")

    def test_third_party(self):
        for name, target in (("engine/a.cc", "spdlog/spdlog.h"), ("engine/a.cc", "grpcpp/grpcpp.h"),
                             ("engine/a.cc", "quire/v1/types.pb.h"), ("base/a.cc", "hwy/highway.h"),
                             ("server/grpc/a.cc", "vllm/grpc/engine/vllm_engine.pb.h"),
                             ("kernels/a.cc", "hwy/highway.h"), ("server/a.cc", "yaml-cpp/yaml.h"),
                             ("server/grpc/a.cc", "boost/beast.hpp"),
                             ("engine/a.cc", "prometheus/x.h"), ("models/a.cc", "pcre2.h"),
                             ("engine/a.cc", "nlohmann/json.hpp"),
                             ("models/a.cc", "cuda_runtime.h"), ("kernels/a.cc", "cublasLt.h"),
                             ("server/a.cc", "gtest/gtest.h"), ("server/a.cc", "CLI/CLI.hpp")):
            self.refuses({name: f"#include <{target}>\n"}, name, target, "only in")


if __name__ == "__main__":
    unittest.main()
