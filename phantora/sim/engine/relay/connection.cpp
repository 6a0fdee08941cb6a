#include "relay/connection.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

namespace phr {

void Connection::add(const Frame &frame, const void *data) {
  append(&frame, sizeof frame);
  append(data, frame.length);
}

void Connection::append(const void *data, size_t length) {
  const char *bytes = static_cast<const char *>(data);
  out_.insert(out_.end(), bytes, bytes + length);
}

bool Connection::flush() {
  for (size_t at = 0; at < out_.size() && !ended_;) {
    ssize_t done = send(socket_, out_.data() + at, out_.size() - at, MSG_NOSIGNAL);
    if (done > 0)
      at += static_cast<size_t>(done);
    else if (errno != EINTR)
      end();
  }
  messages_sent_ += !out_.empty();
  sent_ += static_cast<int64_t>(out_.size());
  out_.clear();
  return !ended_;
}

bool Connection::read(void *out, size_t length) {
  char *to = static_cast<char *>(out);
  while (length) {
    if (at_ == have_) {
      ssize_t got = recv(socket_, in_.data(), in_.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        end();
        return false;
      }
      at_ = 0;
      have_ = static_cast<size_t>(got);
      received_ += got;
      ++messages_received_;
    }
    size_t part = std::min(length, have_ - at_);
    memcpy(to, in_.data() + at_, part);
    at_ += part;
    to += part;
    length -= part;
  }
  return true;
}

void Connection::end() {
  if (!ended_.exchange(true)) shutdown(socket_, SHUT_RDWR);
}

}  // namespace phr
