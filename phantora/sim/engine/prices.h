// Prices: what a distinct piece of work costs, asked from Python once and kept.
#pragma once
#include "network/network.h"
#include "communication/operation.h"

#include <unordered_map>

namespace phe {

struct Price {
  struct Waiting {  // a kernel that awaits this price
    Stream *stream;
    uint64_t seq;
    int part;
  };

  bool known = false;
  phe_price_request request{};
  std::vector<phe_price_kernel> kernels;
  std::vector<int64_t> durations;
  phe_kernel_profile profile = {1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0};
  int32_t name = -1;
  // Communication:
  int64_t latency = 0;    // from its beginning to that of its flows
  int64_t least = 0;      // the duration when it has the links to itself
  double slowed = 0;      // share of the slowdown by kernels that it feels
  std::vector<phn::FlowClass> flows;
  std::vector<int32_t> links;   // of the flows
  std::vector<int32_t> routes;  // and what to call them, global names
  // The item that waits for it:
  std::vector<Waiting> launches;
  std::vector<std::shared_ptr<Operation>> operations;

  bool communication() const { return request.kind == PHE_COLLECTIVE || request.kind == PHE_TRANSFER; }
};

class Prices {
 public:
  // An empty key, to be filled and searched for at once: a launch allocates nothing.
  Key &key() {
    key_.clear();
    return key_;
  }
  // The price of what `key` describes; `make` fills the request of a new one.
  template <typename Make>
  int32_t find(const Key &key, Make make) {
    auto [it, fresh] = index_.try_emplace(key.bytes(), static_cast<int32_t>(prices_.size()));
    if (fresh) {
      prices_.push_back(std::make_unique<Price>());
      Price &price = *prices_.back();
      price.request.id = it->second;
      make(price);
      unpriced_communication_ += price.communication();
      wanted_.push_back(it->second);
    }
    return it->second;
  }
  Price &operator[](int32_t id) { return *prices_[static_cast<size_t>(id)]; }
  const Price &operator[](int32_t id) const { return *prices_[static_cast<size_t>(id)]; }
  // Some are to be asked for.
  bool wanted() const { return !wanted_.empty(); }
  const phe_price_request *next();
  // Collectives and transfers with a price asked for.
  bool communication_missing() const { return unpriced_communication_; }
  void set_flows(int32_t id, int64_t latency, double slowed, const phe_flow *flows, int count, const int32_t *links,
                 int link_count);
  Price &set(int32_t id, const int64_t *durations, int count, int32_t name);

 private:
  std::vector<std::unique_ptr<Price>> prices_;
  std::unordered_map<std::string, int32_t> index_;
  Key key_;
  std::deque<int32_t> wanted_;
  int unpriced_communication_ = 0;
};

}  // namespace phe
