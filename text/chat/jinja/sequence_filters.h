#pragma once

// Filters that iterate over the elements of a value.
//
// Place:      part of filters.h, which finds them by name.
// Threads:    the table is constant.

#include <span>

#include "text/chat/jinja/filters.h"

namespace quire::text::jinja {

std::span<const FilterRow> SequenceFilters();

}  // namespace quire::text::jinja
