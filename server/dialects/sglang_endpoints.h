#pragma once

// sglang's GET /server_info and /model_info, and their older names /get_server_info and
// /get_model_info. The gateways sglang-router and smg read them when a worker is added.
//
// Place:      above server/openai, whose listener serves them.
// Invariants: the answers have only the members that the gateways read, not every option.
// Threads:    any.
// Source:     model_gateway/src/core/steps/worker/local/discover_metadata.rs of smg at 0beaedc5.

#include "server/openai/info_endpoint.h"

namespace quire::server {

EndpointTables SglangTables();

}  // namespace quire::server
