#pragma once

#include <cstddef>

#include "base/check.h"

namespace quire {

// The links of an object in one IntrusiveList, declared as a member of the object. Copying an
// object does not link the copy.
template <typename T>
struct IntrusiveNode {
  T* prev = nullptr;
  T* next = nullptr;
  bool is_linked = false;

  IntrusiveNode() = default;
  IntrusiveNode(const IntrusiveNode&) {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): does nothing.
  IntrusiveNode& operator=(const IntrusiveNode&) { return *this; }
};

// A doubly linked list whose links are a member of its elements. Removal from the middle is O(1),
// and the list never allocates.
//
//   struct Page { IntrusiveNode<Page> lru; };
//   IntrusiveList<Page, &Page::lru> cold;
//
// Place:      least-recently-used lists and queues whose elements live elsewhere.
// Invariants: an object is in at most one list per IntrusiveNode; size() is the number of elements.
// Threads:    not thread-safe.
// Lifetime:   owns nothing; an element must be erased before it is destroyed or moved.
template <typename T, IntrusiveNode<T> T::*kNode>
class IntrusiveList {
 public:
  IntrusiveList() = default;
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  // Return null when the list is empty.
  T* front() const { return front_; }
  T* back() const { return back_; }
  // Return the next element towards the back or the front; null at the end.
  static T* next(const T* element) { return (element->*kNode).next; }
  static T* prev(const T* element) { return (element->*kNode).prev; }
  // Returns whether `element` is in a list that uses its kNode links.
  static bool is_linked(const T* element) { return (element->*kNode).is_linked; }

  // REQUIRES: `element` is in no list that uses its kNode links.
  void push_back(T* element) { InsertBefore(nullptr, element); }
  void push_front(T* element) { InsertBefore(front_, element); }

  // Inserts `element` before `position`, or at the back when `position` is null.
  // REQUIRES: `position` is in this list and `element` is in none.
  void InsertBefore(T* position, T* element) {
    IntrusiveNode<T>& node = element->*kNode;
    QUIRE_CHECK(!node.is_linked);
    T* before = position != nullptr ? (position->*kNode).prev : back_;
    node.prev = before;
    node.next = position;
    node.is_linked = true;
    (before != nullptr ? (before->*kNode).next : front_) = element;
    (position != nullptr ? (position->*kNode).prev : back_) = element;
    ++size_;
  }

  // REQUIRES: `element` is in this list.
  void erase(T* element) {
    IntrusiveNode<T>& node = element->*kNode;
    QUIRE_CHECK(node.is_linked);
    (node.prev != nullptr ? (node.prev->*kNode).next : front_) = node.next;
    (node.next != nullptr ? (node.next->*kNode).prev : back_) = node.prev;
    node.prev = nullptr;
    node.next = nullptr;
    node.is_linked = false;
    --size_;
  }

  // Removes and returns the first element; returns null when the list is empty.
  T* pop_front() {
    T* element = front_;
    if (element != nullptr) erase(element);
    return element;
  }

 private:
  T* front_ = nullptr;
  T* back_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace quire
