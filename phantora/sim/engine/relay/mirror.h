// The side of the simulator: a mirror of the memory of all nodes, which the engine reads and writes.
#pragma once
#include "relay/connection.h"

#include <memory>
#include <thread>

namespace phr {

class Mirror : public Relay {
 public:
  explicit Mirror(void *area) : area_(area), asked_(area_.ranks()), given_(area_.ranks()) {}
  ~Mirror() override;
  void add(int socket, std::vector<int32_t> ranks);
  void start();
  int lost() const override;
  Traffic traffic() const override;

 private:
  struct Peer {
    Peer(int socket, std::vector<int32_t> of_node) : connection(socket), ranks(std::move(of_node)) {}
    Connection connection;
    std::vector<int32_t> ranks;
    std::atomic<uint64_t> applied{0};
    uint64_t wanted = 0;  // APPLY frames sent
    bool is_behind() const { return applied < wanted && !connection.ended(); }
    std::thread listener;
  };
  struct Answer {
    Peer *peer;
    int32_t rank;
    size_t slot;
  };
  // ---- from the nodes
  void listen(Peer &peer);
  bool apply(Peer &peer, const Frame &frame);
  bool take_records(Peer &peer, const Frame &frame);
  void wake_engine();
  // ---- to the nodes
  void speak();
  bool has_news();
  void say();
  std::vector<Answer> answers() const;
  bool may_go(const Peer &to) const;
  bool give(Peer &peer, int32_t rank);
  void announce();
  bool is_given(int32_t rank, const ph_given &now) const;
  ph_given given_to(int32_t rank) const;

  Area area_;
  std::vector<std::atomic<uint8_t>> asked_;  // by rank: reply slots that wait for an answer
  std::vector<ph_given> given_;              // by rank
  ph_run run_{};
  std::vector<std::unique_ptr<Peer>> peers_;
  std::thread speaker_;
  std::atomic<bool> ended_{false};
};

}  // namespace phr
