#include "prices.h"

namespace phe {

const phe_price_request *Prices::next() {
  if (wanted_.empty()) return nullptr;
  int32_t id = wanted_.front();
  wanted_.pop_front();
  return &(*this)[id].request;
}

void Prices::set_flows(int32_t id, int64_t latency, double slowed, const phe_flow *flows, int count,
                       const int32_t *links, int link_count) {
  Price &price = (*this)[id];
  price.latency = latency;
  price.slowed = slowed;
  price.links.assign(links, links + link_count);
  const int32_t *way = price.links.data();
  for (const phe_flow *flow = flows; flow != flows + count; ++flow) {
    price.flows.push_back({flow->src, flow->dst, way, flow->hops, flow->count, flow->bytes, flow->rate});
    price.routes.push_back(flow->name);
    way += flow->hops;
  }
}

Price &Prices::set(int32_t id, const int64_t *durations, int count, int32_t name) {
  Price &price = (*this)[id];
  unpriced_communication_ -= !price.known && price.communication();
  price.durations.assign(durations, durations + count);
  price.known = true;
  price.least = price.flows.empty() ? durations[0] : price.latency + phn::alone(price.flows);
  price.name = name;
  price.kernels.clear();
  return price;
}

}  // namespace phe
