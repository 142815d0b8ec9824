#pragma once

// JSON whose keys keep the order of the text. Adding a key takes constant time, because keys are
// not checked for duplicates. nlohmann::ordered_json searches the whole object for each new key.
//
// Place:      for client text that JsonDocument has already parsed. JsonDocument rejects duplicate
//             keys and bounds the depth.
// Invariants: operator[] and emplace always append, even if the key exists.
// Threads:    a value type; one thread at a time per object.

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

// Serializes to one line, like JsonText.
inline std::string OrderedText(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace quire::formats
