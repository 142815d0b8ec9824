#pragma once

// JSON whose keys keep the order of the text. nlohmann::ordered_json looks through an object for
// each key that it adds, which takes the square of the number of keys; this does not look.
//
// Place:      for texts of clients that JsonDocument has read before: it refuses keys that are
//             there twice, and bounds depth.
// Invariants: none that a key is there once: operator[] and emplace add one.
// Threads:    values.

#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace quire::formats {

template <typename Key, typename T, typename Less, typename Allocator>
struct AppendingMap : nlohmann::ordered_map<Key, T, Less, Allocator> {
  using Base = nlohmann::ordered_map<Key, T, Less, Allocator>;
  using Base::Base;

  template <typename NewKey>
  T& operator[](NewKey&& key) {
    return this->emplace_back(std::forward<NewKey>(key), T{}).second;
  }
  template <typename NewKey>
  std::pair<typename Base::iterator, bool> emplace(NewKey&& key, T&& value) {
    this->emplace_back(std::forward<NewKey>(key), std::move(value));
    return {std::prev(this->end()), true};
  }
};

using OrderedJson = nlohmann::basic_json<AppendingMap>;

// One line, as JsonText has it.
inline std::string OrderedText(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace quire::formats
