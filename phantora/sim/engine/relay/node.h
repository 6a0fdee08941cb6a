// The side of a node: what its ranks write goes to the mirror, what comes from there goes to them.
#pragma once
#include "relay/connection.h"

#include <thread>

namespace phr {

class Node : public Relay {
 public:
  Node(void *area, int node, int socket, std::vector<int32_t> ranks);
  ~Node() override;
  int lost() const override { return connection_.ended() ? 0 : -1; }
  Traffic traffic() const override { return connection_.traffic(); }

 private:
  struct Sent {  // of a rank
    uint64_t head = 0;
    ph_said said{};
  };
  void speak();
  void listen();
  bool is_behind() const;
  bool say();
  void say_records(int32_t rank, uint64_t from, uint64_t to);
  ph_said said_by(int32_t rank) const;
  bool apply(const Frame &frame);
  void give(int32_t rank, const ph_given &given);
  void announce(const ph_run &run);

  Area area_;
  int node_;
  Connection connection_;
  std::vector<int32_t> ranks_;
  std::vector<Sent> sent_;  // as ranks_
  std::atomic<uint64_t> applied_{0};  // APPLY frames received
  uint64_t confirmed_ = 0;
  std::thread speaker_, listener_;
};

}  // namespace phr
