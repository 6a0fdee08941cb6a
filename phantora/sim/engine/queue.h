// A queue in pieces of fixed size, which are used again: what is pushed stays in its place until it is popped.
#pragma once
#include <stddef.h>

#include <deque>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace phe {

template <typename T, size_t PIECE = 64>
class Queue {
 public:
  Queue() = default;
  Queue(Queue &&other) noexcept { *this = std::move(other); }
  Queue &operator=(Queue &&other) noexcept {
    std::swap(pieces_, other.pieces_);
    std::swap(spare_, other.spare_);
    std::swap(first_, other.first_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Queue() { clear(); }

  bool empty() const { return !size_; }
  size_t size() const { return size_; }
  T &operator[](size_t i) { return *place(i); }
  const T &operator[](size_t i) const { return *place(i); }
  T &front() { return *place(0); }
  const T &front() const { return *place(0); }
  T &back() { return *place(size_ - 1); }

  template <typename Value>
  void push_back(Value &&value) {
    if (first_ + size_ == pieces_.size() * PIECE) add_piece();
    new (place(size_)) T(std::forward<Value>(value));
    ++size_;
  }
  void pop_front() {
    place(0)->~T();
    --size_;
    if (++first_ < PIECE) return;
    first_ = 0;
    spare_.push_back(std::move(pieces_.front()));
    pieces_.pop_front();
  }
  void clear() {
    while (!empty()) pop_front();
  }

 private:
  struct Piece {
    alignas(T) unsigned char bytes[PIECE * sizeof(T)];
  };
  void add_piece() {
    if (spare_.empty()) spare_.emplace_back(new Piece);  // make_unique would fill it with zeros
    pieces_.push_back(std::move(spare_.back()));
    spare_.pop_back();
  }
  T *place(size_t i) const {
    size_t at = first_ + i;
    return reinterpret_cast<T *>(pieces_[at / PIECE]->bytes) + at % PIECE;
  }

  std::deque<std::unique_ptr<Piece>> pieces_;
  std::vector<std::unique_ptr<Piece>> spare_;
  size_t first_ = 0, size_ = 0;  // place of the front in its piece
};

}  // namespace phe
